//! A job whose ranks are threads of one process.

use std::sync::Arc;
use std::time::Duration;

use crate::collective::Carrier;
use crate::inbox::{Channel, Inbox, Stream, Wait};
use crate::member::{Member, calls_of_members};
use crate::{Bootstrap, Error, FailureHook, Result};

/// One of `n` ranks in one process that are connected by queues, without sockets or threads of its own.
///
/// It is for tests, and for programs that drive several devices from one process.
///
/// ```
/// # use mscclpp_bootstrap::{Bootstrap, LocalBootstrap};
///
/// std::thread::scope(|scope| {
///     for bootstrap in LocalBootstrap::group(4) {
///         scope.spawn(move || {
///             let mine = [bootstrap.rank() as u8];
///             let all = bootstrap.all_gather(&mine).unwrap();
///             assert_eq!(all, [[0], [1], [2], [3]]);
///         });
///     }
/// });
/// ```
pub struct LocalBootstrap {
    member: Member,
    /// The inboxes of all ranks.
    inboxes: Arc<[Arc<Inbox>]>,
}

impl LocalBootstrap {
    /// Makes a job of `n` ranks; the i-th is rank i. Empty if `n` is 0.
    pub fn group(n: usize) -> Vec<Self> {
        let inboxes: Arc<[_]> = (0..n).map(|_| Arc::new(Inbox::default())).collect();
        let rank = |rank| Self {
            member: Member::new(rank, n, Arc::clone(&inboxes[rank])),
            inboxes: Arc::clone(&inboxes),
        };
        (0..n).map(rank).collect()
    }

    /// Sets the time after which a waiting call of this rank is first logged: ten seconds if not set,
    /// [`Duration::MAX`] for never. See [`Bootstrap`].
    #[must_use]
    pub fn log_waits_after(mut self, first: Duration) -> Self {
        self.member.log_after = first;
        self
    }
}

impl Bootstrap for LocalBootstrap {
    calls_of_members!();

    fn n_ranks_per_node(&self) -> usize {
        self.member.n_ranks
    }

    fn n_ranks_per_ipc_domain(&self) -> usize {
        self.member.n_ranks
    }

    fn send(&self, bytes: &[u8], peer: usize, tag: u32) -> Result<()> {
        self.member.check_peer(peer)?;
        if let Some(error) = self.member.inbox.failure().or_else(|| self.member.inbox.gone(peer)) {
            return Err(error);
        }
        self.post(peer, Channel::User, tag.into(), bytes.to_vec());
        Ok(())
    }
}

impl Carrier for LocalBootstrap {
    fn rank(&self) -> usize {
        self.member.rank
    }

    fn n_ranks(&self) -> usize {
        self.member.n_ranks
    }

    fn post(&self, peer: usize, channel: Channel, tag: u64, bytes: Vec<u8>) {
        self.inboxes[peer].deliver(Stream { peer: self.member.rank, channel, tag }, bytes);
    }

    fn take(&self, stream: Stream, wait: &mut Wait, what: &dyn Fn() -> String) -> Result<Option<Vec<u8>>> {
        self.member.inbox.take(stream, wait, what)
    }

    fn fail(&self, error: &Error) {
        if self.member.check_process().is_err() {
            return;
        }
        for inbox in self.inboxes.iter() {
            inbox.fail(error);
        }
    }
}

impl Drop for LocalBootstrap {
    fn drop(&mut self) {
        if self.member.check_process().is_err() {
            return;
        }
        let rank = self.member.rank;
        if std::thread::panicking() {
            self.abort("its thread panicked");
        }
        for inbox in self.inboxes.iter() {
            inbox.peer_gone(rank, Error::PeerClosed { rank });
        }
        self.member.inbox.retire();
    }
}
