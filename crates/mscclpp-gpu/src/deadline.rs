//! Waits for a stream with a time limit, whose error names the peers that its kernels wait for.

use std::time::{Duration, Instant};

use crate::{Abort, Error, KernelWait, Result, Stream, object::peers_of, waits::waited_for};

impl Stream {
    /// Waits like [`Stream::synchronize`], for at most `timeout`. Polls, with pauses that grow to 50 microseconds.
    ///
    /// # Errors
    /// The errors of [`Stream::synchronize`]; [`Error::Timeout`], in which case the work goes on and the call can be
    /// repeated. It names the peers for which kernels wait through the objects that their launches were given
    /// ([`KernelArgs`](crate::KernelArgs)); if the device does not tell, as for bounded waits, those for which they may
    /// wait. Asking the device takes a second at most, ten if it is simulated. These objects live as long as the work, so
    /// this error may be returned, even from `main`, and leaves nothing invalid behind.
    pub fn synchronize_timeout(&self, timeout: Duration) -> Result<()> {
        self.complete_within(timeout)?;
        self.check_failed()
    }

    fn complete_within(&self, timeout: Duration) -> Result<()> {
        self.poll_until_complete(timeout).map_err(|error| match error {
            Error::Timeout { operation, after, .. } => {
                timed_out(self, Vec::new(), Vec::new(), operation, after)
            }
            other => other,
        })
    }

    /// Waits like [`Stream::synchronize_timeout`], but if time runs out, it ends the waits of the kernels: it aborts
    /// `what`, and then waits until the kernels are complete, for at most 5 s. So no kernel is left behind and the device
    /// stays usable. `what` is no longer usable, because an abort is final.
    ///
    /// `what` is a semaphore, a channel, a proxy service, a communicator, or a list of one of these: all objects through
    /// which kernels on this stream wait. It is checked for failed waits even if the work is complete in time. If it is a
    /// proxy service, or a channel of one, this also waits until the service has handed over all requests of the kernels:
    /// an offset that does not fit, for instance, is an error here, and not in some later call.
    ///
    /// # Errors
    /// If the work is complete: the error of [`Abort::check`], such as the loss of a peer. If it was aborted: an error
    /// that was known before, otherwise [`Error::Timeout`]. It names peers as the one of [`Stream::synchronize_timeout`]
    /// does, and those of `what`. Also the errors of other objects that launches keep, as for [`Stream::synchronize`],
    /// and those of the work.
    pub fn synchronize_or_abort<A: Abort + ?Sized>(&self, limit: Duration, what: &A) -> Result<(), A::Error> {
        let start = Instant::now();
        let (operation, after) = match self.poll_until_complete(limit) {
            // Requests of kernels that ended at the last moment are still carried out.
            Ok(()) if what.settle(start + limit.min(A_YEAR).max(start.elapsed() + AFTER_ABORT)) => {
                let (told, kept) = (what.check(), self.check_failed());
                told?;
                return Ok(kept?);
            }
            Ok(()) => (format!("what complete kernels of {} asked for", self.gpu()), limit),
            Err(Error::Timeout { operation, after, .. }) => (operation, after),
            Err(error) => return Err(error.into()),
        };
        let late = timed_out(self, what.peers(), what.waits(), operation, after);
        // An error from before the abort is its cause.
        let kept = self.check_failed();
        let cause = what.check().err().or_else(|| kept.err().map(A::Error::from));
        what.abort(&late.to_string());
        // Its kernels may also wait for peers that `what` does not name.
        let ended = self.complete_within(AFTER_ABORT);
        // The failures that the abort has caused are not reported.
        drop(self.backend().map(|backend| backend.take_failed()));
        match ended {
            Err(Error::Timeout { operation, .. }) => {
                Err(A::Error::from(Error::Timeout { operation, after: limit, remedy: NOT_ALL }))
            }
            ended => {
                if let Err(error) = ended {
                    tracing::warn!(target: "mscclpp::gpu", %error, "a stream was aborted, and failed then: {late}");
                }
                Err(cause.unwrap_or_else(|| late.into()))
            }
        }
    }
}

/// The time that kernels have to end after an abort, which their waits see within tens of milliseconds, or later on a
/// busy machine. It is also the least time that others have to carry out requests of kernels that ended shortly before
/// the limit.
const AFTER_ABORT: Duration = Duration::from_secs(5);
/// The longest limit; longer ones are cut to it, so that they can be added to the time.
const A_YEAR: Duration = Duration::from_secs(86_400 * 365);
/// The most peers that a message names.
const NAMED: usize = 8;
/// The advice of a time-out whose peers may be the cause.
const SEE: &str = "; check on each of them whether the kernel that signals was launched, and whether it ended without a signal";
/// The advice of an abort that did not end the kernels.
const NOT_ALL: &str = ", nor within 5 s after it was aborted: its kernels wait through something else, too; give all of it \
                       to synchronize_or_abort()";

/// Returns the error that `operation` on `stream` took longer than `after`. It names the peers for which its kernels
/// wait, through the objects that its launches keep and through others. If the device does not tell, it names those for
/// which they may wait: `peers`, or those of the objects if there are none.
fn timed_out(
    stream: &Stream,
    mut peers: Vec<String>,
    others: Vec<KernelWait>,
    operation: String,
    after: Duration,
) -> Error {
    let owners = stream.backend().map(|stream| stream.in_use()).unwrap_or_default();
    let waits = owners.iter().flat_map(|owner| owner.waits()).chain(others).collect();
    let waited_for = waited_for(stream.gpu(), waits);
    if !waited_for.is_empty() {
        return waiting_for(&waited_for, "whose kernels wait for", operation, after);
    }
    if peers.is_empty() {
        peers = peers_of(&owners);
    }
    waiting_for(&peers, "whose kernels may wait for", operation, after)
}

/// Returns the error that `operation` took longer than `after`. `how` is the role of the peers, of which only some are
/// named if there are many.
fn waiting_for(peers: &[String], how: &str, operation: String, after: Duration) -> Error {
    let (named, others) = peers.split_at(peers.len().min(NAMED));
    let names = named.join(", ");
    let (operation, remedy) = match (named, others.len()) {
        ([], _) => (operation, ""),
        (_, 0) => (format!("{operation}, {how} {names},"), SEE),
        (_, more) => (format!("{operation}, {how} {names} and {more} more,"), SEE),
    };
    Error::Timeout { operation, after, remedy }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_the_peers_and_stays_short() {
        let peers = |n: usize| (0..n).map(|rank| format!("rank {rank}")).collect::<Vec<_>>();
        let message = |n| {
            waiting_for(&peers(n), "whose kernels wait for", "work".to_owned(), Duration::from_secs(1))
                .to_string()
        };
        assert_eq!(message(0), "work did not finish within 1s");
        let two = "work, whose kernels wait for rank 0, rank 1, did not finish within 1s; check on ";
        assert!(message(2).starts_with(two), "{}", message(2));
        assert!(message(1000).contains("rank 7 and 992 more,"), "{}", message(1000));
    }
}
