//! The parts that the models of this crate and of the proxy share: a word of 4 bytes, waits, and the checker.

use std::sync::atomic::Ordering;

use loom::{sync::atomic::AtomicU32, thread};
use mscclpp_core::protocol::SharedWord;

pub(crate) struct Word32(pub(crate) AtomicU32);

impl SharedWord for Word32 {
    type Value = u32;
    const POLLS_BEFORE_ABORT_CHECK: u64 = 2;
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

/// Returns a backoff that yields. Two threads could yield to each other for ever while a third has work to do; such
/// schedules are tried for a few rounds, then the run goes on fairly and branches no further.
pub(crate) fn backoff() -> impl FnMut() {
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
pub(crate) fn model(preemptions: Option<usize>, check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(check);
}
