//! Objects by which kernels wait, and whose waits the host can end.

use std::time::{Duration, Instant};

use crate::{Error, KernelWait, Result, Stream, argument};

/// An object by which kernels wait, and whose waits the host can end: a semaphore, a channel, a proxy service, a
/// communicator, or a list of these. It is given to [`Stream::synchronize_or_abort`].
pub trait Abort {
    /// The error that says what went wrong.
    type Error: From<Error>;

    /// Ends the waits of kernels for good: they return false. `reason` becomes part of the error that says why.
    fn abort(&self, reason: &str);

    /// Checks that the waits of kernels got what they waited for. Call it once the kernels are complete.
    ///
    /// # Errors
    /// Why a wait ended early: a lost peer, an abort, or a bound that was reached.
    fn check(&self) -> Result<(), Self::Error>;

    /// Waits until others, such as the thread of a proxy service, have carried out what complete kernels asked them for, or
    /// have failed with it: then [`Abort::check`] knows of it. Until `deadline` at most; false if it takes longer. By
    /// default, nothing is asked of others.
    fn settle(&self, deadline: Instant) -> bool {
        let _ = deadline;
        true
    }

    /// For whom kernels may wait, under the names that messages use: `rank 1`.
    fn peers(&self) -> Vec<String>;

    /// The waits of kernels, as far as something tells whether they wait: see
    /// [`KernelObject::waits`](crate::KernelObject::waits).
    fn waits(&self) -> Vec<KernelWait> {
        Vec::new()
    }
}

/// Aborts and checks all objects in the list; the first error found is returned.
impl<A: Abort> Abort for [A] {
    type Error = A::Error;

    fn abort(&self, reason: &str) {
        self.iter().for_each(|each| each.abort(reason));
    }

    fn check(&self) -> Result<(), A::Error> {
        self.iter().try_for_each(Abort::check)
    }

    fn settle(&self, deadline: Instant) -> bool {
        self.iter().all(|each| each.settle(deadline))
    }

    fn peers(&self) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for peer in self.iter().flat_map(Abort::peers) {
            if !all.contains(&peer) {
                all.push(peer);
            }
        }
        all
    }

    fn waits(&self) -> Vec<KernelWait> {
        self.iter().flat_map(Abort::waits).collect()
    }
}

impl<A: Abort> Abort for Vec<A> {
    type Error = A::Error;

    fn abort(&self, reason: &str) {
        self.as_slice().abort(reason);
    }

    fn check(&self) -> Result<(), A::Error> {
        self.as_slice().check()
    }

    fn settle(&self, deadline: Instant) -> bool {
        self.as_slice().settle(deadline)
    }

    fn peers(&self) -> Vec<String> {
        self.as_slice().peers()
    }

    fn waits(&self) -> Vec<KernelWait> {
        self.as_slice().waits()
    }
}

impl<A: Abort, const N: usize> Abort for [A; N] {
    type Error = A::Error;

    fn abort(&self, reason: &str) {
        self.as_slice().abort(reason);
    }

    fn check(&self) -> Result<(), A::Error> {
        self.as_slice().check()
    }

    fn settle(&self, deadline: Instant) -> bool {
        self.as_slice().settle(deadline)
    }

    fn peers(&self) -> Vec<String> {
        self.as_slice().peers()
    }

    fn waits(&self) -> Vec<KernelWait> {
        self.as_slice().waits()
    }
}

impl<A: Abort + ?Sized> Abort for &A {
    type Error = A::Error;

    fn abort(&self, reason: &str) {
        (**self).abort(reason);
    }

    fn check(&self) -> Result<(), A::Error> {
        (**self).check()
    }

    fn settle(&self, deadline: Instant) -> bool {
        (**self).settle(deadline)
    }

    fn peers(&self) -> Vec<String> {
        (**self).peers()
    }

    fn waits(&self) -> Vec<KernelWait> {
        (**self).waits()
    }
}

/// How long kernels have to end after an abort, which their waits see within about a millisecond, or later on a busy machine.
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

/// See [`Stream::synchronize_or_abort`].
pub(crate) fn synchronize_or_abort<A: Abort + ?Sized>(
    stream: &Stream,
    limit: Duration,
    what: &A,
) -> Result<(), A::Error> {
    let start = Instant::now();
    let (operation, after) = match stream.poll_until_complete(limit) {
        // Kernels that ended at the last moment leave a little to do.
        Ok(()) if what.settle(start + limit.min(A_YEAR).max(start.elapsed() + AFTER_ABORT)) => {
            let (told, kept) = (what.check(), stream.check_failed());
            told?;
            return Ok(kept?);
        }
        Ok(()) => (format!("what complete kernels of {} asked for", stream.gpu()), limit),
        Err(Error::Timeout { operation, after, .. }) => (operation, after),
        Err(error) => return Err(error.into()),
    };
    let late = timed_out(stream, what.peers(), what.waits(), operation, after);
    // What went wrong before the abort is its cause.
    let kept = stream.check_failed();
    let cause = what.check().err().or_else(|| kept.err().map(A::Error::from));
    what.abort(&late.to_string());
    // Its kernels may wait for others than `what` names.
    let ended = stream.complete_within(AFTER_ABORT);
    // That the abort has ended waits is no news.
    drop(stream.backend().map(|backend| backend.take_failed()));
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

/// That `operation` on `stream` took longer than `after`, and for whom its kernels wait: through the objects that its
/// launches keep, and through others. If nothing tells, for whom they may wait: one of `peers`, or of the objects' if there
/// are none.
pub(crate) fn timed_out(
    stream: &Stream,
    mut peers: Vec<String>,
    others: Vec<KernelWait>,
    operation: String,
    after: Duration,
) -> Error {
    let owners = stream.backend().map(|stream| stream.in_use()).unwrap_or_default();
    let waits = owners.iter().flat_map(|owner| owner.waits()).chain(others).collect();
    let waited_for = crate::waits::waited_for(stream.gpu(), waits);
    if !waited_for.is_empty() {
        return waiting_for(&waited_for, "whose kernels wait for", operation, after);
    }
    if peers.is_empty() {
        peers = argument::peers_of(&owners);
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
