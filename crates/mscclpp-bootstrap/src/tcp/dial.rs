//! Trying the addresses of a rank until one works.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::Attempt;
use crate::protocol::hello::Purpose;

/// The first pause after all addresses have failed; it doubles up to [`LAST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_millis(200);

/// How an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failed {
    /// Nobody listens there.
    Refused,
    /// Somebody answers who is not of our job.
    Unproven(String),
    /// Anything else.
    Other(String),
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused => write!(f, "nobody listens there"),
            Self::Unproven(text) | Self::Other(text) => write!(f, "{text}"),
        }
    }
}

/// The search for a connection to one rank: one address after the other, all of them again and again.
///
/// One at a time, because an abandoned connection could by then have been taken for the rank's.
pub(crate) struct Dial {
    pub(crate) purpose: Purpose,
    pub(crate) deadline: Instant,
    pub(crate) started: Instant,
    candidates: Vec<(SocketAddr, Option<Failed>)>,
    next: usize,
    rounds: u32,
    active: bool,
    retry_at: Instant,
}

impl Dial {
    pub(crate) fn new(
        purpose: Purpose,
        candidates: Vec<SocketAddr>,
        now: Instant,
        deadline: Instant,
    ) -> Self {
        Self {
            purpose,
            deadline,
            started: now,
            candidates: candidates.into_iter().map(|address| (address, None)).collect(),
            next: 0,
            rounds: 0,
            active: false,
            retry_at: now,
        }
    }

    /// The address to try now, if it is time.
    pub(crate) fn attempt(&mut self, now: Instant) -> Option<SocketAddr> {
        if self.active || now < self.retry_at {
            return None;
        }
        let (address, _) = *self.candidates.get(self.next).as_ref()?;
        self.active = true;
        Some(*address)
    }

    /// How long an attempt may take before the next address has its turn.
    pub(crate) fn attempt_limit(&self) -> Duration {
        let patience = if self.candidates.len() == 1 { 5 } else { (1 + u64::from(self.rounds)).min(5) };
        Duration::from_secs(patience)
    }

    /// The attempt failed.
    pub(crate) fn failed(&mut self, how: Failed, now: Instant) {
        self.active = false;
        if let Some((_, last)) = self.candidates.get_mut(self.next) {
            *last = Some(how);
        }
        self.next += 1;
        if self.next >= self.candidates.len() {
            self.next = 0;
            self.retry_at = now + LAST_PAUSE.min(FIRST_PAUSE * 2_u32.saturating_pow(self.rounds.min(10)));
            self.rounds += 1;
        }
    }

    /// When to look again.
    pub(crate) fn wake_at(&self) -> Instant {
        let idle = self.active || self.candidates.is_empty();
        if idle { self.deadline } else { self.retry_at.min(self.deadline) }
    }

    /// Whether nobody listens at any address: the rank is gone, or not there yet.
    pub(crate) fn all_refused(&self) -> bool {
        self.rounds > 0 && self.candidates.iter().all(|(_, last)| *last == Some(Failed::Refused))
    }

    /// Whether each address leads to somebody who is not of our job.
    pub(crate) fn all_unproven(&self) -> Option<(SocketAddr, String)> {
        if self.rounds == 0
            || !self.candidates.iter().all(|(_, last)| matches!(last, Some(Failed::Unproven(_))))
        {
            return None;
        }
        self.candidates
            .first()
            .map(|(address, last)| (*address, last.as_ref().map_or_else(String::new, ToString::to_string)))
    }

    /// What was tried, for an error.
    pub(crate) fn attempts(&self) -> Vec<Attempt> {
        let outcome =
            |last: &Option<Failed>| last.as_ref().map_or("no answer yet".to_owned(), ToString::to_string);
        self.candidates
            .iter()
            .map(|(address, last)| Attempt { address: *address, outcome: outcome(last) })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses() -> Vec<SocketAddr> {
        vec!["10.0.0.1:1".parse().unwrap(), "10.0.0.2:1".parse().unwrap()]
    }

    #[test]
    fn all_addresses_have_their_turn_and_pauses_grow() {
        let start = Instant::now();
        let mut now = start;
        let mut dial = Dial::new(Purpose::Join, addresses(), now, now + Duration::from_secs(60));
        for round in 0..10 {
            for address in addresses() {
                assert_eq!(dial.attempt(now), Some(address));
                assert_eq!(dial.attempt(now), None, "one at a time");
                dial.failed(Failed::Refused, now);
            }
            assert!(dial.all_refused());
            assert_eq!(dial.attempt(now), None, "a pause after each round");
            let pause = dial.wake_at() - now;
            assert_eq!(pause, LAST_PAUSE.min(FIRST_PAUSE * (1 << round)));
            now += pause;
        }
    }

    #[test]
    fn how_each_address_failed_is_kept() {
        let now = Instant::now();
        let mut dial = Dial::new(Purpose::Join, addresses(), now, now + Duration::from_secs(60));
        dial.attempt(now);
        dial.failed(Failed::Unproven("its key is another than ours".into()), now);
        assert!(dial.all_unproven().is_none());
        let outcomes: Vec<String> = dial.attempts().into_iter().map(|a| a.outcome).collect();
        assert_eq!(outcomes, ["its key is another than ours", "no answer yet"]);
        dial.attempt(now);
        dial.failed(Failed::Unproven("it demands a key".into()), now);
        assert_eq!(dial.all_unproven().unwrap().0, addresses()[0]);
        assert!(!dial.all_refused());
    }
}
