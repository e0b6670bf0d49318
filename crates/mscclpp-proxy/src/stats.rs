//! Statistics of a service: its work so far, and the operations that it waits for.

use std::{sync::atomic::Ordering, time::Duration};

use mscclpp_core::Transport;
use mscclpp_gpu::DevicePtr;

use crate::{
    Error, FifoPosition, ProxyService, Result, SemaphoreId,
    handle::DirectCount,
    state::{SemaphoreEntry, ServiceState},
};

/// The work of a [`ProxyService`] so far. The fields are read one after the other, at nearly the same time.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ServiceStats {
    /// The number of triggers that were carried out.
    pub triggers: u64,
    /// The traffic of all connections together.
    pub total: TrafficStats,
    /// The number of triggers in the FIFO, including those being pushed; `None` if the device does not answer.
    pub queue_depth: Option<u64>,
    /// The oldest flush that a trigger asked for and that is not complete.
    pub oldest_pending_flush: Option<PendingFlush>,
    /// The error with which the service failed, if it failed.
    pub last_error: Option<Error>,
    /// One entry for each connection, in the order in which they were added.
    pub connections: Vec<ConnectionStats>,
}

/// The traffic over a connection, through the FIFO and directly.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrafficStats {
    /// Puts that the proxy carried out.
    pub data: u64,
    /// The bytes of these puts.
    pub bytes: u64,
    /// Signals that the proxy carried out.
    pub flags: u64,
    /// Flushes that the proxy carried out.
    pub syncs: u64,
    /// Puts that threads of kernels did themselves, directly.
    pub direct_puts: u64,
    /// The bytes of these puts.
    pub direct_bytes: u64,
    /// Signals that threads of kernels sent themselves, directly.
    pub direct_signals: u64,
}

/// The state of one connection of a service.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ConnectionStats {
    /// The connection's label.
    pub peer: String,
    /// The connection's transport.
    pub transport: Transport,
    /// The traffic over the connection; the counts of direct operations are 0 if the device does not answer.
    pub traffic: TrafficStats,
    /// The connection's triggers so far were pushed at positions below this; `None` if the device does not answer.
    pub pushed: Option<FifoPosition>,
    /// The connection's triggers at positions below this were taken out of the FIFO.
    pub taken: FifoPosition,
    /// Completion was asked for up to this position.
    pub asked: FifoPosition,
    /// The number of operations of taken triggers that wait for room at the transport.
    pub waiting: u64,
    /// The connection's triggers at positions below this are complete at the peer; `None` if the device does not
    /// answer.
    pub completed: Option<FifoPosition>,
    /// The oldest of the connection's flushes that is not complete.
    pub oldest_pending_flush: Option<PendingFlush>,
}

/// A flush that is not complete.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PendingFlush {
    /// The label of the flush's peer.
    pub peer: String,
    /// The position of the flush's trigger.
    pub position: FifoPosition,
    /// The time that the proxy has waited for it. If more than 32 flushes are pending, this is about the oldest of
    /// the last 32.
    pub age: Duration,
}

/// The state of a semaphore: how many signals have come, and how many are waited for.
pub(crate) struct SemaphoreState {
    pub(crate) id: SemaphoreId,
    /// The number of the semaphore's connection.
    pub(crate) connection: u32,
    /// The number of signals that have come.
    pub(crate) arrived: u64,
    /// The number of signals that waits have claimed.
    pub(crate) expected: u64,
}

impl ProxyService {
    /// Returns the service's work so far. Asks the device, but waits for no kernel; blocks for at most a second, or
    /// ten if the device is simulated. Meant for people and monitoring, not for the path of messages. In a forked
    /// child, only the error that says so is set.
    #[must_use]
    pub fn stats(&self) -> ServiceStats {
        match self.proxy.here() {
            Ok(()) => self.state.stats(self.health().err()),
            Err(forked) => ServiceStats { last_error: Some(forked), ..ServiceStats::default() },
        }
    }
}

impl ServiceState {
    pub(crate) fn stats(&self, last_error: Option<Error>) -> ServiceStats {
        let mut at = vec![self.fifo.head()];
        for connection in self.connections.iter() {
            at.extend((0..4).map(|word| connection.last_pushed.add(8 * word)));
            at.push(connection.completed.ptr());
        }
        let tail = self.fifo.tail();
        // SAFETY: these are words of the FIFO and of the connections, which `self` keeps; a service whose device does
        // not answer is not used any more.
        let words = unsafe { self.probe.read(&at) }.ok();
        let (head, rest) = match words.as_deref() {
            Some([head, rest @ ..]) => (Some(*head), rest),
            _ => (None, [].as_slice()),
        };
        let mut words = rest.chunks_exact(5);
        let connections: Vec<_> = self
            .connections
            .iter()
            .map(|connection| {
                let words = words.next();
                let word = |n: usize| words.map(|words| words[n]);
                let direct = |what: DirectCount| word(what as usize).unwrap_or(0);
                let count = |word: &std::sync::atomic::AtomicU64| word.load(Ordering::Relaxed);
                let counts = &connection.counts;
                let (peer, completed) = (connection.connection.label(), word(4).map(FifoPosition::from_raw));
                let pending = completed.and_then(|completed| counts.oldest_flush(completed));
                ConnectionStats {
                    transport: connection.connection.transport(),
                    traffic: TrafficStats {
                        data: count(&counts.data),
                        bytes: count(&counts.bytes),
                        flags: count(&counts.flags),
                        syncs: count(&counts.syncs),
                        direct_puts: direct(DirectCount::Puts),
                        direct_bytes: direct(DirectCount::Bytes),
                        direct_signals: direct(DirectCount::Signals),
                    },
                    pushed: word(0).map(FifoPosition::from_raw),
                    taken: FifoPosition::from_raw(count(&counts.taken)),
                    asked: FifoPosition::from_raw(count(&counts.asked)),
                    waiting: count(&counts.waiting),
                    completed,
                    oldest_pending_flush: pending.map(|(position, age)| PendingFlush {
                        peer: peer.clone(),
                        position,
                        age,
                    }),
                    peer,
                }
            })
            .collect();
        let pending = connections.iter().filter_map(|connection| connection.oldest_pending_flush.clone());
        ServiceStats {
            triggers: tail.raw(),
            total: connections.iter().map(|connection| connection.traffic).sum(),
            queue_depth: head.map(|head| head.saturating_sub(tail.raw())),
            oldest_pending_flush: pending.max_by_key(|flush| flush.age),
            last_error,
            connections,
        }
    }

    /// Returns the state of all semaphores. Asks the device, as [`ProxyService::stats`] does.
    pub(crate) fn semaphore_states(&self) -> Result<Vec<SemaphoreState>> {
        let entries: Vec<&SemaphoreEntry> = self.semaphores.iter().collect();
        let words = |entry: &&SemaphoreEntry| {
            let token = DevicePtr::from_ptr(entry.handle.inbound_token);
            [token, token.add(8), DevicePtr::from_ptr(entry.handle.expected_inbound_token)]
        };
        let at: Vec<_> = entries.iter().flat_map(words).collect();
        // SAFETY: the words of semaphores that `self` keeps, in their device's memory.
        let values = unsafe { self.probe.read(&at)? };
        let states = (0..).map(SemaphoreId::from_raw).zip(&entries).zip(values.chunks_exact(3));
        Ok(states
            .map(|((id, entry), values)| SemaphoreState {
                id,
                connection: entry.connection,
                // The peer writes one of the two words, and may write anything.
                arrived: values[0].wrapping_add(values[1]),
                expected: values[2],
            })
            .collect())
    }
}

impl std::iter::Sum for TrafficStats {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::default(), |a, b| Self {
            data: a.data + b.data,
            bytes: a.bytes + b.bytes,
            flags: a.flags + b.flags,
            syncs: a.syncs + b.syncs,
            direct_puts: a.direct_puts + b.direct_puts,
            direct_bytes: a.direct_bytes + b.direct_bytes,
            direct_signals: a.direct_signals + b.direct_signals,
        })
    }
}
