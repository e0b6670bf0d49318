//! Choices that differ from run to run.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    ops::RangeInclusive,
};

use mscclpp::prelude::*;

/// A sequence of numbers from a seed that is printed.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new() -> Self {
        let seed = RandomState::new().build_hasher().finish();
        println!("seed {seed:#x}");
        Self(seed)
    }

    /// splitmix64.
    pub(crate) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn of(&mut self, range: RangeInclusive<u64>) -> u64 {
        range.start() + self.word() % (range.end() - range.start() + 1)
    }

    pub(crate) fn bytes(&mut self, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.word().to_ne_bytes()[..chunk.len()]);
        }
        bytes
    }

    /// Blocks and threads, of which some have nothing to do. Whole warps, if asked for.
    pub(crate) fn shape(&mut self, whole_warps: bool) -> LaunchConfig {
        let threads = match whole_warps {
            true => 32 * self.of(1..=32),
            false => self.of(1..=1024),
        };
        LaunchConfig::linear(self.of(1..=4) as u32, threads as u32)
    }
}
