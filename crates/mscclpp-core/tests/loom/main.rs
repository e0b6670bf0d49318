//! Semaphores and packets under the loom model checker: all interleavings (up to a number of preemptions) and all
//! values that the memory model lets a load return. Kernels are modelled in [`kernels`]; the host's own code is
//! checked as it is.
//!
//! Loom has only one scope, so these tests do not check the scopes of GPUs; the headers argue those in text.
//!
//! Run it with `cargo test -p mscclpp-core --test loom --release`: unoptimised, it would take too long, and is empty.
#![cfg(not(debug_assertions))]

mod blocks;
mod kernels;
mod packets;
mod semaphores;

use std::sync::atomic::Ordering;

use loom::sync::atomic::{AtomicU32, AtomicU64};
use mscclpp_core::protocol::{SharedWord, StatusWords};
use mscclpp_test_support::loom::{Seen, backoff, model};

mscclpp_test_support::word32_of_loom!(SharedWord);

/// A word of 8 bytes. Its stores and additions can be weakened to relaxed, to show that their order is needed.
struct Word64 {
    word: AtomicU64,
    weakened: bool,
}

impl Word64 {
    fn new(weakened: bool) -> Self {
        Self { word: AtomicU64::new(0), weakened }
    }
}

impl SharedWord for Word64 {
    type Value = u64;
    fn load(&self, order: Ordering) -> u64 {
        self.word.load(order)
    }
    fn store(&self, value: u64, order: Ordering) {
        self.word.store(value, if self.weakened { Ordering::Relaxed } else { order });
    }
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.word.fetch_add(value, if self.weakened { Ordering::Relaxed } else { order })
    }
    fn compare_exchange(&self, from: u64, to: u64, order: Ordering) -> Result<u64, u64> {
        self.word.compare_exchange(from, to, order, Ordering::Relaxed)
    }
}

/// The words of a semaphore's status.
struct Status([Word32; 4]);

impl Status {
    fn new() -> Self {
        Self([0; 4].map(|v| Word32(AtomicU32::new(v))))
    }

    fn words(&self) -> StatusWords<'_, Word32> {
        StatusWords::of(&self.0)
    }
}
