//! Waits for a stream that end: with an error that names for whom its kernels wait.

use std::time::{Duration, Instant};

use crate::{Abort, Error, KernelWait, Result, Stream, object::peers_of, waits::waited_for};

impl Stream {
    /// Like [`Stream::synchronize`], for at most `timeout`. Polls, with pauses that grow to 50 us.
    ///
    /// # Errors
    /// As [`Stream::synchronize`];
    /// [`Error::Timeout`], in which case the work goes on and the call can be repeated. It names the peers for
    /// which kernels wait through the objects that their launches were given ([`KernelArgs`](crate::KernelArgs)); if the device does not
    /// tell, as of bounded waits, those for which they may wait. Asking the device takes a second at most, ten if it is
    /// simulated. These objects live as long as the work, so this error may be returned, even from `main`, and leaves nothing
    /// invalid behind.
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

    /// Like [`Stream::synchronize_timeout`], but if time runs out, it ends the waits of the kernels: it aborts `what`,
    /// and then waits until the kernels are complete, for at most 5 s. So no kernel is left behind and the device stays
    /// usable. `what` is no longer usable, because an abort is final.
    ///
    /// `what` is a semaphore, a channel, a proxy service, a communicator, or a list of one of these: everything through
    /// which kernels on this stream wait. It is checked for failed waits even if the work is complete in time. If that is a proxy
    /// service, or a channel of one, this also waits until the service has handed over all that kernels asked it for: an
    /// offset that does not fit, for instance, is an error here, and not in some later call.
    ///
    /// # Errors
    /// If the work is complete: the error of [`Abort::check`], such as the loss of a peer. If it was aborted: an error
    /// that was known before, otherwise [`Error::Timeout`]. It names peers as the one of
    /// [`Stream::synchronize_timeout`] does, and those of `what`. What other objects say that launches keep, as for
    /// [`Stream::synchronize`]. An error of the work.
    pub fn synchronize_or_abort<A: Abort + ?Sized>(&self, limit: Duration, what: &A) -> Result<(), A::Error> {
        let start = Instant::now();
        let (operation, after) = match self.poll_until_complete(limit) {
            // Kernels that ended at the last moment leave a little to do.
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
        // What went wrong before the abort is its cause.
        let kept = self.check_failed();
        let cause = what.check().err().or_else(|| kept.err().map(A::Error::from));
        what.abort(&late.to_string());
        // Its kernels may wait for others than `what` names.
        let ended = self.complete_within(AFTER_ABORT);
        // That the abort has ended waits is no news.
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

/// How long kernels have to end after an abort, which their waits see within tens of milliseconds, or later on a busy machine.
/// Also how long others have, at least, to carry out what kernels asked them for that ended shortly before the limit.
const AFTER_ABORT: Duration = Duration::from_secs(5);
/// Longer limits are cut to this, so that they can be added to the time.
const A_YEAR: Duration = Duration::from_secs(86_400 * 365);
/// How many peers a message names.
const NAMED: usize = 8;
/// What may be wrong with them.
const SEE: &str = "; see whether these have launched the kernels that signal this one, and whether their kernels have ended";
/// What is wrong when an abort did not help.
const NOT_ALL: &str = ", nor within 5 s after it was aborted: its kernels wait through something else, too; give all of it \
                       to synchronize_or_abort()";

/// That `operation` on `stream` took longer than `after`, and for whom its kernels wait: through the objects that its
/// launches keep, and through others. If nothing tells, for whom they may wait: one of `peers`, or of the objects' if there
/// are none.
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

/// That `operation` took longer than `after`; how the peers matter, and their names, though not all where there are many.
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
        let two = "work, whose kernels wait for rank 0, rank 1, did not finish within 1s; see whether ";
        assert!(message(2).starts_with(two), "{}", message(2));
        assert!(message(1000).contains("rank 7 and 992 more,"), "{}", message(1000));
    }
}
