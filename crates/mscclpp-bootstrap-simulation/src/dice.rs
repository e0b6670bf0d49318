//! Reproducible random numbers.

use std::time::Duration;

/// Random numbers that follow from a seed (SplitMix64).
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `limit`, which must not be 0.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        (self.word() % limit as u64) as usize
    }

    /// Returns true in this percentage of cases.
    pub(super) fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(super) fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let span = most.saturating_sub(least).as_nanos() as u64;
        least + Duration::from_nanos(if span == 0 { 0 } else { self.word() % span })
    }

    pub(super) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.word() as u8).collect()
    }

    pub(super) fn nonce(&mut self) -> [u8; 32] {
        std::array::from_fn(|_| self.word() as u8)
    }
}
