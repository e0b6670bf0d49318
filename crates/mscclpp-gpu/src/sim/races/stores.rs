//! Stores that are held back, so that wrong kernels get wrong data too (`MSCCLPP_SIM_SCHEDULE`).
//!
//! A plain or relaxed store of a thread may come to memory late: until a release or fence no thread outside of its block is
//! promised to see it. A store is the thread's own at first. At a barrier it becomes the block's, whose threads see it from
//! then on; a release or fence of any of them puts it into memory. The seed may put it there at any time before.
//!
//! The compiler does plain stores by itself, after a call here; so the thread's next call takes the store back. Relaxed stores
//! are done here, and so they are simply done later. Threads of the block see the stores that are held, because these are put
//! into memory before the threads access the same bytes.
//!
//! # Invariants
//! 1. In a kernel without races no other thread reads or writes the bytes of a plain store meanwhile; but many threads may
//!    write the same value, and [`held_at`] returns the value that one of those holds back.
//! 2. No store of a thread or its block is held when the thread has released, fenced, started or awaited bulk copies, or when
//!    the block has ended; and none is held for ever while threads wait.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::{
    atomics,
    order::host_learns_released,
    record::{Record, Scope},
    shadow::{self, first},
    thread::ThreadView,
    words::{Location, Release},
};
use crate::sim::{abi::Atomic, ranges, schedule::Random};

/// The most that a plain store writes at once.
const MOST: usize = 16;

/// How many stores a block holds back at most.
const MOST_OF_BLOCK: usize = 256;

/// A plain store.
#[derive(Clone, Copy)]
struct Plain {
    address: usize,
    bytes: usize,
    value: [u8; MOST],
}

/// A relaxed store that is still to be done.
pub(super) struct Relaxed {
    pub(super) address: usize,
    pub(super) what: Atomic,
    /// The thread's record of the store, and the releases of the fences before it.
    pub(super) record: Record,
    pub(super) releases: Vec<Release>,
}

impl Relaxed {
    /// Does the store. It means what it meant when the thread made it, which is passed. Returns the earlier accesses with which
    /// it races, and the addresses.
    ///
    /// # Safety
    /// Its address is that of a word of memory that is there.
    pub(super) unsafe fn perform(&self, thread: &ThreadView) -> Vec<(Record, usize)> {
        let Self { address, what, record, releases } = self;
        if record.how.scope() == Scope::System && ranges::has_unseen_readers(*address) {
            host_learns_released(releases);
        }
        let mut races = Vec::new();
        let mut held = shadow::hold(*address);
        let page = held.page(*address);
        // SAFETY: the caller's promise.
        unsafe { atomics::perform(*address, what) };
        let is_before = |earlier: &Record| thread.may_do_behind(true, earlier);
        let word = Location { address: *address, bytes: what.bytes as usize };
        page.access(word.address, word.bytes, *record, is_before, |earlier, at, common| {
            races.push((earlier, first(at, common)));
        });
        page.words.leave(word, false, record, releases, what.value);
        races
    }
}

enum Store {
    Plain(Plain),
    Relaxed(Box<Relaxed>),
}

/// The ranges of plain stores that threads hold back. Held also while they are taken back or put there.
static HELD: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

/// The stores that one thread holds back.
pub(super) struct Stores {
    random: Random,
    held: Vec<Store>,
    /// The bytes before a plain store that the thread is about to do, or has done.
    before: Option<Plain>,
}

impl Stores {
    pub(super) fn new(random: Random) -> Self {
        Self { random, held: Vec::new(), before: None }
    }

    /// The thread is about to store so many bytes, which are memory of the platform.
    pub(super) fn begin(&mut self, address: usize, bytes: usize) {
        if bytes <= MOST && self.random.once_in(2) {
            // SAFETY: memory that the thread is about to write.
            self.before = Some(unsafe { Plain::read(address, bytes) });
        }
    }

    /// The thread has come further: takes back what it has stored.
    pub(super) fn settle(&mut self) {
        let Some(before) = self.before.take() else { return };
        let mut all = HELD.lock();
        // SAFETY: memory that the thread has just written.
        let now = unsafe { Plain::read(before.address, before.bytes) };
        if now.value != before.value {
            // SAFETY: as above; invariant 1.
            unsafe { before.write() };
            all.push((now.address, now.address + now.bytes));
            self.held.push(Store::Plain(now));
        }
    }

    /// Whether a relaxed store is to be held back.
    pub(super) fn holds_relaxed(&mut self) -> bool {
        self.random.once_in(2)
    }

    pub(super) fn hold(&mut self, store: Relaxed) {
        self.held.push(Store::Relaxed(Box::new(store)));
    }

    /// The thread gives way, and waits perhaps: puts there what the seed chooses of what it and its block hold.
    pub(super) fn put_some(&mut self, of_block: &mut OfBlock) -> Vec<Relaxed> {
        self.settle();
        let random = &mut self.random;
        let mut late = put(&mut of_block.held, |_| random.once_in(16));
        late.extend(put(&mut self.held, |_| random.once_in(4)));
        late
    }

    /// Gives the stores that it holds to the block; `is_shared` returns whether an address is memory of the block alone.
    pub(super) fn give_to(
        &mut self,
        of_block: &mut OfBlock,
        is_shared: impl Fn(usize) -> bool,
    ) -> Vec<Relaxed> {
        self.settle();
        let mut late = put(&mut self.held, |store| is_shared(store.range().0));
        of_block.held.append(&mut self.held);
        let mut excess = of_block.held.len().saturating_sub(MOST_OF_BLOCK);
        late.extend(put(&mut of_block.held, |_| {
            let goes = excess > 0;
            excess = excess.saturating_sub(1);
            goes
        }));
        late
    }

    /// The thread is about to access these bytes: puts there what it and its block hold of them.
    pub(super) fn put_those_at(
        &mut self,
        of_block: &mut OfBlock,
        address: usize,
        bytes: usize,
    ) -> Vec<Relaxed> {
        self.settle();
        let overlaps = |store: &Store| {
            let (start, end) = store.range();
            start < address + bytes && address < end
        };
        let mut late = put(&mut of_block.held, overlaps);
        late.extend(put(&mut self.held, overlaps));
        late
    }

    /// Puts all there that it and its block hold.
    pub(super) fn put_all(&mut self, of_block: &mut OfBlock) -> Vec<Relaxed> {
        self.settle();
        let mut late = put(&mut of_block.held, |_| true);
        late.extend(put(&mut self.held, |_| true));
        late
    }
}

/// The stores that the threads of a block hold back together.
#[derive(Default)]
pub(super) struct OfBlock {
    held: Vec<Store>,
}

/// Puts plain stores into memory, in their order, and returns the relaxed ones, which the caller does.
fn put(held: &mut Vec<Store>, mut which: impl FnMut(&Store) -> bool) -> Vec<Relaxed> {
    let mut late = Vec::new();
    let is_chosen: Vec<bool> = held.iter().map(&mut which).collect();
    if !is_chosen.contains(&true) {
        return late;
    }
    let mut all = HELD.lock();
    for (store, is_chosen) in std::mem::take(held).into_iter().zip(is_chosen) {
        match store {
            store if !is_chosen => held.push(store),
            Store::Relaxed(store) => late.push(*store),
            Store::Plain(store) => {
                // SAFETY: the thread has written it; memory that is freed under a launch stays until that has ended.
                unsafe { store.write() };
                let range = (store.address, store.address + store.bytes);
                if let Some(at) = all.iter().position(|there| *there == range) {
                    all.swap_remove(at);
                }
            }
        }
    }
    late
}

/// Whether somebody holds back a plain store to one of those bytes that are in the mask, of the 8 at an address.
pub(super) fn held_at(address: usize, mask: u8) -> bool {
    let is_held = |(start, end): &(usize, usize)| {
        (0..8).any(|at| mask >> at & 1 != 0 && (*start..*end).contains(&(address + at)))
    };
    HELD.lock().iter().any(is_held)
}

impl Store {
    /// Its first byte, and the end.
    fn range(&self) -> (usize, usize) {
        match self {
            Self::Plain(store) => (store.address, store.address + store.bytes),
            Self::Relaxed(store) => (store.address, store.address + store.what.bytes as usize),
        }
    }
}

impl Plain {
    /// Reads the bytes in memory.
    ///
    /// # Safety
    /// The bytes are in existing memory.
    unsafe fn read(address: usize, bytes: usize) -> Self {
        let mut value = [0; MOST];
        for (at, byte) in value.iter_mut().enumerate().take(bytes) {
            // SAFETY: the caller's promise.
            *byte = unsafe { AtomicU8::from_ptr((address + at) as *mut u8) }.load(Ordering::Relaxed);
        }
        Self { address, bytes, value }
    }

    /// Writes it, whole where it is a word.
    ///
    /// # Safety
    /// As above, to be written.
    unsafe fn write(&self) {
        let (address, [a, b, c, d, rest @ ..]) = (self.address, self.value);
        let [e, f, g, h, ..] = rest;
        // SAFETY: the caller's promise; aligned.
        unsafe {
            match self.bytes {
                4 if address.is_multiple_of(4) => AtomicU32::from_ptr(address as *mut u32)
                    .store(u32::from_ne_bytes([a, b, c, d]), Ordering::Relaxed),
                8 if address.is_multiple_of(8) => AtomicU64::from_ptr(address as *mut u64)
                    .store(u64::from_ne_bytes([a, b, c, d, e, f, g, h]), Ordering::Relaxed),
                bytes => {
                    for (at, byte) in self.value.iter().enumerate().take(bytes) {
                        AtomicU8::from_ptr((address + at) as *mut u8).store(*byte, Ordering::Relaxed);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_taken_back_and_put_there_by_what_must_see_it() {
        let (mut stores, mut of_block) = (Stores::new(Random::new(1, "k", (0, 0), 0)), OfBlock::default());
        let mut held = 0;
        for round in 1..100u64 {
            let word = AtomicU64::new(0);
            let address = word.as_ptr() as usize;
            stores.begin(address, 8);
            word.store(round, Ordering::Relaxed);
            stores.settle();
            if round % 2 == 0 {
                stores.give_to(&mut of_block, |_| false);
            }
            if word.load(Ordering::Relaxed) == 0 {
                held += 1;
                assert!(held_at(address, 1) && held_at(address, 1 << 7) && !held_at(address + 8, !0));
                stores.put_those_at(&mut of_block, address + 8, 8);
                assert_eq!(word.load(Ordering::Relaxed), 0, "other bytes");
                stores.put_those_at(&mut of_block, address + 7, 1);
            }
            assert_eq!(word.load(Ordering::Relaxed), round);
        }
        assert!((20..80).contains(&held), "{held}");
    }

    #[test]
    fn what_a_block_holds_goes_to_memory_by_a_release_of_any_of_its_threads() {
        let random = Random::new(1, "k", (0, 0), 0);
        let (mut stores, mut other) = (Stores::new(random.clone()), Stores::new(random));
        let mut of_block = OfBlock::default();
        let words: [AtomicU64; 40] = std::array::from_fn(|_| AtomicU64::new(0));
        for word in &words {
            stores.begin(word.as_ptr() as usize, 8);
            word.store(1, Ordering::Relaxed);
            stores.settle();
        }
        let in_memory = || words.iter().filter(|word| word.load(Ordering::Relaxed) == 1).count();
        stores.give_to(&mut of_block, |_| false);
        assert!(in_memory() < 40);
        other.put_all(&mut of_block);
        assert_eq!(in_memory(), 40);
    }
}
