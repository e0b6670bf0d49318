//! Stores that are held back, so that wrong kernels get wrong data too (`MSCCLPP_HOST_SCHEDULE`).
//!
//! A plain store of a thread may come to memory late: until its next release, fence or barrier nobody is promised to see it. The
//! compiler stores by itself, behind a call here; so at the thread's next call what it has stored is taken back, and put there
//! later. The thread itself sees all of its stores, as what it holds is put there before it accesses the same bytes.
//!
//! # Invariants
//! 1. In a kernel without races nobody else looks at the bytes meanwhile, nor writes them; but many threads may write the same value,
//!    and what one of those holds back is asked of [`held_at`].
//! 2. Nothing is held when a thread releases, fences, meets others, starts or awaits bulk copies, or has ended; and not for ever
//!    while it waits.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::host::schedule::Random;

/// The most that a plain store writes at once.
const MOST: usize = 16;

/// A store.
#[derive(Clone, Copy)]
struct Store {
    address: usize,
    bytes: usize,
    value: [u8; MOST],
}

/// What all threads hold back. Held also while stores are taken back or put there.
static HELD: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

/// What one thread holds back.
pub(super) struct Stores {
    random: Random,
    held: Vec<Store>,
    /// What was there before a store that the thread is about to do, or has done.
    before: Option<Store>,
}

impl Stores {
    pub(super) fn new(random: Random) -> Self {
        Self { random, held: Vec::new(), before: None }
    }

    /// The thread is about to store so many bytes, which are memory of the platform.
    pub(super) fn begin(&mut self, address: usize, bytes: usize) {
        if bytes <= MOST && self.random.once_in(2) {
            // SAFETY: memory that the thread is about to write.
            self.before = Some(unsafe { Store::read(address, bytes) });
        }
    }

    /// The thread has come further: takes back what it has stored.
    pub(super) fn settle(&mut self) {
        let Some(before) = self.before.take() else { return };
        let mut all = HELD.lock();
        // SAFETY: memory that the thread has just written.
        let now = unsafe { Store::read(before.address, before.bytes) };
        if now.value != before.value {
            // SAFETY: as above; invariant 1.
            unsafe { before.write() };
            all.push((now.address, now.address + now.bytes));
            self.held.push(now);
        }
    }

    /// The thread is about to access these bytes.
    pub(super) fn put_those_at(&mut self, address: usize, bytes: usize) {
        self.put(|store| store.address < address + bytes && address < store.address + store.bytes);
    }

    pub(super) fn put_all(&mut self) {
        self.settle();
        self.put(|_| true);
    }

    /// The thread gives way, and waits perhaps.
    pub(super) fn put_some(&mut self) {
        self.settle();
        if !self.held.is_empty() && self.random.once_in(4) {
            self.put(|_| true);
        }
    }

    /// In the order in which they were made.
    fn put(&mut self, which: impl Fn(&Store) -> bool) {
        if !self.held.iter().any(&which) {
            return;
        }
        let mut all = HELD.lock();
        self.held.retain(|store| {
            let goes = which(store);
            if goes {
                // SAFETY: the thread has written it; memory that is freed under a launch stays until that has ended.
                unsafe { store.write() };
                let range = (store.address, store.address + store.bytes);
                if let Some(at) = all.iter().position(|there| *there == range) {
                    all.swap_remove(at);
                }
            }
            !goes
        });
    }
}

/// Whether somebody holds back a store to one of the 8 bytes at an address.
pub(super) fn held_at(address: usize) -> bool {
    HELD.lock().iter().any(|(start, end)| *start < address + 8 && address < *end)
}

impl Store {
    /// What is there.
    ///
    /// # Safety
    /// The bytes are memory that is there.
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
        let mut stores = Stores::new(Random::new(1, "k", (0, 0), 0));
        let mut held = 0;
        for round in 1..100u64 {
            let word = AtomicU64::new(0);
            let address = word.as_ptr() as usize;
            stores.begin(address, 8);
            word.store(round, Ordering::Relaxed);
            stores.settle();
            if word.load(Ordering::Relaxed) == 0 {
                held += 1;
                assert!(held_at(address));
                stores.put_those_at(address + 8, 8);
                assert_eq!(word.load(Ordering::Relaxed), 0, "other bytes");
                stores.put_those_at(address + 7, 1);
            }
            assert_eq!(word.load(Ordering::Relaxed), round);
            assert!(!held_at(address));
        }
        assert!((20..80).contains(&held), "{held}");
    }
}
