//! The parts that models of several crates share: a word of 4 bytes, data beside it, waits, and the checker.
#![allow(unsafe_code, reason = "cells of loom, which checks every access")]

use loom::{cell::UnsafeCell, thread};

/// Defines `Word32`, a word of 4 bytes over loom's atomics, which implements the trait `$shared`: `mscclpp_core`'s `SharedWord`.
#[macro_export]
macro_rules! word32_of_loom {
    ($shared:ident) => {
        struct Word32(loom::sync::atomic::AtomicU32);

        impl $shared for Word32 {
            type Value = u32;
            const POLLS_BEFORE_ABORT_CHECK: u64 = 2;
            fn load(&self, order: ::std::sync::atomic::Ordering) -> u32 {
                self.0.load(order)
            }
            fn store(&self, value: u32, order: ::std::sync::atomic::Ordering) {
                self.0.store(value, order);
            }
            fn fetch_add(&self, value: u32, order: ::std::sync::atomic::Ordering) -> u32 {
                self.0.fetch_add(value, order)
            }
            fn compare_exchange(
                &self,
                from: u32,
                to: u32,
                order: ::std::sync::atomic::Ordering,
            ) -> Result<u32, u32> {
                self.0.compare_exchange(from, to, order, ::std::sync::atomic::Ordering::Relaxed)
            }
        }
    };
}

/// Returns a backoff that yields. Two threads could yield to each other for ever while a third has work to do; such
/// schedules are tried for a few rounds, then the run goes on fairly and branches no further.
pub fn backoff() -> impl FnMut() {
    let mut rounds = 0;
    move || {
        rounds += 1;
        if rounds > 3 {
            loom::skip_branch();
        }
        thread::yield_now();
    }
}

/// Checks all schedules of `check`, or those with at most `preemptions` interruptions of a thread that could go on.
pub fn model(preemptions: Option<usize>, check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(check);
}

/// Data that a model's threads leave for each other, without an order of its own.
#[derive(Default)]
pub struct Seen(UnsafeCell<u64>);

// SAFETY: the cell is checked: an access that is not ordered fails the model, which is what is tested.
unsafe impl Sync for Seen {}
// SAFETY: as above.
unsafe impl Send for Seen {}

impl Seen {
    /// Adds 1 to the data.
    pub fn write(&self) {
        // SAFETY: loom checks that nothing else accesses the cell meanwhile.
        self.0.with_mut(|cell| unsafe { *cell += 1 });
    }

    /// Returns the data.
    pub fn read(&self) -> u64 {
        // SAFETY: loom checks that nothing writes the cell meanwhile.
        self.0.with(|cell| unsafe { *cell })
    }
}
