//! The detector's side of a block that runs.

use std::{
    collections::{HashMap, HashSet},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
};

use super::{
    clock::{Clock, joined},
    found::{Found, NearMiss, Why},
    launches::{self, Launch},
    memory::Memory,
    record::{How, Record},
    report,
    shadow::{self, first},
    sites::Met,
    stores::{self, OfBlock, Relaxed, Stores},
    thread::{ThreadView, meet_at_block_barrier, meet_at_warp_barrier},
};
use crate::sim::{abi::Thread, schedule::Random};

/// A block's threads, and what they have met.
pub(in super::super) struct Block {
    pub(super) threads: Vec<ThreadView>,
    pub(super) launch: Arc<Launch>,
    pub(super) met: Met,
    /// The clock that each BulkBarrier has received, and the access that made it ready.
    pub(super) barriers: HashMap<usize, (Arc<Clock>, Record)>,
    /// The memory that its threads may access.
    pub(super) memory: Memory,
    /// The launch whose word was read last.
    seen: Option<Arc<Launch>>,
    /// Words that nearly ordered something.
    near_misses: Vec<NearMiss>,
    found: HashSet<(u32, u32)>,
    undecided: Vec<Undecided>,
    /// The stores that each thread holds back, if a seed makes the schedule, and those that the block holds back.
    pub(super) stores: Vec<Stores>,
    stores_of_block: OfBlock,
}

/// Two plain writes to the same bytes, unordered, of which the second is about to be made. They race unless both write the
/// same: that many threads set one flag is so common that it is let pass.
struct Undecided {
    number: usize,
    earlier: Record,
    later: Record,
    address: usize,
    common: u8,
    /// The value before it.
    value: u64,
}

/// How many are remembered.
const NEAR_MISSES: usize = 16;

/// Returns the value that a byte of `__shared__` memory has before a block runs. Memory that was not written can hardly
/// have another value, so that a write which the detector did not see is noticed.
fn poison(at: usize) -> u8 {
    0xb7d5_1f93_ec3a_6785_u64.to_le_bytes()[at % 8]
}

/// Returns the block of a thread, and the thread's number there.
///
/// # Safety
/// Called by the running coroutine with its own thread. The reference ends before the coroutine is suspended.
pub(super) unsafe fn of<'a>(thread: *mut Thread) -> (&'a mut Block, usize) {
    // SAFETY: the block has put itself there; its threads take turns, so nobody else has it (the caller's promise).
    unsafe { (&mut *(*thread).races.cast(), (*thread).number) }
}

impl Block {
    /// Makes the state of the block at `index` of a launch. `shared` are the block's `__shared__` variables in this
    /// thread; `random` decides which stores are held back.
    ///
    /// # Safety
    /// The variables belong to this thread alone, and nobody uses them yet.
    pub(in super::super) unsafe fn new(
        launch: &Arc<Launch>,
        index: [u32; 3],
        threads: usize,
        shared: Vec<Range<usize>>,
        random: Option<Random>,
    ) -> Self {
        for range in &shared {
            shadow::forget(range.start, range.len());
            for at in range.clone() {
                // SAFETY: the caller's promise, and within the variable.
                unsafe { (at as *mut u8).write(poison(at)) };
            }
        }
        let number = launch.block(index);
        Self {
            threads: (0..threads)
                .map(|thread| ThreadView::new(launch, number, thread, &launch.start))
                .collect(),
            launch: Arc::clone(launch),
            met: Met::default(),
            barriers: HashMap::new(),
            memory: Memory::new(shared),
            seen: None,
            near_misses: Vec::new(),
            found: HashSet::new(),
            undecided: Vec::new(),
            stores: random.map_or_else(Vec::new, |mut random| {
                (0..threads).map(|_| Stores::new(random.split())).collect()
            }),
            stores_of_block: OfBlock::default(),
        }
    }

    pub(in super::super) fn meet(&mut self, came: impl Fn(usize) -> bool) {
        self.decide_those(|_| true);
        meet_at_block_barrier(&mut self.threads, came);
    }

    /// Threads of one warp have met, by their numbers in the block.
    pub(in super::super) fn meet_in_warp(&mut self, warp: Range<usize>, came: impl Fn(usize) -> bool) {
        self.decide_those(|undecided| warp.contains(&undecided.number));
        meet_at_warp_barrier(&mut self.threads[warp], came);
    }

    /// The thread ends its turn. `meets`: others of its block may learn what it did.
    pub(in super::super) fn gives_way(&mut self, number: usize, meets: bool) {
        if self.stores.is_empty() {
            return;
        }
        self.decide(number);
        let (stores, of_block, memory) = (&mut self.stores[number], &mut self.stores_of_block, &self.memory);
        let late = if meets {
            stores.give_to(of_block, |at| memory.shared(at).is_some())
        } else {
            stores.put_some(of_block)
        };
        self.do_late(number, late);
    }

    /// Others may learn what the thread did: nothing of it, or of what its block has met behind, is held back.
    pub(super) fn put_all(&mut self, number: usize) {
        if !self.stores.is_empty() {
            self.decide(number);
            let late = self.stores[number].put_all(&mut self.stores_of_block);
            self.do_late(number, late);
        }
    }

    /// The thread is about to access memory of the platform. A plain write may be held back.
    pub(super) fn comes_to(&mut self, number: usize, address: usize, bytes: usize, is_plain_write: bool) {
        if let Some(stores) = self.stores.get_mut(number) {
            let late = stores.put_those_at(&mut self.stores_of_block, address, bytes);
            if is_plain_write {
                stores.begin(address, bytes);
            }
            self.do_late(number, late);
        }
    }

    fn do_late(&mut self, number: usize, late: Vec<Relaxed>) {
        for store in late {
            // SAFETY: a word that was there when the store was made; memory that is freed under a launch stays until that has
            // ended.
            for (earlier, at) in unsafe { store.perform(&self.threads[number]) } {
                self.race(number, Some(earlier), store.record, at);
            }
        }
    }

    /// A race with `earlier` was found.
    pub(super) fn race(&mut self, number: usize, earlier: Option<Record>, later: Record, address: usize) {
        let pair = (earlier.map_or(0, |earlier| earlier.site), later.site);
        if !self.found.insert(pair) {
            return;
        }
        let near_miss = earlier.and_then(|earlier| self.near_miss(number, &earlier, later.site));
        let memory = match self.memory.shared(address) {
            Some(range) => format!(
                "shared memory of a block of kernel {}, offset {} of a variable of {} bytes",
                self.launch.kernel,
                address - range.start,
                range.len()
            ),
            None => report::memory(address),
        };
        self.launch.found.lock().push(Found { earlier, later, memory, near_miss });
    }

    /// Finds the synchronisation that nearly ordered `earlier` before the thread's access.
    fn near_miss(&self, number: usize, earlier: &Record, site: u32) -> Option<NearMiss> {
        if let Some(release) = self.threads[number].would_have_known(earlier) {
            let load = self.near_misses.iter().rev().find(|miss| miss.store.key() == release.by.key());
            let load = load.map_or(site, |miss| miss.load);
            return Some(NearMiss { why: Why::Load, clock: None, store: release.by, load });
        }
        let tells = |miss: &&NearMiss| miss.clock.as_ref().is_some_and(|clock| clock.covers(earlier));
        let comes_before = |miss: &&NearMiss| {
            if miss.clock.is_some() {
                return false;
            }
            let store = &miss.store;
            let own = earlier.key() == store.key() && earlier.clock <= store.clock;
            let by_barrier = earlier.block == store.block && earlier.phase() < store.phase();
            earlier.block != 0 && !earlier.is_async() && (own || by_barrier)
        };
        let mut near_misses = self.near_misses.iter().rev();
        near_misses.clone().find(tells).or_else(|| near_misses.find(comes_before)).cloned()
    }

    /// Takes note of a word that would have ordered what came before its store.
    pub(super) fn notes_near_miss(&mut self, why: Why, clock: Option<&Arc<Clock>>, store: Record, load: u32) {
        let same =
            |there: &NearMiss| there.store.site == store.site && there.load == load && there.why == why;
        self.near_misses.retain(|there| !same(there));
        if self.near_misses.len() == NEAR_MISSES {
            self.near_misses.remove(0);
        }
        self.near_misses.push(NearMiss { why, clock: clock.cloned(), store, load });
    }

    /// A thread has read what `writer`, for which its access is atomic, has written.
    pub(super) fn see_launch_of(&mut self, number: usize, writer: &Record) {
        if self.launch.has_block(writer.block) {
            return;
        }
        if !self.seen.as_ref().is_some_and(|seen| seen.has_block(writer.block)) {
            self.seen = launches::of_block(writer.block);
        }
        if let Some(seen) = &self.seen {
            self.threads[number].learn_complete(&seen.start);
        }
    }

    /// An ordinary access of a thread, of memory that is there.
    pub(super) fn access(&mut self, number: usize, site: u32, address: usize, bytes: usize, how: How) {
        let record = self.threads[number].record(site, how);
        let mut races = Vec::new();
        let thread = &self.threads[number];
        shadow::by_page(address, bytes, |at, bytes| {
            let is_before = |earlier: &Record| thread.may_do_behind(how.is_write(), earlier);
            shadow::hold(at).page(at).access(at, bytes, record, is_before, |earlier, at, common| {
                races.push((earlier, at, common));
            });
        });
        for (earlier, at, common) in races {
            if !earlier.how.is_strong() && earlier.how.is_write() && how.is_write() && !earlier.is_async() {
                if !self.stores.is_empty() && stores::held_at(at, common) {
                    // What the other one has written is not there, so nobody knows whether it is the same.
                    continue;
                }
                // SAFETY: aligned, and in memory that is accessed now.
                let value = unsafe { value(at, common) };
                self.undecided.push(Undecided { number, earlier, later: record, address: at, common, value });
            } else {
                self.race(number, Some(earlier), record, first(at, common));
            }
        }
    }

    /// Decides about what the thread has written meanwhile.
    pub(super) fn decide(&mut self, number: usize) {
        if !self.undecided.is_empty() {
            self.decide_those(|undecided| undecided.number == number);
        }
    }

    fn decide_those(&mut self, which: impl Fn(&Undecided) -> bool) {
        let (now, later) = std::mem::take(&mut self.undecided).into_iter().partition(which);
        self.undecided = later;
        let now: Vec<Undecided> = now;
        for undecided in now {
            let Undecided { number, earlier, later, address, common, value: before } = undecided;
            // SAFETY: memory that the thread has just written.
            if unsafe { value(address, common) } != before {
                self.race(number, Some(earlier), later, first(address, common));
            }
        }
    }

    /// All its threads have ended, or the block is given up.
    pub(in super::super) fn end(&mut self) {
        for number in 0..self.stores.len() {
            self.put_all(number);
        }
        self.decide_those(|_| true);
        let mut last = None;
        for thread in &self.threads {
            if !last.is_some_and(|last| Arc::ptr_eq(last, &thread.clock)) {
                self.launch.learn(&thread.clock);
            }
            last = Some(&thread.clock);
        }
    }

    /// A read of `__shared__` memory: whether anybody has written it.
    pub(super) fn look_for_poison(&mut self, number: usize, site: u32, address: usize, bytes: usize) {
        let first = address & !7;
        for word in (first..address + bytes).step_by(8) {
            let (from, to) = (address.max(word), (address + bytes).min(word + 8));
            let mask = (!0u8 >> (8 - (to - from))) << (from - word);
            let is_poison = |at: usize| {
                // SAFETY: a byte that the thread is about to read.
                unsafe { AtomicU8::from_ptr(at as *mut u8) }.load(Ordering::Relaxed) == poison(at)
            };
            if !(from..to).all(is_poison) {
                continue;
            }
            let mut held = shadow::hold(word);
            let writes = |record: &Record| record.how.is_write() && record.bytes & mask != 0;
            let is_written = held.page(word).records(word).iter().any(writes);
            drop(held);
            if !is_written {
                let record = self.threads[number].record(site, How::default());
                self.race(number, None, record, from);
                return;
            }
        }
    }

    /// Adds what a thread knows to what a BulkBarrier has got.
    pub(super) fn arrive(&mut self, barrier: usize, clock: &Arc<Clock>) {
        let (there, _) = self.barriers.entry(barrier).or_default();
        *there = joined(there, clock);
    }
}

/// Those of the 8 bytes that are in the mask; the others are 0.
///
/// # Safety
/// They are memory of the process, which others access with atomics only or not at all meanwhile.
unsafe fn value(address: usize, mask: u8) -> u64 {
    let byte = |at: usize| {
        // SAFETY: the caller's promise.
        let byte = unsafe { AtomicU8::from_ptr((address + at) as *mut u8) }.load(Ordering::Relaxed);
        u64::from(byte) << (8 * at)
    };
    (0..8).filter(|at| mask >> at & 1 != 0).map(byte).sum()
}
