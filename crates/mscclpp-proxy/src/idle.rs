//! The pauses of a proxy's thread while there is no work.

use std::{
    hint, thread,
    time::{Duration, Instant},
};

use mscclpp_gpu::Platform;

/// How soon an idle proxy backs off, and how far. A busy proxy never sleeps.
///
/// After the last trigger the proxy polls for `spin`, and yields to other threads now and then. After that it naps
/// between polls. The naps grow until, from `slow_after` on, each lasts `max_nap`. So the first trigger after a pause
/// waits for at most one nap, and for as long as the system takes to wake a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdlePolicy {
    /// How long the proxy polls without napping.
    pub spin: Duration,
    /// The longest nap; zero for no naps at all.
    pub max_nap: Duration,
    /// The idle time after which naps are at their longest.
    pub slow_after: Duration,
}

impl IdlePolicy {
    /// Never naps: the lowest latency, but it occupies a whole core.
    pub const NEVER_SLEEP: Self =
        Self { spin: Duration::MAX, max_nap: Duration::ZERO, slow_after: Duration::ZERO };

    /// Returns the default policy for a device of `platform`: naps of up to 500 microseconds, after a second without
    /// work. Simulated devices share the cores with their proxies, so their proxies spin for a shorter time.
    #[must_use]
    pub fn of(platform: Platform) -> Self {
        let spin = if platform == Platform::Sim { 100 } else { 20_000 };
        Self {
            spin: Duration::from_micros(spin),
            max_nap: Duration::from_micros(500),
            slow_after: Duration::from_secs(1),
        }
    }
}

/// The number of polls between two looks at the clock.
const POLLS_PER_LOOK: u32 = 64;
/// The time between two checks for failures that polls do not find.
const CHECK_PERIOD: Duration = Duration::from_millis(1);

/// The time since there has been nothing to do. It is no [`Backoff`](mscclpp_os::waiting::Backoff), which counts
/// looks, because its user sets its steps in time.
pub(crate) struct Idle {
    policy: IdlePolicy,
    polls: u32,
    since: Option<Instant>,
    checked: Option<Instant>,
}

impl Idle {
    pub(crate) fn new(policy: IdlePolicy) -> Self {
        Self { policy, polls: 0, since: None, checked: None }
    }

    /// Notes that there was something to do.
    pub(crate) fn reset(&mut self) {
        self.since = None;
        self.polls = 0;
    }

    /// Waits a little. Returns true every millisecond or so: it is then time to check for failures.
    pub(crate) fn pause(&mut self) -> bool {
        self.polls += 1;
        if self.polls < POLLS_PER_LOOK {
            hint::spin_loop();
            return false;
        }
        self.polls = 0;
        let now = Instant::now();
        let idle = now - *self.since.get_or_insert(now);
        let nap = if idle < self.policy.spin { Duration::ZERO } else { self.nap(idle) };
        if nap.is_zero() {
            thread::yield_now();
        } else {
            // The next pause looks at the clock at once.
            self.polls = POLLS_PER_LOOK - 1;
            thread::sleep(nap);
        }
        self.is_due(now)
    }

    /// Whether it is time to check for failures, which it is every millisecond or so.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let due = self.checked.is_none_or(|checked| now - checked >= CHECK_PERIOD);
        if due {
            self.checked = Some(now);
        }
        due
    }

    fn nap(&self, idle: Duration) -> Duration {
        let IdlePolicy { max_nap, slow_after, .. } = self.policy;
        match idle >= slow_after {
            true => max_nap,
            false => max_nap.mul_f64(idle.as_secs_f64() / slow_after.as_secs_f64()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn naps_grow_to_their_limit() {
        let idle = Idle::new(IdlePolicy::of(Platform::Sim));
        assert!(idle.nap(Duration::from_millis(1)) < Duration::from_micros(1));
        assert_eq!(idle.nap(Duration::from_millis(500)), Duration::from_micros(250));
        assert_eq!(idle.nap(Duration::from_secs(100)), Duration::from_micros(500));
        let at_once = IdlePolicy { slow_after: Duration::ZERO, ..IdlePolicy::of(Platform::Sim) };
        assert_eq!(Idle::new(at_once).nap(Duration::ZERO), Duration::from_micros(500));
    }

    /// Checks that the first look is due at once, and the next ones when a millisecond has passed and not before.
    #[test]
    fn checks_come_every_millisecond_without_naps() {
        let mut idle = Idle::new(IdlePolicy::NEVER_SLEEP);
        // Returns moments before and after the next look.
        let mut next = || {
            loop {
                let before = Instant::now();
                if idle.pause() {
                    return (before, Instant::now());
                }
            }
        };
        let (mut last, _) = next();
        for _ in 0..5 {
            let (before, behind) = next();
            assert!(behind - last >= CHECK_PERIOD, "two looks are {:?} apart", behind - last);
            last = before;
        }
    }

    #[test]
    fn work_resets_the_polls_but_not_the_checks() {
        let mut idle = Idle::new(IdlePolicy { spin: Duration::ZERO, ..IdlePolicy::of(Platform::Sim) });
        let looks = (0..10_000).filter(|_| {
            idle.reset();
            idle.pause()
        });
        assert_eq!(looks.count(), 0, "a busy proxy looks at the clock");
        assert!((0..POLLS_PER_LOOK).any(|_| idle.pause()), "an idle one does not");
    }
}
