//! The trait by which other crates use a job.

use std::time::Duration;

use crate::{Error, Result};

/// A function that is called when the job fails; see [`Bootstrap::on_failure`].
pub type FailureHook = Box<dyn Fn(&Error) + Send + Sync>;

/// A job of `n_ranks` ranks that can exchange bytes.
///
/// All methods may be called from any thread. Collective calls ([`all_gather`](Self::all_gather),
/// [`barrier`](Self::barrier), [`broadcast`](Self::broadcast)) must be made by every rank in the same order. Calls of
/// several threads of one rank take turns, and the program must then make sure that their order is the same on all
/// ranks.
///
/// # What ends a wait
/// Calls that wait end with an error when any rank is lost ([`Error::PeerLost`]), when any rank aborts
/// ([`Error::Aborted`]), and when a rank that the call needs has left ([`Error::PeerClosed`]). The first two are
/// sticky: all later calls fail with the same error.
///
/// Without a time-out they wait without a limit, because a rank that is slow or stuck may still come. A wait is
/// logged after ten seconds, and then at intervals that grow threefold, with what it waits for: a warning of target
/// `mscclpp::wait`, on standard error in a process without a log subscriber.
pub trait Bootstrap: Send + Sync {
    /// The number of this rank, from 0.
    fn rank(&self) -> usize;

    /// The number of ranks in the job.
    fn n_ranks(&self) -> usize;

    /// The number of ranks on this rank's node, itself included.
    fn n_ranks_per_node(&self) -> usize;

    /// The number of ranks whose devices this rank's devices may reach by IPC, itself included. These are the ranks
    /// on its node, unless an IPC domain was given when the bootstrap was made.
    fn n_ranks_per_ipc_domain(&self) -> usize;

    /// Sends a message of any size, also an empty one, to a rank, which may be this one.
    ///
    /// Messages for one peer and tag arrive in the order in which they are sent; different tags are independent.
    /// Returns when the bytes have been given to the system, not when the peer has received them. The peer need not
    /// be receiving.
    fn send(&self, bytes: &[u8], peer: usize, tag: u32) -> Result<()>;

    /// Waits for the next message from `peer` with this tag.
    ///
    /// Messages sent before the peer left are still delivered.
    fn recv(&self, peer: usize, tag: u32) -> Result<Vec<u8>>;

    /// Waits like [`recv`](Self::recv), for at most `timeout`. On [`Error::Timeout`] nothing was consumed; the call
    /// can be repeated.
    fn recv_timeout(&self, peer: usize, tag: u32, timeout: Duration) -> Result<Vec<u8>>;

    /// Returns the next message from `peer` with this tag, if one has come. Does not block. The bootstraps of this crate open no
    /// connection for it; without an implementation of its own, a bootstrap does what its `recv_timeout` does.
    fn try_recv(&self, peer: usize, tag: u32) -> Result<Option<Vec<u8>>> {
        match self.recv_timeout(peer, tag, Duration::ZERO) {
            Ok(message) => Ok(Some(message)),
            Err(Error::Timeout { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Gives every rank the bytes of all ranks, in the order of ranks. They may differ in length.
    ///
    /// The result is returned. `bytes` is only read, even if a `&mut Vec<u8>` is passed.
    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// Returns when all ranks have called it.
    fn barrier(&self) -> Result<()>;

    /// Gathers like [`all_gather`](Self::all_gather), for at most `timeout`.
    ///
    /// [`Error::Timeout`] names the missing ranks, as far as they are known here. After it, this rank is still in the
    /// call, because the others count on its part. Its next collective call must be `all_gather` again, with a limit
    /// or without: it continues the same call, with the bytes that were given first.
    ///
    /// An implementation need not support this. The default returns an [`Error::InvalidArgument`] that says so.
    fn all_gather_timeout(&self, bytes: &[u8], timeout: Duration) -> Result<Vec<Vec<u8>>> {
        let _ = bytes;
        Err(Error::InvalidArgument(format!(
            "this bootstrap has no time-out for collective calls (all_gather, {timeout:?}): call all_gather"
        )))
    }

    /// Waits like [`barrier`](Self::barrier), for at most `timeout`.
    ///
    /// [`Error::Timeout`] names the missing ranks, as far as they are known here. After it, this rank is still in the
    /// barrier. Its next collective call must be `barrier` again, with a limit or without: it continues the same
    /// barrier.
    ///
    /// An implementation need not support this. The default returns an [`Error::InvalidArgument`] that says so.
    ///
    /// ```
    /// use std::time::Duration;
    /// # use mscclpp_bootstrap::{Bootstrap, Error, LocalBootstrap};
    ///
    /// let ranks = LocalBootstrap::group(2);
    /// let error = ranks[0].barrier_timeout(Duration::from_millis(10)).unwrap_err();
    /// assert!(matches!(error, Error::Timeout { missing, .. } if missing == [1]));
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| ranks[1].barrier());
    ///     ranks[0].barrier() // the same barrier
    /// })?;
    /// # Ok::<(), Error>(())
    /// ```
    fn barrier_timeout(&self, timeout: Duration) -> Result<()> {
        Err(Error::InvalidArgument(format!(
            "this bootstrap has no time-out for collective calls (barrier, {timeout:?}): call barrier"
        )))
    }

    /// Returns when all the named ranks have called it with the same set. This rank must be among them. The order of
    /// the ranks does not matter. Different groups are independent. A group has one such call at a time.
    fn group_barrier(&self, ranks: &[usize]) -> Result<()>;

    /// Replaces `bytes` on all ranks by the bytes of rank `root`.
    fn broadcast(&self, bytes: &mut Vec<u8>, root: usize) -> Result<()>;

    /// Returns why the job failed, if it has.
    fn failure(&self) -> Option<Error>;

    /// Calls `hook` once when a rank is lost or the job is aborted; at once if that has happened already.
    ///
    /// The call comes from a thread that this crate makes for it, so the hook may block, and may drop the bootstrap.
    /// When a bootstrap is dropped, its hooks are not called any more.
    fn on_failure(&self, hook: FailureHook);

    /// Fails every pending and later call of all ranks with [`Error::Aborted`].
    ///
    /// Waits at most one second, until the notice is on its way. Does nothing if the job has failed already.
    fn abort(&self, reason: &str);
}
