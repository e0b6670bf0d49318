//! Whether threads that wait serve a receiver so often that the hub's thread may leave it to them.

use std::time::{Duration, Instant};

/// How often waiting threads have served a receiver.
pub(super) struct Assists {
    count: u64,
    /// Since when they are counted.
    since: Instant,
}

/// So many looks within [`ASSISTED`] are frequent. A thread that spins makes hundreds. One that sleeps in between, or polls
/// now and then, is no faster than events. Its peer, which knows of few receives, would wait for it.
const FREQUENT: u64 = 32;

/// How long a receiver is left to waiting threads before the hub's thread looks again.
pub(crate) const ASSISTED: Duration = Duration::from_millis(1);

impl Assists {
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
        if elapsed < ASSISTED {
            return count >= FREQUENT;
        }
        *self = Self { count: 0, since: now };
        u128::from(count) * ASSISTED.as_nanos() >= u128::from(FREQUENT) * elapsed.as_nanos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_frequent_by_how_many_there_are_in_a_time() {
        let start = Instant::now();
        let mut assists = Assists { count: 0, since: start };
        let mut after = |count, time| {
            assists.count += count;
            assists.are_frequent(start + time)
        };
        let step = ASSISTED / 20;
        assert!(!after(20, step), "not yet");
        assert!(after(20, 2 * step), "events one after the other do not begin the count anew");
        assert!(after(0, ASSISTED), "as many as that in the whole time");
        assert!(!after(FREQUENT / 2, 2 * ASSISTED));
        assert!(!after(50 * FREQUENT, 100 * ASSISTED), "a few at a time add up over a long time");
        assert!(!after(FREQUENT - 1, 100 * ASSISTED + step));
        assert!(after(1, 100 * ASSISTED + step));
    }
}
