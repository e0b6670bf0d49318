//! The end of a set-up, at which each rank waits until its peers are ready too.

use std::time::{Duration, Instant};

use crate::{Communicator, Result};

/// The tag of the messages.
const SETTLED: u32 = u32::MAX;
/// The longest time that a rank waits for these messages. A peer whose program does not call `settle` sends none.
const SETTLING: Duration = Duration::from_secs(5);

impl Communicator {
    /// Tells `peers` that this rank has made all objects that it shares with them, and waits until each of them has said
    /// the same by this call, for five seconds at most.
    ///
    /// A rank has its objects as soon as the peer has sent its part, while the peer may still be opening what this rank
    /// sent. If this rank then ended, or dropped its objects, the peer would fail. Unlike a
    /// [`barrier`](crate::Bootstrap::barrier), this call involves only these ranks.
    ///
    /// A peer that has not made the call in time is no error: a later use of the shared objects reports what is wrong
    /// with the peer. The messages have the tag `u32::MAX`.
    ///
    /// # Errors
    /// [`Error::Bootstrap`](crate::Error::Bootstrap) if the message to a peer cannot be sent, as when the job has failed.
    pub fn settle(&self, peers: impl IntoIterator<Item = usize>) -> Result<()> {
        let bootstrap = self.bootstrap();
        let peers: Vec<usize> = peers.into_iter().filter(|&peer| peer != bootstrap.rank()).collect();
        let deadline = Instant::now() + SETTLING;
        let numbers = peers.iter().map(|&peer| (peer, self.members().settles(peer))).collect::<Vec<_>>();
        for &(peer, number) in &numbers {
            bootstrap.send(&number.to_le_bytes(), peer, SETTLED)?;
        }
        for (peer, number) in numbers {
            let mut theirs = None;
            // The message may be of an earlier call, for which this rank did not wait so long.
            while !self.members().has_settled(peer, number, theirs) {
                let left = deadline.saturating_duration_since(Instant::now());
                match bootstrap.recv_timeout(peer, SETTLED, left) {
                    Ok(message) => theirs = message.try_into().ok().map(u64::from_le_bytes),
                    Err(error) => {
                        tracing::debug!(target: "mscclpp::conn", peer, %error, "a peer has not said that it is done");
                        break;
                    }
                }
            }
        }
        Ok(())
    }
}
