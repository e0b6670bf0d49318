//! The end of a set-up, at which no rank may leave the others behind.

use std::time::{Duration, Instant};

use crate::{Communicator, Result};

/// The tag of the messages.
const SETTLED: u32 = u32::MAX;
/// How long a rank waits for them. A peer whose program calls something else sends none.
const SETTLING: Duration = Duration::from_secs(5);

impl Communicator {
    /// Tells `peers` that this rank has made what it makes together with them, and waits until each of them says the same
    /// by this call, for five seconds at most.
    ///
    /// A rank has all that it needs from a peer once the peer has sent its part, while the peer may still be opening what
    /// this rank sent. If this rank then ended, or dropped what it made, the peer would fail. Unlike a
    /// [`barrier`](crate::Bootstrap::barrier), it is for these ranks alone.
    ///
    /// A peer that has not called it in time is no error: what was made says by itself what is wrong with its peer. The
    /// messages have the tag `u32::MAX`.
    ///
    /// # Errors
    /// [`Error::Bootstrap`](crate::Error::Bootstrap) if a peer cannot be told, as when the job has failed.
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
            // What comes may be of an earlier call, for which this rank did not wait so long.
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
