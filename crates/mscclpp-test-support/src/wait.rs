//! Waiting for what is to happen, with a deadline.

use std::{
    thread,
    time::{Duration, Instant},
};

/// For what should take moments: long enough for a machine that is busy with other things.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Polls `done` until it holds, for at most [`LIMIT`].
///
/// # Panics
/// If it does not hold in time; `what` is in the message.
pub fn until(what: &str, done: impl FnMut() -> bool) {
    assert!(within(LIMIT, done), "{what}: not within {LIMIT:?}");
}

/// Polls `done` until it holds; whether it did within `limit`. It is asked at least once.
pub fn within(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if done() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_when_it_holds_and_when_time_is_up() {
        let mut asked = 0;
        until("the third time", || {
            asked += 1;
            asked == 3
        });
        let limit = Duration::from_millis(20);
        let started = Instant::now();
        assert!(!within(limit, || false));
        assert!(started.elapsed() >= limit);
        assert!(within(Duration::ZERO, || true));
    }
}
