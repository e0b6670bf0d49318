//! Random choices and data that differ from run to run, and can be repeated.

use std::ops::RangeInclusive;

/// The variable with the seed, as it was printed, that [`Random::new`] takes instead of a fresh one.
const SEED: &str = "MSCCLPP_TEST_SEED";

/// A sequence of random numbers.
#[derive(Debug)]
pub struct Random(fastrand::Rng);

impl Random {
    /// Starts with a fresh seed, which is printed: the run can be repeated with `MSCCLPP_TEST_SEED` set to it.
    ///
    /// # Panics
    /// Panics if that variable is set to something else than a number.
    #[allow(clippy::new_without_default, reason = "each is another one, which no default should be")]
    pub fn new() -> Self {
        let seed = match std::env::var(SEED) {
            Ok(text) => parse(&text).unwrap_or_else(|| panic!("{SEED}={text:?} is no number")),
            Err(_) => fastrand::u64(..),
        };
        println!("seed {seed:#x}; {SEED}={seed:#x} gives the same numbers again");
        Self::with_seed(seed)
    }

    /// Starts with this seed: the numbers are the same in each run.
    pub fn with_seed(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// Returns any number.
    pub fn word(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// Returns a number of the range.
    pub fn of(&mut self, range: RangeInclusive<u64>) -> u64 {
        self.0.u64(range)
    }

    /// Returns a number from 0 to `limit` - 1.
    ///
    /// # Panics
    /// Panics if `limit` is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0.usize(..limit)
    }

    /// Returns `len` random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.fill(&mut bytes);
        bytes
    }
}

fn parse(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_again_and_another_seed_something_else() {
        let of = |seed| Random::with_seed(seed).bytes(100);
        assert_eq!(of(7), of(7));
        assert_ne!(of(7), of(8));
        assert_eq!(Random::with_seed(7).bytes(0), []);
    }

    #[test]
    fn two_fresh_ones_differ() {
        assert_ne!(Random::new().bytes(32), Random::new().bytes(32));
    }

    #[test]
    fn numbers_stay_in_their_range_and_reach_its_ends() {
        let mut random = Random::new();
        let mut found: Vec<u64> = (0..10_000).map(|_| random.of(3..=9)).collect();
        found.extend((0..10_000).map(|_| 3 + random.below(7) as u64));
        found.sort_unstable();
        found.dedup();
        assert_eq!(found, [3, 4, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn a_printed_seed_is_read_back() {
        assert_eq!(parse("0xfedcba9876543210"), Some(0xfedc_ba98_7654_3210));
        assert_eq!(parse("42"), Some(42));
        assert_eq!(parse("many"), None);
    }
}
