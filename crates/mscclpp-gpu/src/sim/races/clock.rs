//! A clock: all events that a thread, a stream or the host knows to have happened before its next one.
//!
//! A clock that named every thread would be large: a launch has thousands. So it says as much as it can at once. The end
//! of a launch is one number of its stream, a barrier of a block one number of the block, and only what one thread has
//! released by itself names the thread.

use std::sync::Arc;

use super::record::Record;

/// A point up to which things are known. See the fields for how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Clock {
    /// The host's time up to which its accesses are known.
    pub(super) host: u64,
    /// Everything that was recorded up to this stamp, whoever did it.
    pub(super) all: u32,
    /// The number of the last known operation of each stream.
    streams: Vec<(u32, u32)>,
    /// The events that are known only to be complete: see [`Self::learn_complete`]. This clock has none of its own.
    complete: Option<Arc<Clock>>,
    /// The number of a barrier of each block, up to which the ordinary accesses of all its threads are known.
    blocks: Vec<(u32, u32)>,
    /// The time of each thread, by its own count, up to which its accesses are known.
    threads: Vec<(u64, u64)>,
}

impl Clock {
    /// Whether what the record stands for is known, so that anything may follow it.
    pub(super) fn covers(&self, record: &Record) -> bool {
        // Of what was read only a write must be kept apart.
        self.knows(record) || (!record.how.is_write() && self.knows_as_done(record))
    }

    /// Whether a write that reads nothing may follow what the record stands for: it is known, or complete.
    pub(super) fn lets_write(&self, record: &Record) -> bool {
        self.knows(record) || self.knows_as_done(record)
    }

    fn knows_as_done(&self, record: &Record) -> bool {
        self.complete.as_ref().is_some_and(|complete| complete.knows(record))
    }

    fn knows(&self, record: &Record) -> bool {
        if record.stamp <= self.all {
            return true;
        }
        if record.stream == 0 {
            return record.clock <= self.host;
        }
        if get(&self.streams, record.stream).is_some_and(|sequence| sequence >= record.sequence) {
            return true;
        }
        let by_barrier = || {
            !record.is_async() && get(&self.blocks, record.block).is_some_and(|phase| phase > record.phase())
        };
        record.block != 0
            && (by_barrier() || get(&self.threads, record.key()).is_some_and(|time| time >= record.clock))
    }

    /// Whether all that `other` knows is known.
    pub(super) fn includes(&self, other: &Self) -> bool {
        self.host >= other.host
            && self.all >= other.all
            && has(&self.streams, &other.streams)
            && other.complete.as_ref().is_none_or(|complete| self.knows_complete(complete))
            && has(&self.blocks, &other.blocks)
            && covers(&self.threads, &other.threads, |key, time| self.knows_by_barrier(key, time))
    }

    /// Whether all that `other` knows, beside what is complete for it, is complete.
    fn knows_complete(&self, other: &Self) -> bool {
        let nothing = Self::default();
        let complete = self.complete.as_deref().unwrap_or(&nothing);
        // What is known is complete, too.
        let is_known = |own: &[(u32, u32)], key, value| get(own, key).is_some_and(|known| known >= value);
        let by_thread = |key, time| {
            get(&self.threads, key).is_some_and(|known| known >= time)
                || self.knows_by_barrier(key, time)
                || complete.knows_by_barrier(key, time)
        };
        complete.host.max(self.host) >= other.host
            && complete.all.max(self.all) >= other.all
            && covers(&complete.streams, &other.streams, |key, value| is_known(&self.streams, key, value))
            && covers(&complete.blocks, &other.blocks, |key, value| is_known(&self.blocks, key, value))
            && covers(&complete.threads, &other.threads, by_thread)
    }

    /// Whether [`Self::learn_complete`] would tell nothing new.
    pub(super) fn knows_as_complete(&self, start: &Self) -> bool {
        self.knows_complete(start)
            && start.complete.as_ref().is_none_or(|complete| self.knows_complete(complete))
    }

    /// Learns that whatever a launch began behind is complete, from something that the launch wrote without release. What was
    /// read there has been read, and what was written there, or acquired, is in memory: from now on it can be written over. To
    /// read it takes more.
    pub(super) fn learn_complete(&mut self, start: &Self) {
        let complete = Arc::make_mut(self.complete.get_or_insert_default());
        complete.join(&Self { complete: None, ..start.clone() });
        if let Some(theirs) = &start.complete {
            complete.join(theirs);
        }
    }

    fn knows_by_barrier(&self, key: u64, time: u64) -> bool {
        !Record::key_is_async(key)
            && get(&self.blocks, Record::block_of(key)).is_some_and(|phase| phase > Record::phase_of(time))
    }

    /// Learns all that `other` knows.
    pub(super) fn join(&mut self, other: &Self) {
        self.host = self.host.max(other.host);
        self.all = self.all.max(other.all);
        merge(&mut self.streams, &other.streams);
        if let Some(theirs) = &other.complete {
            let complete = self.complete.get_or_insert_default();
            *complete = joined(complete, theirs);
        }
        merge(&mut self.blocks, &other.blocks);
        merge(&mut self.threads, &other.threads);
    }

    pub(super) fn learn_stream(&mut self, stream: u32, sequence: u32) {
        merge(&mut self.streams, &[(stream, sequence)]);
    }

    /// Learns what all threads of the block have done before its barrier `phase`, and names them no longer.
    pub(super) fn learn_block(&mut self, block: u32, phase: u32) {
        merge(&mut self.blocks, &[(block, phase)]);
        self.threads.retain(|(key, _)| Record::block_of(*key) != block || Record::key_is_async(*key));
    }

    pub(super) fn learn_thread(&mut self, key: u64, time: u64) {
        merge(&mut self.threads, &[(key, time)]);
    }

    /// Adds the times of several threads, in the order of their keys.
    pub(super) fn learn_threads(&mut self, times: &[(u64, u64)]) {
        merge(&mut self.threads, times);
    }

    /// How many blocks and threads it names.
    pub(super) fn len(&self) -> usize {
        self.blocks.len() + self.threads.len() + self.complete.as_ref().map_or(0, |complete| complete.len())
    }

    /// Names no blocks and threads whose launch it knows to have ended. `launch` says of a block which operation of which
    /// stream that is.
    pub(super) fn forget_ended(&mut self, launch: impl Fn(u32) -> Option<(u32, u32)>) {
        let streams = std::mem::take(&mut self.streams);
        if let Some(complete) = &mut self.complete {
            let complete = Arc::make_mut(complete);
            let of_complete = std::mem::take(&mut complete.streams);
            complete.forget_those(&launch, &[&streams, &of_complete]);
            complete.streams = of_complete;
        }
        self.forget_those(&launch, &[&streams]);
        self.streams = streams;
    }

    fn forget_those(&mut self, launch: &impl Fn(u32) -> Option<(u32, u32)>, known: &[&[(u32, u32)]]) {
        let runs = |block: u32| {
            let is_known = |stream, sequence| {
                known.iter().any(|streams| get(streams, stream).is_some_and(|known| known >= sequence))
            };
            !launch(block).is_some_and(|(stream, sequence)| is_known(stream, sequence))
        };
        self.blocks.retain(|(block, _)| runs(*block));
        self.threads.retain(|(key, _)| runs(Record::block_of(*key)));
    }
}

/// Both together; the first itself if it has the second already.
pub(super) fn joined(first: &Arc<Clock>, second: &Arc<Clock>) -> Arc<Clock> {
    if Arc::ptr_eq(first, second) || first.includes(second) {
        return Arc::clone(first);
    }
    let mut both = Clock::clone(first);
    both.join(second);
    Arc::new(both)
}

fn get<K: Ord + Copy, V: Copy>(entries: &[(K, V)], key: K) -> Option<V> {
    entries.binary_search_by_key(&key, |entry| entry.0).ok().map(|at| entries[at].1)
}

fn has<K: Ord + Copy, V: Ord + Copy>(entries: &[(K, V)], others: &[(K, V)]) -> bool {
    covers(entries, others, |_, _| false)
}

/// Whether `entries` have at least the value of each of the others, or that is known `otherwise`. Both are sorted.
fn covers<K: Ord + Copy, V: Ord + Copy>(
    entries: &[(K, V)],
    others: &[(K, V)],
    otherwise: impl Fn(K, V) -> bool,
) -> bool {
    let mut entries = entries.iter().peekable();
    others.iter().all(|(key, value)| {
        while entries.next_if(|entry| entry.0 < *key).is_some() {}
        entries.peek().is_some_and(|entry| entry.0 == *key && entry.1 >= *value) || otherwise(*key, *value)
    })
}

/// Takes the larger value of each key. Both are sorted.
fn merge<K: Ord + Copy, V: Ord + Copy>(entries: &mut Vec<(K, V)>, others: &[(K, V)]) {
    if let [(key, value)] = others {
        match entries.binary_search_by_key(key, |entry| entry.0) {
            Ok(at) => entries[at].1 = entries[at].1.max(*value),
            Err(at) => entries.insert(at, (*key, *value)),
        }
        return;
    }
    if others.is_empty() || has(entries, others) {
        return;
    }
    let mut both = Vec::with_capacity(entries.len() + others.len());
    let (mut left, mut right) = (entries.as_slice(), others);
    while let (Some(a), Some(b)) = (left.first(), right.first()) {
        match a.0.cmp(&b.0) {
            std::cmp::Ordering::Less => (both.push(*a), left = &left[1..]).1,
            std::cmp::Ordering::Greater => (both.push(*b), right = &right[1..]).1,
            std::cmp::Ordering::Equal => {
                both.push((a.0, a.1.max(b.1)));
                (left, right) = (&left[1..], &right[1..]);
            }
        }
    }
    both.extend_from_slice(left);
    both.extend_from_slice(right);
    *entries = both;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(block: u32, thread: u16, phase: u32, time: u32) -> Record {
        Record {
            block,
            stream: 1,
            sequence: 5,
            stamp: 9,
            clock: u64::from(phase) << 32 | u64::from(time),
            thread,
            ..Record::default()
        }
    }

    #[test]
    fn a_barrier_covers_all_threads_of_its_block_and_no_bulk_copy() {
        let mut clock = Clock::default();
        clock.learn_block(3, 2);
        assert!(clock.covers(&record(3, 77, 1, 900)));
        assert!(!clock.covers(&record(3, 77, 2, 0)), "behind the barrier");
        assert!(!clock.covers(&record(4, 77, 1, 900)), "of another block");
        let copy = Record { thread: 77 | Record::ASYNC_WRITE, ..record(3, 0, 1, 900) };
        assert!(!clock.covers(&copy));
        clock.learn_thread(copy.key(), copy.clock);
        assert!(clock.covers(&copy));
    }

    #[test]
    fn what_a_thread_released_covers_that_thread_alone() {
        let mut clock = Clock::default();
        clock.learn_thread(record(3, 7, 0, 0).key(), record(3, 7, 4, 10).clock);
        assert!(clock.covers(&record(3, 7, 4, 10)) && clock.covers(&record(3, 7, 3, 99)));
        assert!(!clock.covers(&record(3, 7, 4, 11)) && !clock.covers(&record(3, 8, 0, 0)));
    }

    #[test]
    fn the_end_of_a_launch_covers_its_threads_and_lets_them_be_forgotten() {
        let mut clock = Clock::default();
        clock.learn_thread(record(3, 7, 0, 0).key(), 1);
        clock.learn_block(8, 1);
        clock.learn_stream(1, 5);
        assert!(clock.covers(&record(3, 1000, 50, 50)));
        clock.forget_ended(|block| (block == 3).then_some((1, 5)));
        assert_eq!(clock.len(), 1, "block 8 still runs");
    }

    #[test]
    fn what_is_complete_may_be_written_over_and_not_read() {
        use super::super::record::How;
        let (mut start, mut clock) = (Clock::default(), Clock::default());
        start.learn_stream(1, 5);
        let acquired = Record { stream: 2, how: How::plain(true), ..record(4, 1, 0, 2) };
        start.learn_thread(acquired.key(), acquired.clock);
        clock.learn_complete(&start);
        let write = Record { how: How::plain(true), ..record(3, 7, 0, 0) };
        assert!(clock.covers(&record(3, 7, 0, 0)) && !clock.covers(&write));
        assert!(clock.lets_write(&write) && clock.lets_write(&acquired) && !clock.covers(&acquired));
        assert!(!clock.covers(&Record { sequence: 6, ..record(3, 7, 0, 0) }), "a later launch");
        assert!(clock.knows_as_complete(&start) && !clock.includes(&start) && start.includes(&clock));
    }

    #[test]
    fn joining_takes_the_later_of_each() {
        let (mut a, mut b) = (Clock::default(), Clock { host: 4, ..Clock::default() });
        for (key, time) in [(1, 10), (3, 30), (5, 50)] {
            a.learn_thread(key, time);
        }
        for (key, time) in [(2, 20), (3, 3), (5, 55), (6, 60)] {
            b.learn_thread(key, time);
        }
        assert!(!a.includes(&b));
        a.join(&b);
        assert!(a.includes(&b) && a.host == 4);
        assert_eq!(a.threads, [(1, 10), (2, 20), (3, 30), (5, 55), (6, 60)]);
    }
}
