//! The trait through which everything above sees a job.

use std::time::Duration;

use crate::{Error, Result};

/// Called when the job fails; see [`Bootstrap::on_failure`].
pub type FailureHook = Box<dyn Fn(&Error) + Send + Sync>;

/// A job of `n_ranks` ranks that can exchange bytes.
///
/// All methods may be called from any thread. Collective calls ([`all_gather`](Self::all_gather),
/// [`barrier`](Self::barrier), [`broadcast`](Self::broadcast)) must be made by every rank in the same order; calls of
/// several threads of one rank take their turn, so their order must then be arranged by the caller.
///
/// # What ends a wait
/// Calls that wait end with an error when any rank is lost ([`Error::PeerLost`]), when any rank aborts
/// ([`Error::Aborted`]), and when a rank that the call needs has left ([`Error::PeerClosed`]). The first two are
/// sticky: all later calls fail with the same error.
///
/// Without a time-out they wait for as long as it takes, for a rank that is slow or stuck may still come. After ten
/// seconds, and then ever more seldom, a wait is logged with what it is for: a warning of target `mscclpp::wait`, on
/// standard error in a process without a log subscriber.
pub trait Bootstrap: Send + Sync {
    /// The number of this rank, from 0.
    fn rank(&self) -> usize;

    /// The number of ranks in the job.
    fn n_ranks(&self) -> usize;

    /// The number of ranks on this rank's host, itself included.
    fn n_ranks_per_node(&self) -> usize;

    /// The number of ranks whose devices this rank's devices may reach by IPC, itself included. Those on one host,
    /// unless an IPC domain was given when the bootstrap was made.
    fn n_ranks_per_ipc_domain(&self) -> usize;

    /// Sends a message of any size, also an empty one, to a rank, which may be this one.
    ///
    /// Messages of one (peer, tag) arrive in the order sent; different tags are independent. Returns when the
    /// bytes are with the system, not when the peer has received them. The peer need not be receiving.
    fn send(&self, bytes: &[u8], peer: usize, tag: u32) -> Result<()>;

    /// Waits for the next message from `peer` with this tag.
    ///
    /// Messages sent before the peer left are still delivered.
    fn recv(&self, peer: usize, tag: u32) -> Result<Vec<u8>>;

    /// Like [`recv`](Self::recv), with a limit. On [`Error::Timeout`] nothing was consumed; the call can be repeated.
    fn recv_timeout(&self, peer: usize, tag: u32, timeout: Duration) -> Result<Vec<u8>>;

    /// Gives every rank what every rank contributed, in the order of ranks. Contributions may differ in length.
    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// Returns when all ranks have called it.
    fn barrier(&self) -> Result<()>;

    /// Like [`all_gather`](Self::all_gather), with a limit.
    ///
    /// On [`Error::Timeout`], which names the missing ranks as far as they are known here, this rank is still in the
    /// call, for the others count on its part: its next collective call must be `all_gather` again, with a limit or
    /// without. That goes on with this one, and with the bytes that were given to it first.
    ///
    /// A bootstrap need not have it: what is provided here is [`Error::InvalidArgument`], which says so.
    fn all_gather_timeout(&self, bytes: &[u8], timeout: Duration) -> Result<Vec<Vec<u8>>> {
        let _ = bytes;
        Err(Error::InvalidArgument(format!(
            "this bootstrap has no time-out for collective calls (all_gather, {timeout:?}): call all_gather"
        )))
    }

    /// Like [`barrier`](Self::barrier), with a limit.
    ///
    /// On [`Error::Timeout`], which names the missing ranks as far as they are known here, this rank is still in the
    /// barrier: its next collective call must be `barrier` again, with a limit or without. That goes on with this one.
    ///
    /// A bootstrap need not have it: what is provided here is [`Error::InvalidArgument`], which says so.
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

    /// Returns when all the named ranks have called it with the same set; this rank must be among them. The order of
    /// the names does not matter. Different groups are independent; of one group, one call at a time.
    fn group_barrier(&self, ranks: &[usize]) -> Result<()>;

    /// Replaces `bytes` on all ranks by what `root` has in it.
    fn broadcast(&self, bytes: &mut Vec<u8>, root: usize) -> Result<()>;

    /// Why the job failed, if it has.
    fn failure(&self) -> Option<Error>;

    /// Has `hook` called once when a rank is lost or the job is aborted; at once if that is already so.
    ///
    /// The call comes from a thread of this crate made for it, so the hook may block, and may drop the bootstrap.
    /// A bootstrap that is dropped forgets its hooks.
    fn on_failure(&self, hook: FailureHook);

    /// Fails every pending and later call of all ranks with [`Error::Aborted`].
    ///
    /// Waits at most a second, for the notice to be on its way. Does nothing when the job has failed already.
    fn abort(&self, reason: &str);
}
