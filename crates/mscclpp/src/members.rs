//! The state that a communicator shares with its pendings: the job, and the connections that fail with it.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use mscclpp_bootstrap::{Bootstrap, Error as BootstrapError};
use mscclpp_core::{
    Connection, Context, DeviceType, Error as CoreError, RegisteredMemory, Report, WeakConnection,
};
use mscclpp_gpu::fork::Origin;
use parking_lot::Mutex;

use crate::{Error, Result, receive_queue::ReceiveQueue};

/// The longest time that an error about one rank waits for the news that another rank has died.
const NEWS: Duration = Duration::from_secs(1);

pub(crate) struct Members {
    bootstrap: Arc<dyn Bootstrap>,
    origin: Origin,
    log_waits_after: Duration,
    queues: Mutex<Queues>,
    known: Mutex<JobConnections>,
    /// The number of times that this rank has settled with each peer, and the last number that came from the peer.
    settled: Mutex<HashMap<usize, (u64, u64)>>,
}

/// The queues of received messages, by peer and tag.
#[derive(Default)]
struct Queues {
    all: HashMap<(usize, u32), Arc<ReceiveQueue>>,
    /// Those that nobody uses are forgotten when there are as many: a program may take a new tag for each thing that it sets up.
    sweep_at: usize,
}

/// A connection is either failed by `failure`'s setting or, coming later, by its own entry: both look at the other
/// under the lock.
#[derive(Default)]
struct JobConnections {
    failure: Option<CoreError>,
    connections: Vec<Entry>,
    /// The number of entries at which closed connections are removed.
    sweep_at: usize,
}

struct Entry {
    connection: WeakConnection,
    /// The peer and the tag of the connection, if this communicator made it.
    made_for: Option<(usize, u32)>,
}

impl Members {
    /// Watches the job: when it fails, the connections fail with it.
    pub(crate) fn new(bootstrap: Arc<dyn Bootstrap>, log_waits_after: Duration) -> Arc<Self> {
        let (queues, known, settled) = (Mutex::default(), Mutex::default(), Mutex::default());
        let origin = Origin::here();
        let members = Arc::new(Self { bootstrap, origin, log_waits_after, queues, known, settled });
        let weak = Arc::downgrade(&members);
        members.bootstrap.on_failure(Box::new(move |error| {
            if let Some(members) = weak.upgrade() {
                members.fail(&in_core_terms(error));
            }
        }));
        members
    }

    /// Checks that the calling process made this, and is no fork of it: in a fork, waits of other threads would go on for
    /// ever.
    pub(crate) fn check_process(&self) -> Result<()> {
        Ok(self.origin.check()?)
    }

    pub(crate) fn bootstrap(&self) -> &Arc<dyn Bootstrap> {
        &self.bootstrap
    }

    /// The time after which a wait for a peer is first logged.
    pub(crate) fn log_waits_after(&self) -> Duration {
        self.log_waits_after
    }

    pub(crate) fn receive_queue(&self, peer: usize, tag: u32) -> Arc<ReceiveQueue> {
        let mut queues = self.queues.lock();
        if queues.all.len() >= queues.sweep_at {
            // Who has one now has cloned it under this lock.
            queues.all.retain(|_, queue| Arc::strong_count(queue) > 1 || !queue.is_empty());
            queues.sweep_at = 2 * queues.all.len() + 1024;
        }
        let new = || Arc::new(ReceiveQueue::new(peer, tag));
        Arc::clone(queues.all.entry((peer, tag)).or_insert_with(new))
    }

    /// Counts this rank's next [`Communicator::settle`](crate::Communicator::settle) with `peer`, and returns its number.
    pub(crate) fn settles(&self, peer: usize) -> u64 {
        let mut settled = self.settled.lock();
        let (own, _) = settled.entry(peer).or_default();
        *own += 1;
        *own
    }

    /// Whether `peer` has settled at least `number` times, by the numbers that it sent before and by `theirs`, if one has
    /// come now.
    pub(crate) fn has_settled(&self, peer: usize, number: u64, theirs: Option<u64>) -> bool {
        let mut settled = self.settled.lock();
        let (_, last) = settled.entry(peer).or_default();
        *last = theirs.map_or(*last, |theirs| theirs.max(*last));
        *last >= number
    }

    /// Makes the connection fail with the job from now on.
    pub(crate) fn adopt(&self, connection: &Connection, made_for: Option<(usize, u32)>) {
        let failure = {
            let mut known = self.known.lock();
            if known.connections.iter().any(|entry| entry.connection.is(connection)) {
                return;
            }
            if known.connections.len() >= known.sweep_at {
                known.connections.retain(|entry| !entry.connection.is_closed());
                known.sweep_at = 2 * known.connections.len() + 16;
            }
            known.connections.push(Entry { connection: connection.downgrade(), made_for });
            known.failure.clone()
        };
        if let Some(failure) = failure {
            connection.fail(failure);
        }
    }

    pub(crate) fn made_for(&self, connection: &Connection) -> Option<(usize, u32)> {
        self.known.lock().connections.iter().find(|entry| entry.connection.is(connection))?.made_for
    }

    /// Returns the open connections of the job. The caller drops them without the lock, for the reason given in
    /// `device_towards`.
    pub(crate) fn connections(&self) -> Vec<Connection> {
        self.known.lock().connections.iter().filter_map(|entry| entry.connection.upgrade()).collect()
    }

    /// Returns the device of this rank that maps memory of `peer`: that of a connection to it, or of another connection.
    fn device_towards(&self, peer: usize) -> Option<usize> {
        let open = |entry: &Entry| Some((entry.connection.upgrade()?, entry.made_for));
        // They are dropped without the lock: this may become the last owner of one, and closing waits for copies.
        let connections: Vec<_> = self.known.lock().connections.iter().filter_map(open).collect();
        let device = |(connection, _): &(Connection, Option<(usize, u32)>)| {
            let device = connection.local_device();
            device.id.filter(|_| device.kind == DeviceType::Gpu)
        };
        let mut to_peer =
            connections.iter().filter(|(_, made_for)| made_for.is_some_and(|(to, _)| to == peer));
        to_peer.find_map(device).or_else(|| connections.iter().find_map(device))
    }

    /// Maps memory of `peer`, so that it has an address, if a transport can. A failure is only logged: a later use of the
    /// memory reports it.
    pub(crate) fn map(&self, context: &Context, memory: &RegisteredMemory, peer: usize) {
        if !context.may_map(memory) {
            return;
        }
        let gpu = || match self.device_towards(peer) {
            Some(id) => context.gpu(id),
            None => context.gpu(context.platform()?.current_gpu()?.id()),
        };
        if let Err(error) = gpu().and_then(|gpu| context.map_memory(memory, &gpu)) {
            tracing::debug!(
                target: "mscclpp::conn", peer, bytes = memory.size(), error = %Report(&error),
                "a memory that was received has no address here"
            );
        }
    }

    /// Fails all connections, and with them their semaphores, once.
    pub(crate) fn fail(&self, error: &CoreError) {
        if !self.origin.is_here() {
            return;
        }
        let connections: Vec<Connection> = {
            let mut known = self.known.lock();
            if known.failure.is_some() {
                return;
            }
            known.failure = Some(error.clone());
            known.connections.iter().filter_map(|entry| entry.connection.upgrade()).collect()
        };
        tracing::warn!(
            target: "mscclpp::conn", rank = self.bootstrap.rank(), connections = connections.len(), error = %Report(error),
            "the job failed, and its connections with it"
        );
        // All connections fail before any is dropped: this may have become the last owner of one, and closing waits for
        // copies.
        for connection in &connections {
            connection.fail(error.clone());
        }
    }

    /// Returns the failure of the job if it may be the cause of `error`, else `error`.
    ///
    /// When a rank dies, others give up because of it, and this rank may notice their end first.
    pub(crate) fn explain(&self, error: Error) -> Error {
        if !error.may_follow_a_loss() {
            return error;
        }
        let until = Instant::now() + NEWS;
        loop {
            match self.bootstrap.failure() {
                Some(failure) => return failure.into(),
                None if Instant::now() >= until => return error,
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}

fn in_core_terms(error: &BootstrapError) -> CoreError {
    match error {
        BootstrapError::PeerLost { rank, detail } => {
            CoreError::PeerLost { peer: format!("rank {rank}"), reason: detail.clone() }
        }
        BootstrapError::Aborted { rank, reason } => {
            CoreError::Aborted { reason: format!("by rank {rank}: {reason}") }
        }
        other => CoreError::Aborted { reason: format!("the job failed: {other}") },
    }
}

#[cfg(test)]
mod tests {
    use mscclpp_bootstrap::LocalBootstrap;

    use super::*;

    #[test]
    fn a_program_that_takes_a_new_tag_for_each_thing_does_not_pay_for_the_old_ones() {
        let bootstrap = Arc::new(LocalBootstrap::group(1).remove(0));
        let members = Members::new(bootstrap, Duration::MAX);
        let in_use = members.receive_queue(0, 7);
        for tag in 100..100_000 {
            members.receive_queue(0, tag);
        }
        assert!(members.queues.lock().all.len() < 4000);
        assert!(Arc::ptr_eq(&in_use, &members.receive_queue(0, 7)));
    }

    #[test]
    fn a_peer_that_has_failed_is_explained_by_the_end_of_the_job() {
        let bootstrap = Arc::new(LocalBootstrap::group(1).remove(0));
        let members = Members::new(bootstrap.clone(), Duration::MAX);
        let told =
            CoreError::PeerFailed { peer: "rank 1".to_owned(), reason: "proxy: rank 2 is gone".to_owned() };
        bootstrap.abort("rank 2 is gone");
        let explained = members.explain(told.into());
        assert!(matches!(explained, Error::Bootstrap(_)), "{explained}");
    }
}
