//! The pauses of the thread that publishes segments. Commands end them.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Whether [`wake`] was called since the last pause.
static IS_CALLED: Mutex<bool> = Mutex::new(false);
static CALLED: Condvar = Condvar::new();

/// Ends the pause of the thread. Any thread may call this that holds none of the publisher's locks.
pub(super) fn wake() {
    *IS_CALLED.lock() = true;
    CALLED.notify_one();
}

/// Waits until [`wake`] is called, for `longest` at most; not if it was called since the last pause.
pub(super) fn pause(longest: Duration) {
    let mut is_called = IS_CALLED.lock();
    if !*is_called {
        CALLED.wait_for(&mut is_called, longest);
    }
    *is_called = false;
}
