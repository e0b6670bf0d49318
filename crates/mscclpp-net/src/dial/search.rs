//! Tries one address after the other, round after round, for callers with an event loop of their own.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use super::{Attempt, Failed};

/// The first pause after all addresses have failed; it doubles up to [`LAST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_millis(200);
/// The pause if a process answers at every address but none proves to be the peer. It may be the peer with another key,
/// and thousands of ranks may ask it.
const STRANGERS_PAUSE: Duration = Duration::from_secs(1);
/// How many connections to an address may be ended by the process that listens there before other addresses have their turn:
/// the listener of a unique id ends those that come while rank 0 takes it over.
const MOST_ENDED: u32 = 5;

/// An address at which the peer may be.
struct Candidate {
    address: SocketAddr,
    /// How the last attempt failed.
    last: Option<Failed>,
    /// The answer of a process at this address that has not proved to be the peer.
    unproven: Option<String>,
    /// An attempt was passed over and has not ended yet, so the address needs no other attempt.
    pending: bool,
    /// How many connections were ended by the process that listens there.
    ended: u32,
}

/// The search for a connection to one peer. It opens no connection: it says which address to try, and its caller
/// reports how the attempt ended.
///
/// There is one attempt at a time, because a second connection would look like a second caller to the peer. An
/// attempt that waits for its answer can be passed over: it goes on while the next address is tried.
pub struct Search {
    started: Instant,
    deadline: Instant,
    candidates: Vec<Candidate>,
    next: usize,
    rounds: u32,
    active: bool,
    retry_at: Instant,
}

impl Search {
    /// Makes a search over these addresses, best first, that begins at `now` and ends at `deadline`.
    #[must_use]
    pub fn new(candidates: Vec<SocketAddr>, now: Instant, deadline: Instant) -> Self {
        let candidate = |address| Candidate { address, last: None, unproven: None, pending: false, ended: 0 };
        Self {
            started: now,
            deadline,
            candidates: candidates.into_iter().map(candidate).collect(),
            next: 0,
            rounds: 0,
            active: false,
            retry_at: now,
        }
    }

    /// Returns the time at which the search began.
    #[must_use]
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Returns the time at which the search ends.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns the address to try now, or `None` while there is nothing to try.
    pub fn attempt(&mut self, now: Instant) -> Option<SocketAddr> {
        if self.active || now < self.retry_at {
            return None;
        }
        let address = self.candidates.get(self.next)?.address;
        self.active = true;
        Some(address)
    }

    /// Returns how long an attempt may take before the next address has its turn.
    #[must_use]
    pub fn attempt_limit(&self) -> Duration {
        let patience = if self.candidates.len() == 1 { 5 } else { (1 + u64::from(self.rounds)).min(5) };
        Duration::from_secs(patience)
    }

    /// Notes that an attempt failed. Returns true if this is the first answer at this address of a process that has
    /// not proved to be the peer.
    pub fn failed(&mut self, address: SocketAddr, how: Failed, now: Instant) -> bool {
        let current = self.is_current(address);
        let at = if current {
            Some(self.next)
        } else {
            self.candidates.iter().position(|candidate| candidate.address == address)
        };
        let Some(candidate) = at.and_then(|at| self.candidates.get_mut(at)) else { return false };
        let mut news = false;
        if let Failed::Unproven(what) = &how {
            news = candidate.unproven.replace(what.clone()).is_none();
        }
        let ended = matches!(how, Failed::Ended(_)) && candidate.ended < MOST_ENDED;
        candidate.ended += u32::from(ended);
        let pause = FIRST_PAUSE * 2_u32.pow(candidate.ended);
        candidate.last = Some(how);
        candidate.pending = false;
        if current && ended {
            self.active = false;
            self.retry_at = now + pause;
        } else if current {
            self.advance(now);
        }
        news
    }

    /// Leaves an attempt to go on by itself and turns to the next address. Returns `false` if there is no other to
    /// try.
    pub fn pass_over(&mut self, address: SocketAddr, now: Instant) -> bool {
        let current = self.is_current(address);
        let other = |(at, candidate): (usize, &Candidate)| at != self.next && !candidate.pending;
        if !current || !self.candidates.iter().enumerate().any(other) {
            return false;
        }
        if let Some(candidate) = self.candidates.get_mut(self.next) {
            candidate.pending = true;
            candidate.last = Some(Failed::Other("it has not answered our proof".to_owned()));
        }
        self.advance(now);
        true
    }

    fn is_current(&self, address: SocketAddr) -> bool {
        self.active && self.candidates.get(self.next).is_some_and(|candidate| candidate.address == address)
    }

    /// Goes on to the next address that is not pending. There is always one, because `pass_over` does not make the
    /// last one pending.
    fn advance(&mut self, now: Instant) {
        self.active = false;
        loop {
            self.next += 1;
            if self.next >= self.candidates.len() {
                self.next = 0;
                self.rounds += 1;
                let pause = FIRST_PAUSE * 2_u32.saturating_pow((self.rounds - 1).min(10));
                let strangers = self.unproven().is_some();
                self.retry_at = now + if strangers { STRANGERS_PAUSE } else { LAST_PAUSE.min(pause) };
            }
            if self.candidates.get(self.next).is_none_or(|candidate| !candidate.pending) {
                return;
            }
        }
    }

    /// Returns the time at which to call [`Search::attempt`] again.
    #[must_use]
    pub fn wake_at(&self) -> Instant {
        let idle = self.active || self.candidates.is_empty();
        if idle { self.deadline } else { self.retry_at.min(self.deadline) }
    }

    /// Returns whether all addresses refuse connections: the peer is gone, or has not started yet.
    #[must_use]
    pub fn all_refused(&self) -> bool {
        self.rounds > 0 && self.candidates.iter().all(|candidate| candidate.last == Some(Failed::Refused))
    }

    /// Returns the first address and the answer given there if every address has led to a process that does not prove
    /// to be the peer. Processes that have ended since count too.
    #[must_use]
    pub fn unproven(&self) -> Option<(SocketAddr, String)> {
        let stranger = |candidate: &Candidate| {
            candidate.unproven.is_some()
                && matches!(candidate.last, Some(Failed::Unproven(_) | Failed::Refused))
        };
        if self.rounds == 0 || !self.candidates.iter().all(stranger) {
            return None;
        }
        self.candidates.first().and_then(|first| Some((first.address, first.unproven.clone()?)))
    }

    /// Returns the addresses tried and how each failed, for an error message.
    #[must_use]
    pub fn attempts(&self) -> Vec<Attempt> {
        let outcome = |candidate: &Candidate| match (&candidate.last, &candidate.unproven) {
            (None, _) => "no answer yet".to_owned(),
            (Some(last @ Failed::Unproven(_)), _) | (Some(last), None) => last.to_string(),
            (Some(last), Some(before)) => format!("{last}; before that, {before}"),
        };
        self.candidates
            .iter()
            .map(|candidate| Attempt { address: candidate.address, outcome: outcome(candidate) })
            .collect()
    }
}
