//! A rank whose job has formed.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::collective::Carrier;
use crate::inbox::{Channel, Sending, Stream, Wait};
use crate::job::{Command, OPEN_AFTER};
use crate::member::{Member, calls_of_members};
use crate::tcp::handle::ReactorHandle;
use crate::{Bootstrap, Error, FailureHook, LOG, Result};

/// The longest time that `abort` waits for the notice to be on its way.
const ABORT_LIMIT: Duration = Duration::from_secs(1);

/// A rank of a job whose processes are connected by TCP.
///
/// A program makes one from a [`UniqueId`](crate::UniqueId) that rank 0's process created, or from the address at
/// which rank 0 is to listen:
///
/// ```
/// use std::time::Duration;
/// # use mscclpp_bootstrap::{Bootstrap, TcpBootstrap, UniqueId};
///
/// let id = TcpBootstrap::create_unique_id()?; // in the process of rank 0 ...
/// let bytes = id.to_bytes(); // ... and from there to the others, by any means.
///
/// let ranks: Vec<_> = (0..2)
///     .map(|rank| {
///         std::thread::spawn(move || {
///             let id = UniqueId::from_bytes(&bytes)?;
///             let bootstrap = TcpBootstrap::new(rank, 2, &id, Duration::from_secs(30))?;
///             bootstrap.all_gather(&[rank as u8])
///         })
///     })
///     .collect();
/// for rank in ranks {
///     assert_eq!(rank.join().unwrap()?, [[0], [1]]);
/// }
/// # Ok::<(), mscclpp_bootstrap::Error>(())
/// ```
///
/// # Resources
/// One thread, an eventfd, an epoll instance, a listener and at most three connections, as long as only collectives
/// are used; one more connection for each rank that messages are exchanged with directly. A job of one rank has only
/// the eventfd.
///
/// # Leaving
/// Dropping says goodbye: messages that were sent still arrive, and calls of other ranks that need this one fail with
/// [`Error::PeerClosed`]. It takes at most a few seconds if others do not take their bytes, and at most half a minute if
/// they take them slowly. Dropping while the thread panics aborts the job instead. A process that ends without dropping
/// counts as lost for the others. In a forked child calls fail with [`Error::Forked`], and dropping does nothing.
pub struct TcpBootstrap {
    pub(super) member: Member,
    pub(super) handle: Arc<ReactorHandle>,
    pub(super) thread: Option<JoinHandle<()>>,
    pub(super) timeout: Duration,
}

impl TcpBootstrap {
    /// Returns the generation of the job: 1, unless ranks of it were replaced by means of [`Job`](crate::Job).
    pub fn generation(&self) -> u64 {
        self.handle.table().map_or(1, |table| table.generation())
    }

    /// Returns whether all ranks are connected. A rank alone has no thread, and nobody to connect to.
    pub(super) fn has_formed(&self) -> bool {
        self.thread.is_none() || self.handle.is_formed()
    }
}

impl Bootstrap for TcpBootstrap {
    calls_of_members!();

    fn n_ranks_per_node(&self) -> usize {
        self.handle.table().map_or(1, |table| table.per_node())
    }

    fn n_ranks_per_ipc_domain(&self) -> usize {
        self.handle.table().map_or(1, |table| table.per_domain())
    }

    fn send(&self, bytes: &[u8], peer: usize, tag: u32) -> Result<()> {
        self.member.check_peer(peer)?;
        let inbox = &self.member.inbox;
        inbox.forget_retryable(peer);
        if let Some(error) = inbox.failure().or_else(|| inbox.gone(peer)) {
            return Err(error);
        }
        if peer == self.member.rank {
            self.post(peer, Channel::User, tag.into(), bytes.to_vec());
            return Ok(());
        }
        let sending = Arc::<Sending>::default();
        let stream = Stream { peer, channel: Channel::User, tag: tag.into() };
        let written = Some(Arc::clone(&sending));
        self.handle.command(Command::Send { stream, bytes: bytes.to_vec(), written });
        let what = || format!("rank {peer}: send of {} bytes, tag {tag}", bytes.len());
        let mut wait = self.member.wait_for(None);
        inbox.wait_sent(peer, &mut wait, &what, &sending)
    }
}

impl Carrier for TcpBootstrap {
    fn rank(&self) -> usize {
        self.member.rank
    }

    fn n_ranks(&self) -> usize {
        self.member.n_ranks
    }

    fn post(&self, peer: usize, channel: Channel, tag: u64, bytes: Vec<u8>) {
        if peer == self.member.rank {
            self.member.inbox.deliver(Stream { peer, channel, tag }, bytes);
        } else {
            let stream = Stream { peer, channel, tag };
            self.handle.command(Command::Send { stream, bytes, written: None });
        }
    }

    fn take(&self, stream: Stream, wait: &mut Wait, what: &dyn Fn() -> String) -> Result<Option<Vec<u8>>> {
        let inbox = &self.member.inbox;
        if stream.peer == self.member.rank || self.thread.is_none() {
            return inbox.take(stream, wait, what);
        }
        inbox.forget_retryable(stream.peer);
        let mut before_opening = wait.cut_at(Instant::now() + OPEN_AFTER);
        if let Some(message) = inbox.take(stream, &mut before_opening, what)? {
            return Ok(Some(message));
        }
        wait.go_on_after(before_opening);
        // This is also done when time is up: a caller that asks again and again must learn in the end that the peer
        // has left.
        self.handle.command(Command::Open { peer: stream.peer });
        inbox.take(stream, wait, what)
    }

    fn fail(&self, error: &Error) {
        if self.member.check_process().is_err() {
            return;
        }
        if self.thread.is_none() {
            self.member.inbox.fail(error);
            return;
        }
        self.handle.command(Command::Fail(error.clone()));
        // The thread passes the failure on to the others before it makes it known here.
        let mut wait = Wait::quiet(Instant::now() + ABORT_LIMIT);
        let what = || "the end of the job".to_owned();
        if let Ok(false) = self.member.inbox.wait_until(&mut wait, &what, || self.handle.is_finished()) {
            self.member.inbox.fail(error);
        }
    }
}

impl Drop for TcpBootstrap {
    fn drop(&mut self) {
        if self.member.check_process().is_err() {
            // The rank is the parent process. The handle of a thread that this process does not have must not be
            // dropped.
            std::mem::forget(self.thread.take());
            return;
        }
        if std::thread::panicking() {
            self.abort("its thread panicked");
        }
        self.member.inbox.retire();
        let Some(thread) = self.thread.take() else { return };
        self.handle.close();
        if self.handle.is_finished() {
            // The thread has carried out its last action; a panic in it has been reported as a failure.
            let _ = thread.join();
        } else {
            tracing::warn!(target: LOG, rank = self.member.rank, "the bootstrap's thread does not end; left behind");
        }
    }
}

mscclpp_os::debug_fields!(TcpBootstrap, |this|
    rank: this.member.rank, n_ranks: this.member.n_ranks, timeout: this.timeout, ..
);
