//! The parts of a rank that are the same for every kind of job: checks of arguments, collectives, failure.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mscclpp_os::waiting::FIRST_LOG;
use parking_lot::{Mutex, MutexGuard};

use crate::collective::call::{Operation, contribution, contributions};
use crate::collective::exchange::broken;
use crate::collective::{Carrier, Collectives, group_barrier};
use crate::inbox::{Channel, Inbox, Stream, Wait};
use crate::protocol::tree;
use crate::{Error, FailureHook, Result};

pub(crate) struct Member {
    pub(crate) rank: usize,
    pub(crate) n_ranks: usize,
    pub(crate) inbox: Arc<Inbox>,
    /// The process that made the rank.
    process: u32,
    /// The time after which a wait is first logged.
    pub(crate) log_after: Duration,
    collectives: Mutex<Collectives>,
}

impl Member {
    pub(crate) fn new(rank: usize, n_ranks: usize, inbox: Arc<Inbox>) -> Self {
        let collectives = Mutex::default();
        let process = std::process::id();
        Self { rank, n_ranks, inbox, process, log_after: FIRST_LOG, collectives }
    }

    /// Checks that the calling process made the rank. A forked child has no thread that would carry anything out, and
    /// another thread of its parent may have held the inbox's lock.
    pub(crate) fn check_process(&self) -> Result<()> {
        let child = std::process::id();
        if child == self.process { Ok(()) } else { Err(Error::Forked { parent: self.process, child }) }
    }

    pub(crate) fn failure(&self) -> Option<Error> {
        self.check_process().err().or_else(|| self.inbox.failure())
    }

    pub(crate) fn on_failure(&self, hook: FailureHook) {
        if self.check_process().is_ok() {
            self.inbox.on_failure(hook);
        }
    }

    pub(crate) fn check_peer(&self, peer: usize) -> Result<()> {
        self.check_process()?;
        if peer < self.n_ranks {
            Ok(())
        } else {
            Err(Error::InvalidArgument(format!("there is no rank {peer} in a job of {}", self.n_ranks)))
        }
    }

    /// Makes a wait of this rank for at most `timeout`, beginning now.
    pub(crate) fn wait_for(&self, timeout: Option<Duration>) -> Wait {
        Wait::of_rank(self.rank, timeout, self.log_after)
    }

    /// Runs a collective call, for at most `timeout`, to which this rank contributes `own`. `read` reads the result.
    /// Calls of several threads take turns. A failure that leaves ranks out of step with each other ends the job for
    /// all.
    fn collective<T>(
        &self,
        carrier: &impl Carrier,
        operation: Operation,
        timeout: Option<Duration>,
        own: impl FnOnce() -> Vec<u8>,
        read: impl FnOnce(Vec<u8>) -> Result<T>,
    ) -> Result<T> {
        self.check_process()?;
        let mut wait = self.wait_for(timeout);
        let mut collectives = self.turn(operation.name(), &mut wait)?;
        match collectives.call(carrier, &mut wait, operation, own).and_then(read) {
            Err(error @ (Error::Mismatch { .. } | Error::PeerLost { .. })) => {
                carrier.fail(&error);
                // Every call reports the failure that came first.
                Err(self.inbox.failure().unwrap_or(error))
            }
            outcome => outcome,
        }
    }

    pub(crate) fn all_gather(
        &self,
        carrier: &impl Carrier,
        bytes: &[u8],
        timeout: Option<Duration>,
    ) -> Result<Vec<Vec<u8>>> {
        let own = || contribution(self.rank, bytes);
        self.collective(carrier, Operation::AllGather, timeout, own, |all| {
            contributions(&all, self.n_ranks)
                .map_err(|error| broken(tree::parent(self.rank).unwrap_or(0), error))
        })
    }

    pub(crate) fn barrier(&self, carrier: &impl Carrier, timeout: Option<Duration>) -> Result<()> {
        self.collective(carrier, Operation::Barrier, timeout, Vec::new, |_| Ok(()))
    }

    pub(crate) fn broadcast(&self, carrier: &impl Carrier, bytes: &mut Vec<u8>, root: usize) -> Result<()> {
        self.check_peer(root)?;
        let own = || if self.rank == root { bytes.clone() } else { Vec::new() };
        *bytes = self.collective(carrier, Operation::Broadcast { root: root as u32 }, None, own, Ok)?;
        Ok(())
    }

    pub(crate) fn receive(
        &self,
        carrier: &impl Carrier,
        peer: usize,
        tag: u32,
        timeout: Option<Duration>,
    ) -> Result<Vec<u8>> {
        self.check_peer(peer)?;
        let stream = Stream { peer, channel: Channel::User, tag: tag.into() };
        let mut wait = self.wait_for(timeout);
        let message = carrier.take(stream, &mut wait, &|| format!("rank {peer}: recv, tag {tag}"))?;
        message.ok_or_else(|| wait.timed_out(format!("recv from rank {peer} with tag {tag}"), vec![peer]))
    }

    /// Returns the next message from `peer` with this tag, if one has come. A search for the peer that has timed out is no
    /// error here: it ended an earlier call, and the peer may still come.
    pub(crate) fn received(&self, peer: usize, tag: u32) -> Result<Option<Vec<u8>>> {
        self.check_peer(peer)?;
        let stream = Stream { peer, channel: Channel::User, tag: tag.into() };
        let mut wait = self.wait_for(Some(Duration::ZERO));
        match self.inbox.take(stream, &mut wait, &|| format!("rank {peer}: try_recv, tag {tag}")) {
            Err(Error::Timeout { .. }) if self.inbox.failure().is_none() => Ok(None),
            outcome => outcome,
        }
    }

    /// Waits until no other thread of this rank is in a collective call.
    fn turn(&self, what: &'static str, wait: &mut Wait) -> Result<MutexGuard<'_, Collectives>> {
        loop {
            let turn = match wait.wake_at() {
                None => Some(self.collectives.lock()),
                Some(at) => self.collectives.try_lock_until(at),
            };
            if let Some(turn) = turn {
                return Ok(turn);
            }
            let now = Instant::now();
            wait.log(now, &|| format!("{what}: another thread of this rank is in a collective call"));
            if wait.is_over(now) {
                let operation =
                    format!("{what}, while another thread of this rank was in a collective call,");
                return Err(wait.timed_out(operation, Vec::new()));
            }
        }
    }

    /// Waits for the named ranks at a barrier.
    pub(crate) fn group_barrier(&self, carrier: &impl Carrier, ranks: &[usize]) -> Result<()> {
        self.check_process()?;
        let mut members = ranks.to_vec();
        members.sort_unstable();
        for pair in members.windows(2) {
            if pair[0] == pair[1] {
                return Err(Error::InvalidArgument(format!(
                    "the group {ranks:?} names rank {} twice",
                    pair[0]
                )));
            }
        }
        members.iter().try_for_each(|&rank| self.check_peer(rank))?;
        if members.binary_search(&self.rank).is_err() {
            return Err(Error::InvalidArgument(format!(
                "rank {} called group_barrier for the group {ranks:?}, which it is not in",
                self.rank
            )));
        }
        if let Some(error) = self.inbox.failure() {
            return Err(error);
        }
        group_barrier(carrier, members, &mut self.wait_for(None))
    }
}

/// Implements the calls of [`Bootstrap`](crate::Bootstrap) that are the same for each [`Carrier`] with a `member`.
macro_rules! calls_of_members {
    () => {
        fn rank(&self) -> usize {
            self.member.rank
        }

        fn n_ranks(&self) -> usize {
            self.member.n_ranks
        }

        fn recv(&self, peer: usize, tag: u32) -> Result<Vec<u8>> {
            self.member.receive(self, peer, tag, None)
        }

        fn recv_timeout(&self, peer: usize, tag: u32, timeout: Duration) -> Result<Vec<u8>> {
            self.member.receive(self, peer, tag, Some(timeout))
        }

        fn try_recv(&self, peer: usize, tag: u32) -> Result<Option<Vec<u8>>> {
            self.member.received(peer, tag)
        }

        fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
            self.member.all_gather(self, bytes, None)
        }

        fn all_gather_timeout(&self, bytes: &[u8], timeout: Duration) -> Result<Vec<Vec<u8>>> {
            self.member.all_gather(self, bytes, Some(timeout))
        }

        fn barrier(&self) -> Result<()> {
            self.member.barrier(self, None)
        }

        fn barrier_timeout(&self, timeout: Duration) -> Result<()> {
            self.member.barrier(self, Some(timeout))
        }

        fn group_barrier(&self, ranks: &[usize]) -> Result<()> {
            self.member.group_barrier(self, ranks)
        }

        fn broadcast(&self, bytes: &mut Vec<u8>, root: usize) -> Result<()> {
            self.member.broadcast(self, bytes, root)
        }

        fn failure(&self) -> Option<Error> {
            self.member.failure()
        }

        fn on_failure(&self, hook: FailureHook) {
            self.member.on_failure(hook);
        }

        fn abort(&self, reason: &str) {
            self.fail(&Error::Aborted { rank: self.member.rank, reason: reason.to_owned() });
        }
    };
}
pub(crate) use calls_of_members;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_that_timed_out_is_no_error_of_who_asks_whether_a_message_has_come() {
        let member = Member::new(0, 2, Arc::default());
        let timed_out = || member.wait_for(None).timed_out("connecting to rank 1".to_owned(), vec![1]);
        member.inbox.peer_gone(1, timed_out());
        assert!(matches!(member.received(1, 7), Ok(None)));
        // The job itself may fail by a time-out of another rank.
        member.inbox.fail(&timed_out());
        assert!(matches!(member.received(1, 7), Err(Error::Timeout { .. })));
    }
}
