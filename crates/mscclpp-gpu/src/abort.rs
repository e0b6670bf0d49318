//! Objects by which kernels wait, and whose waits the host can end.

use std::time::Duration;

use crate::{Error, Result, Stream};

/// An object by which kernels wait, and whose waits the host can end: a semaphore, a channel, a proxy service, a communicator,
/// or a list of these. For [`Stream::synchronize_or_abort`].
pub trait Abort {
    /// What went wrong.
    type Error: From<Error>;

    /// Ends the waits of kernels, for ever: they return false. `reason` is part of the error that says why.
    fn abort(&self, reason: &str);

    /// Whether the waits of kernels got what they waited for. Ask after the kernels are complete.
    ///
    /// # Errors
    /// Why a wait ended without it: a lost peer, an abort, or a bound that was reached.
    fn check(&self) -> Result<(), Self::Error>;

    /// The peers for which kernels wait, as messages name them: `rank 1`.
    fn peers(&self) -> Vec<String>;
}

/// All of them: what is found first counts.
impl<A: Abort> Abort for [A] {
    type Error = A::Error;

    fn abort(&self, reason: &str) {
        self.iter().for_each(|each| each.abort(reason));
    }

    fn check(&self) -> Result<(), A::Error> {
        self.iter().try_for_each(Abort::check)
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
}

impl<A: Abort> Abort for Vec<A> {
    type Error = A::Error;

    fn abort(&self, reason: &str) {
        self.as_slice().abort(reason);
    }

    fn check(&self) -> Result<(), A::Error> {
        self.as_slice().check()
    }

    fn peers(&self) -> Vec<String> {
        self.as_slice().peers()
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

    fn peers(&self) -> Vec<String> {
        self.as_slice().peers()
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

    fn peers(&self) -> Vec<String> {
        (**self).peers()
    }
}

/// How long kernels get to end after an abort. Their waits see it within about a millisecond; a busy machine is slower.
const AFTER_ABORT: Duration = Duration::from_secs(5);
/// How many peers a message names.
const NAMED: usize = 8;

/// See [`Stream::synchronize_or_abort`].
pub(crate) fn synchronize_or_abort<A: Abort + ?Sized>(
    stream: &Stream,
    limit: Duration,
    what: &A,
) -> Result<(), A::Error> {
    let work = match stream.synchronize_timeout(limit) {
        Ok(()) => return what.check(),
        Err(Error::Timeout { operation, .. }) => operation + &waiting_for(&what.peers()),
        Err(error) => return Err(error.into()),
    };
    // What went wrong before the abort is its cause.
    let cause = what.check().err();
    what.abort(&format!("{work} did not finish within {limit:?}"));
    match stream.synchronize_timeout(AFTER_ABORT) {
        Err(Error::Timeout { .. }) => Err(A::Error::from(Error::Timeout {
            operation: format!(
                "{work}, which was aborted and has not ended {AFTER_ABORT:?} later (it does not wait through what was \
                 aborted alone),"
            ),
            after: limit,
        })),
        ended => {
            if let Err(error) = ended {
                tracing::warn!(target: "mscclpp::gpu", %error, "{work} was aborted, and failed then");
            }
            Err(cause.unwrap_or_else(|| Error::Timeout { operation: work, after: limit }.into()))
        }
    }
}

fn waiting_for(peers: &[String]) -> String {
    let (named, others) = peers.split_at(peers.len().min(NAMED));
    match (named, others.len()) {
        ([], _) => String::new(),
        (named, 0) => format!(", where kernels wait for {},", named.join(", ")),
        (named, more) => format!(", where kernels wait for {} and {more} more,", named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_the_peers_and_stays_short() {
        let peers = |n: usize| (0..n).map(|rank| format!("rank {rank}")).collect::<Vec<_>>();
        assert_eq!(waiting_for(&peers(0)), "");
        assert_eq!(waiting_for(&peers(2)), ", where kernels wait for rank 0, rank 1,");
        assert!(waiting_for(&peers(1000)).ends_with("rank 7 and 992 more,"));
    }
}
