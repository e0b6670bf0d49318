//! How a host waits for signals, over abstract words, so that the same code runs on memory and under a model checker.
//! `semaphore_device.hpp` is the kernels' side and keeps the same invariants.
//!
//! # Invariants
//! 1. An inbound token only grows, by one per signal, and only signals write it. If signals come in two ways, the
//!    token has two words, one for each way, and counts as their sum: each word has one kind of writer.
//! 2. `expected` only grows, by one per claimed token, and only this side's waits write it.
//! 3. Each token is claimed once. An unbounded wait claims ticket `expected + 1` at once and stays until the token
//!    reaches it. A poll or a bounded wait reserves nothing: it claims ticket `e + 1` by compare-and-swap of
//!    `expected` from `e`, and only when the token has reached it, so that a wait that gives up has nothing to undo.
//! 4. No waiter is stranded: tickets are claimed without gaps, every claimed ticket is either satisfied or held by an
//!    unbounded wait, and so `n` signals satisfy the holders of tickets up to `n`, whichever kind they are.
//! 5. An abort is never taken back, so nobody else misses the ticket of an aborted unbounded wait.
//!
//! # Ordering
//! The release of a signal on the inbound token pairs with the acquire load of it by the wait that sees the count or
//! a later one: signals are read-modify-writes, which form one release sequence, or release stores under a lock that
//! orders them, so everything the signalling thread did before is visible after the wait. Claims are relaxed: they
//! order nothing. The headers do the same at system scope.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A word that several threads or processes share.
pub trait SharedWord {
    /// The integer that the word holds.
    type Value: Copy;
    /// The number of polls after which a wait looks at `abort`, each time. A model checker, which tries every
    /// interleaving, has fewer.
    const POLLS_BEFORE_ABORT_CHECK: u64 = 64;
    /// Loads the value as the atomics of `std` do.
    fn load(&self, order: Ordering) -> Self::Value;
    /// Stores a value as the atomics of `std` do.
    fn store(&self, value: Self::Value, order: Ordering);
    /// Adds to the value as the atomics of `std` do.
    fn fetch_add(&self, value: Self::Value, order: Ordering) -> Self::Value;
    /// Compares and exchanges as the atomics of `std` do, with relaxed failure.
    fn compare_exchange(
        &self,
        from: Self::Value,
        to: Self::Value,
        order: Ordering,
    ) -> Result<Self::Value, Self::Value>;
}

macro_rules! shared_word {
    ($atomic:ty, $value:ty) => {
        impl SharedWord for $atomic {
            type Value = $value;
            fn load(&self, order: Ordering) -> $value {
                <$atomic>::load(self, order)
            }
            fn store(&self, value: $value, order: Ordering) {
                <$atomic>::store(self, value, order);
            }
            fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                <$atomic>::fetch_add(self, value, order)
            }
            fn compare_exchange(&self, from: $value, to: $value, order: Ordering) -> Result<$value, $value> {
                <$atomic>::compare_exchange(self, from, to, order, Ordering::Relaxed)
            }
        }
    };
}
shared_word!(AtomicU32, u32);
shared_word!(AtomicU64, u64);

/// The words of the waiting side of a semaphore.
#[derive(Debug)]
pub struct SemaphoreWords<'a, W64, W32> {
    /// The peers' signals; see invariant 1.
    pub inbound: &'a W64,
    /// The peers' signals that come over a link, if they can come that way.
    pub inbound_by_link: Option<&'a W64>,
    /// The tickets claimed here; see invariant 2.
    pub expected: &'a W64,
    /// The words that end waits and say why.
    pub status: StatusWords<'a, W32>,
}

/// The words by which the host ends the waits of kernels, and kernels report how their waits ended.
#[derive(Debug)]
pub struct StatusWords<'a, W32> {
    /// Non-zero to make waits give up.
    pub abort: &'a W32,
    /// Set to 1 by a wait that ran out of polls.
    pub timed_out: &'a W32,
    /// Set to 1 by a wait that saw `abort`.
    pub aborted: &'a W32,
    /// The reason why a call was refused, or 0.
    pub refused: &'a W32,
}

impl<'a, W32> StatusWords<'a, W32> {
    /// Takes the four words in the order of the header's `StatusWord`.
    pub fn of(words: &'a [W32; 4]) -> Self {
        let [abort, timed_out, aborted, refused] = words;
        Self { abort, timed_out, aborted, refused }
    }
}

impl<W32: SharedWord<Value = u32>> StatusWords<'_, W32> {
    /// Calls `got` until it finds something, and returns that: for ever with `max_spins < 0`, else that many times.
    /// Returns `None` if it gave up; `timed_out` or `aborted` then says why.
    pub fn poll_until<T>(
        &self,
        mut got: impl FnMut() -> Option<T>,
        max_spins: i64,
        mut backoff: impl FnMut(),
    ) -> Option<T> {
        let mut polls = 0u64;
        loop {
            if let Some(found) = got() {
                return Some(found);
            }
            polls += 1;
            if polls.is_multiple_of(W32::POLLS_BEFORE_ABORT_CHECK) && self.abort.load(Ordering::Relaxed) != 0
            {
                // One last look: a signal from before the abort still counts, also one that `backoff` brings.
                backoff();
                let found = got();
                if found.is_none() {
                    self.aborted.store(1, Ordering::Release);
                }
                return found;
            }
            if max_spins >= 0 && polls >= max_spins.cast_unsigned() {
                self.timed_out.store(1, Ordering::Release);
                return None;
            }
            backoff();
        }
    }
}

impl<W64: SharedWord<Value = u64>, W32: SharedWord<Value = u32>> SemaphoreWords<'_, W64, W32> {
    /// Returns how many signals have come, at least. Both words only grow, so the sum of values that were read one
    /// after the other is no more than the present sum.
    fn arrived(&self, order: Ordering) -> u64 {
        self.inbound.load(order) + self.inbound_by_link.map_or(0, |word| word.load(order))
    }

    /// Claims a token if there is one. `order` is `Acquire` or `Relaxed`.
    pub fn poll(&self, order: Ordering) -> bool {
        let mut expected = self.expected.load(Ordering::Relaxed);
        while self.arrived(order) > expected {
            match self.expected.compare_exchange(expected, expected + 1, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => expected = now,
            }
        }
        false
    }

    /// Claims a token, waiting for it: for ever with `max_spins < 0`, else for that many polls. Returns false if it
    /// gave up; the status then says why.
    pub fn wait(&self, order: Ordering, max_spins: i64, backoff: impl FnMut()) -> bool {
        let ticket = (max_spins < 0).then(|| self.expected.fetch_add(1, Ordering::Relaxed) + 1);
        let got = || match ticket {
            Some(ticket) => self.arrived(order) >= ticket,
            None => self.poll(order),
        };
        self.status.poll_until(|| got().then_some(()), max_spins, backoff).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Words {
        inbound: AtomicU64,
        expected: AtomicU64,
        status: [AtomicU32; 4],
    }

    impl Words {
        fn view(&self) -> SemaphoreWords<'_, AtomicU64, AtomicU32> {
            SemaphoreWords {
                inbound: &self.inbound,
                inbound_by_link: None,
                expected: &self.expected,
                status: StatusWords::of(&self.status),
            }
        }
    }

    #[test]
    fn a_wait_that_timed_out_has_consumed_nothing() {
        let words = Words::default();
        let view = words.view();
        assert!(!view.wait(Ordering::Acquire, 10, || ()));
        assert_eq!(words.status[1].load(Ordering::Relaxed), 1);
        words.inbound.store(1, Ordering::Release);
        assert!(view.wait(Ordering::Acquire, 10, || ()));
        assert!(!view.poll(Ordering::Acquire));
    }

    #[test]
    fn an_abort_ends_waits_but_not_what_has_arrived() {
        let words = Words::default();
        let view = words.view();
        words.status[0].store(1, Ordering::Relaxed);
        words.inbound.store(1, Ordering::Release);
        assert!(view.wait(Ordering::Acquire, -1, || ()), "the signal came before");
        assert!(!view.wait(Ordering::Acquire, -1, || ()));
        assert_eq!(words.status[2].load(Ordering::Relaxed), 1);
    }

    #[test]
    fn what_has_arrived_and_is_stored_by_the_wait_itself_counts_after_an_abort() {
        for max_spins in [-1, 1000] {
            let words = Words::default();
            let mut backoffs = 0;
            // The signal arrives just before the wait looks at the abort.
            let store = || {
                backoffs += 1;
                if backoffs == AtomicU32::POLLS_BEFORE_ABORT_CHECK {
                    words.inbound.store(1, Ordering::Release);
                }
            };
            words.status[0].store(1, Ordering::Relaxed);
            assert!(words.view().wait(Ordering::Acquire, max_spins, store));
        }
    }
}
