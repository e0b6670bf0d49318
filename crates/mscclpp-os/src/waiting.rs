//! How threads wait, log lines about long waits, and other log lines that would repeat often.
//!
//! A wait that does not end has a reason, and its user first needs a log line that names it. So every wait on the
//! host logs its reason after ten seconds, and then ever more rarely: each line comes at three times the waiting time
//! of the one before.

use std::time::{Duration, Instant};

pub use crate::backoff::Backoff;

use tracing::{Dispatch, subscriber::NoSubscriber};

/// The time after which a wait is first logged, unless another time was chosen.
pub const FIRST_LOG: Duration = Duration::from_secs(10);

/// The time after which a line that is due many times is logged for the second time.
const FIRST_REPEAT: Duration = Duration::from_secs(1);

/// Each line of a wait comes at this many times the waiting time of the line before it.
const FACTOR: u32 = 3;

/// Decides when to log a wait: 10, 30, 90 ... seconds after it began.
///
/// ```
/// use std::time::{Duration, Instant};
/// use mscclpp_os::waiting::{FIRST_LOG, LongWait};
///
/// let start = Instant::now();
/// let mut wait = LongWait::since(start, FIRST_LOG);
/// assert_eq!(wait.due(start + Duration::from_secs(9)), None);
/// assert_eq!(wait.due(start + Duration::from_secs(10)), Some(Duration::from_secs(10)));
/// assert_eq!(wait.due(start + Duration::from_secs(29)), None);
/// assert_eq!(wait.wake_at(), Some(start + Duration::from_secs(30)));
/// ```
#[derive(Debug, Clone)]
pub struct LongWait {
    started: Instant,
    /// `None` if the time cannot be represented: the wait is not logged any more.
    next: Option<Duration>,
}

impl LongWait {
    /// Begins a wait now, to be logged first after `first`. [`Duration::MAX`] means never.
    #[must_use]
    pub fn begin(first: Duration) -> Self {
        Self::since(Instant::now(), first)
    }

    /// Makes a wait that began at `started`.
    #[must_use]
    pub fn since(started: Instant, first: Duration) -> Self {
        // A first pause of zero would never grow.
        Self { started, next: Some(first.max(Duration::from_millis(1))) }
    }

    /// Returns the time at which the wait must be logged next, if ever.
    #[must_use]
    pub fn wake_at(&self) -> Option<Instant> {
        self.started.checked_add(self.next?)
    }

    /// Returns how long the wait has lasted, if it must be logged now. The next line then comes at three times this
    /// waiting time.
    pub fn due(&mut self, now: Instant) -> Option<Duration> {
        if self.wake_at()? > now {
            return None;
        }
        let waited = now.saturating_duration_since(self.started);
        // Counted from now, so that a thread that was held up does not log several lines at once.
        self.next = waited.checked_mul(FACTOR);
        Some(waited)
    }

    /// Logs `rank N: waiting for WHAT`, if it is time for a line. `what` is called only then.
    pub fn log(&mut self, now: Instant, rank: Option<usize>, what: impl FnOnce() -> String) {
        if let Some(waited) = self.due(now) {
            say(rank, waited, &what());
        }
    }
}

/// A line of the log that may be due many times a second. It is logged the first time, and then ever more rarely,
/// with the number of times that it was due.
///
/// ```
/// use std::time::{Duration, Instant};
/// use mscclpp_os::waiting::Repeated;
///
/// let start = Instant::now();
/// let mut line = Repeated::default();
/// assert_eq!(line.another(start).as_deref(), Some(""));
/// assert_eq!(line.another(start + Duration::from_millis(50)), None);
/// let later = line.another(start + Duration::from_secs(1));
/// assert_eq!(later.as_deref(), Some(" (repeated 2 times in 1.0s)"));
/// ```
#[derive(Debug, Clone, Default)]
pub struct Repeated {
    times: u64,
    since: Option<LongWait>,
}

impl Repeated {
    /// Counts one time more. Returns the text to put behind the line if it is to be logged now.
    pub fn another(&mut self, now: Instant) -> Option<String> {
        let Some(since) = &mut self.since else {
            self.since = Some(LongWait::since(now, FIRST_REPEAT));
            return Some(String::new());
        };
        self.times += 1;
        since.due(now).map(|passed| format!(" (repeated {} times in {passed:.1?})", self.times))
    }
}

/// Logs one line about a wait: a warning with target `mscclpp::wait`, or a line on standard error if the process has
/// no log subscriber. `what` may also be the text of a time-out, which itself begins with `waiting for`.
pub fn say(rank: Option<usize>, waited: Duration, what: &str) {
    let of_rank = rank.map_or_else(String::new, |rank| format!("rank {rank}: "));
    let waited = format!("{waited:.1?}");
    let what = what.strip_prefix("waiting for ").unwrap_or(what);
    if tracing::dispatcher::get_default(Dispatch::is::<NoSubscriber>) {
        eprintln!("mscclpp: {of_rank}waiting for {what} (for {waited} so far)");
    } else {
        tracing::warn!(target: "mscclpp::wait", "{of_rank}waiting for {what} (for {waited} so far)");
    }
}

#[cfg(test)]
mod tests {
    use mscclpp_test_support::Lines;

    use super::*;

    #[test]
    fn a_wait_is_said_ever_more_seldom() {
        let start = Instant::now();
        let mut wait = LongWait::since(start, FIRST_LOG);
        let said: Vec<u64> =
            (0..1000).filter(|&second| wait.due(start + Duration::from_secs(second)).is_some()).collect();
        assert_eq!(said, [10, 30, 90, 270, 810]);
    }

    #[test]
    fn a_thread_that_was_held_up_says_one_line() {
        let start = Instant::now();
        let mut wait = LongWait::since(start, FIRST_LOG);
        let late = start + Duration::from_secs(100);
        assert_eq!(wait.due(late), Some(Duration::from_secs(100)));
        assert_eq!(wait.due(late), None);
        assert_eq!(wait.wake_at(), Some(start + Duration::from_secs(300)));
    }

    #[test]
    fn never_and_at_once() {
        let start = Instant::now();
        let mut never = LongWait::since(start, Duration::MAX);
        assert_eq!(never.wake_at(), None);
        assert_eq!(never.due(start + Duration::from_secs(1 << 40)), None);
        let mut at_once = LongWait::since(start, Duration::ZERO);
        let said = (0..1000).filter(|&ms| at_once.due(start + Duration::from_millis(ms)).is_some()).count();
        assert!((1..=8).contains(&said), "{said} lines in a second");
    }

    #[test]
    fn the_line_is_a_warning_that_names_the_rank() {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            let start = Instant::now();
            let mut wait = LongWait::since(start, FIRST_LOG);
            wait.log(start + Duration::from_secs(5), Some(0), || unreachable!("not due"));
            wait.log(start + Duration::from_secs(12), Some(0), || {
                "rank 2: connect, tag 0, call 1".to_owned()
            });
        });
        let text = lines.text();
        for part in ["WARN", "mscclpp::wait", "rank 0: waiting for rank 2: connect, tag 0, call 1", "12.0s"] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(text.lines().count(), 1, "{text}");

        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
        let called = "waiting for a signal from rank 1";
        tracing::subscriber::with_default(subscriber, || say(None, FIRST_LOG, called));
        let text = lines.text();
        assert!(text.contains(" waiting for a signal from rank 1 (for 10.0s so far)"), "{text}");
        assert!(!text.contains("waiting for waiting"), "{text}");
    }
}
