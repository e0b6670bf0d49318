//! Whether threads that wait serve a receiver so often that the hub's thread may leave it to them.

use std::time::{Duration, Instant};

/// How often waiting threads have served a receiver.
pub(super) struct WaiterPolls {
    count: u64,
    /// Since when they are counted.
    since: Instant,
}

/// So many polls within [`LEFT_TO_WAITERS`] are frequent. A thread that spins makes hundreds. A thread that sleeps between
/// polls is no faster than events, and the peer, which may send only so much ahead, would have to wait for it.
const FREQUENT: u64 = 32;

/// How long a receiver is left to waiting threads before the hub's thread looks again.
pub(crate) const LEFT_TO_WAITERS: Duration = Duration::from_millis(1);

impl WaiterPolls {
    /// None so far.
    pub(super) fn new() -> Self {
        Self { count: 0, since: Instant::now() }
    }

    /// One more.
    pub(super) fn add(&mut self) {
        self.count += 1;
    }

    /// Whether there were many, in a time that ends now. Counts anew after each such time.
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
