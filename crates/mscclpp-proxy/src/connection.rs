//! A connection in a service: the words that tell kernels how far its operations are, and counts.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use mscclpp_core::{Connection, SendQueue};
use mscclpp_gpu::{DevicePtr, Gpu, PinnedBuffer};
use parking_lot::Mutex;

use crate::{FifoPosition, ProxyTrigger, Result, TriggerKind};

/// The bytes of device memory that each connection has: two lines, of which kernels write the first.
pub(crate) const CONNECTION_WORDS: u64 = 256;
/// The offset of the completed position, if the transport stores it.
pub(crate) const COMPLETED: u64 = 128;

/// A connection in a service.
pub(crate) struct ServiceConnection {
    pub(crate) connection: Connection,
    /// The connection's queue, until the proxy's thread takes it at the first trigger.
    pub(crate) queue: Mutex<Option<SendQueue>>,
    /// The address in device memory of the last pushed position and the counts of direct operations.
    pub(crate) last_pushed: DevicePtr,
    pub(crate) completed: Completed,
    pub(crate) counts: Counts,
}

/// The writer of the completed position, and the word it is stored in.
#[derive(Clone)]
pub(crate) enum Completed {
    /// The transport stores it in device memory.
    ByTransport(DevicePtr),
    /// The proxy's thread stores it in the first word.
    ByProxy(PinnedBuffer),
}

impl ServiceConnection {
    /// Opens the connection's queue. `words` are [`CONNECTION_WORDS`] bytes of the device's memory, zeroed.
    pub(crate) fn open(gpu: &Gpu, connection: &Connection, words: DevicePtr) -> Result<Self> {
        let queue = connection.open_queue()?;
        let completed = match queue.stores_completions() {
            true => Completed::ByTransport(words.add(COMPLETED)),
            false => Completed::ByProxy(gpu.allocate_pinned(8)?),
        };
        Ok(Self {
            connection: connection.clone(),
            queue: Mutex::new(Some(queue)),
            last_pushed: words,
            completed,
            counts: Counts::new(),
        })
    }
}

impl Completed {
    /// The address at which kernels find the completed position.
    pub(crate) fn ptr(&self) -> DevicePtr {
        match self {
            Self::ByTransport(word) => *word,
            Self::ByProxy(word) => word.ptr(),
        }
    }
}

/// Counts of the proxy's work for a connection. Only the proxy's thread writes them; others read them at any time.
pub(crate) struct Counts {
    pub(crate) data: AtomicU64,
    pub(crate) flags: AtomicU64,
    pub(crate) syncs: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// 1 + the position of the last trigger.
    pub(crate) taken: AtomicU64,
    /// The value that `taken` had when the transport had last taken everything.
    pub(crate) handed_over: AtomicU64,
    /// The value that the completed position will reach.
    pub(crate) asked: AtomicU64,
    /// Operations that wait for room at the transport.
    pub(crate) waiting: AtomicU64,
    /// The last flushes: 1 + their positions, and the times at which they were asked for, in nanoseconds since
    /// `start`.
    flushes: Box<[[AtomicU64; 2]]>,
    start: Instant,
}

/// How many flushes are remembered, for the age of the oldest that is pending.
const FLUSHES: u64 = 32;

impl Counts {
    fn new() -> Self {
        Self {
            data: AtomicU64::new(0),
            flags: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            handed_over: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            flushes: (0..FLUSHES).map(|_| Default::default()).collect(),
            start: Instant::now(),
        }
    }

    /// Counts a trigger that was taken: its operations are about to be given to the connection's queue. `asks` says
    /// that a question whether all is complete goes with it.
    pub(crate) fn note(&self, trigger: ProxyTrigger, position: FifoPosition, asks: bool) {
        let add = |count: &AtomicU64, n: u64| {
            let sum = count.load(Ordering::Relaxed) + n;
            count.store(sum, Ordering::Relaxed);
            sum
        };
        let kind = trigger.kind();
        if kind.has(TriggerKind::DATA) {
            add(&self.data, 1);
            add(&self.bytes, trigger.size());
        }
        if kind.has(TriggerKind::FLAG) {
            add(&self.flags, 1);
        }
        if kind.has(TriggerKind::SYNC) {
            let n = add(&self.syncs, 1);
            let [end, at] = &self.flushes[(n % FLUSHES) as usize];
            at.store(self.start.elapsed().as_nanos() as u64, Ordering::Relaxed);
            end.store((position + 1).raw(), Ordering::Relaxed);
        }
        if asks {
            self.asked.store((position + 1).raw(), Ordering::Relaxed);
        }
        self.taken.store((position + 1).raw(), Ordering::Relaxed);
    }

    /// The oldest remembered flush that is not complete, given how far the connection is: its position and age.
    pub(crate) fn oldest_flush(&self, completed: FifoPosition) -> Option<(FifoPosition, Duration)> {
        self.flushes
            .iter()
            .map(|[end, at]| (end.load(Ordering::Relaxed), at.load(Ordering::Relaxed)))
            .filter(|(end, _)| *end > completed.raw())
            .min()
            .map(|(end, at)| {
                let age = self.start.elapsed().saturating_sub(Duration::from_nanos(at));
                (FifoPosition::from_raw(end - 1), age)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryId, SemaphoreId};

    #[test]
    fn the_oldest_flush_is_the_first_that_is_not_complete() {
        let counts = Counts::new();
        let all = TriggerKind::DATA | TriggerKind::FLAG | TriggerKind::SYNC;
        let oldest = |completed| Some(counts.oldest_flush(FifoPosition::from_raw(completed))?.0.raw());
        assert_eq!(oldest(0), None);
        let memory = (MemoryId::from_raw(0), 0);
        let trigger = ProxyTrigger::new(all, memory, memory, 10, SemaphoreId::from_raw(0)).unwrap();
        for position in 0..100 {
            counts.note(trigger, FifoPosition::from_raw(position), true);
        }
        assert_eq!(oldest(90), Some(90));
        assert_eq!(oldest(100), None);
        // Older ones are forgotten.
        assert_eq!(oldest(0), Some(68));
        assert_eq!((counts.bytes.into_inner(), counts.taken.into_inner()), (1000, 100));
    }
}
