//! The measure of whether waiting threads poll a receiver so often that the hub's thread may leave it to them.

use std::time::{Duration, Instant};

/// The number of times that waiting threads have polled a receiver.
pub(super) struct WaiterPolls {
    count: u64,
    /// The time at which counting began.
    since: Instant,
}

/// The number of polls within [`LEFT_TO_WAITERS`] that counts as frequent. A thread that spins makes hundreds. A
/// thread that sleeps between polls is no faster than events, and the peer, which may send only a limited number of
/// messages ahead, would have to wait for it.
const FREQUENT: u64 = 32;

/// The time for which a receiver is left to waiting threads before the hub's thread checks it again.
pub(crate) const LEFT_TO_WAITERS: Duration = Duration::from_millis(1);

impl WaiterPolls {
    /// Begins to count.
    pub(super) fn new() -> Self {
        Self { count: 0, since: Instant::now() }
    }

    /// Counts one poll.
    pub(super) fn add(&mut self) {
        self.count += 1;
    }

    /// Returns whether polls were frequent in a time that ends now. The count begins anew after each such time.
    pub(super) fn are_frequent(&mut self, now: Instant) -> bool {
        let Self { count, since } = *self;
        let elapsed = now.saturating_duration_since(since);
        if elapsed < LEFT_TO_WAITERS {
            return count >= FREQUENT;
        }
        *self = Self { count: 0, since: now };
        u128::from(count) * LEFT_TO_WAITERS.as_nanos() >= u128::from(FREQUENT) * elapsed.as_nanos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_frequent_by_how_many_there_are_in_a_time() {
        let start = Instant::now();
        let mut polls = WaiterPolls { count: 0, since: start };
        let mut after = |count, time| {
            polls.count += count;
            polls.are_frequent(start + time)
        };
        let step = LEFT_TO_WAITERS / 20;
        assert!(!after(20, step), "not yet");
        assert!(after(20, 2 * step), "events one after the other do not begin the count anew");
        assert!(after(0, LEFT_TO_WAITERS), "as many as that in the whole time");
        assert!(!after(FREQUENT / 2, 2 * LEFT_TO_WAITERS));
        assert!(!after(50 * FREQUENT, 100 * LEFT_TO_WAITERS), "a few at a time add up over a long time");
        assert!(!after(FREQUENT - 1, 100 * LEFT_TO_WAITERS + step));
        assert!(after(1, 100 * LEFT_TO_WAITERS + step));
    }
}
