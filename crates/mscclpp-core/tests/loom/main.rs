//! Semaphores and packets under the loom model checker: all interleavings (up to a number of preemptions) and all
//! values that the memory model lets a load return. What kernels do is modelled in [`kernels`]; what the host does is checked as
//! it is.
//!
//! Loom knows one scope, so this says nothing about the scopes of GPUs; the headers argue those in text.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p mscclpp-core --test loom --release`
#![cfg(loom)]

mod blocks;
mod kernels;
mod packets;
mod semaphores;

use std::sync::atomic::Ordering;

use loom::{
    sync::atomic::{AtomicU32, AtomicU64},
    thread,
};
use mscclpp_core::protocol::{SharedWord, StatusWords};

/// A word of 8 bytes; its stores and additions can be weakened to relaxed, to show that their order is needed.
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

struct Word32(AtomicU32);

impl SharedWord for Word32 {
    type Value = u32;
    fn load(&self, order: Ordering) -> u32 {
        self.0.load(order)
    }
    fn store(&self, value: u32, order: Ordering) {
        self.0.store(value, order);
    }
    fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        self.0.fetch_add(value, order)
    }
    fn compare_exchange(&self, from: u32, to: u32, order: Ordering) -> Result<u32, u32> {
        self.0.compare_exchange(from, to, order, Ordering::Relaxed)
    }
}

/// The words of a status.
struct Status([Word32; 4]);

impl Status {
    fn new() -> Self {
        Self([0; 4].map(|v| Word32(AtomicU32::new(v))))
    }

    fn words(&self) -> StatusWords<'_, Word32> {
        StatusWords::of(&self.0)
    }
}

/// Yields. Two threads could yield to each other for ever while a third has something to do; such schedules are tried
/// for a few rounds, then the run goes on fairly and branches no further.
fn backoff() -> impl FnMut() {
    let mut rounds = 0;
    move || {
        rounds += 1;
        if rounds > 3 {
            loom::skip_branch();
        }
        thread::yield_now();
    }
}

/// `preemptions`: how often a thread may be interrupted that could go on; all schedules if none is given.
fn model(preemptions: Option<usize>, check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(check);
}
