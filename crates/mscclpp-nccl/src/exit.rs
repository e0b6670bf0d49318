//! The end of the process, and the work that it waits for.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

/// How many [`Unfinished`] there are.
static UNFINISHED: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());
static BEGUN: AtomicBool = AtomicBool::new(false);

/// A piece of work for which the end of the process waits a few seconds. It lasts until this is dropped.
pub(crate) struct Unfinished(());

impl Unfinished {
    pub(crate) fn new() -> Self {
        *UNFINISHED.0.lock() += 1;
        Self(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        *UNFINISHED.0.lock() -= 1;
        UNFINISHED.1.notify_all();
    }
}

/// Waits until nothing is [`Unfinished`], for at most `limit`.
pub(crate) fn wait(limit: Duration) {
    let deadline = Instant::now() + limit;
    // The thread that calls `exit` may hold the lock, if it does so in the middle of a call.
    let Some(mut unfinished) = UNFINISHED.0.try_lock_until(deadline) else { return };
    while *unfinished > 0 && !UNFINISHED.1.wait_until(&mut unfinished, deadline).timed_out() {}
}

/// Makes all threads stop waiting for other ranks.
pub(crate) fn begin() {
    BEGUN.store(true, Ordering::Relaxed);
}

/// Whether the process is ending, so that no thread waits for other ranks any more.
pub(crate) fn has_begun() -> bool {
    BEGUN.load(Ordering::Relaxed)
}
