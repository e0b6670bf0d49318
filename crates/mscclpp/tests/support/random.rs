//! Choices that differ from run to run.

use std::ops::{Deref, DerefMut};

use mscclpp::prelude::*;

/// Random numbers, data and shapes of kernels, from a seed that is printed.
pub(crate) struct Random(mscclpp_test_support::Random);

impl Random {
    pub(crate) fn new() -> Self {
        Self(mscclpp_test_support::Random::new())
    }

    pub(crate) fn bytes(&mut self, len: u64) -> Vec<u8> {
        self.0.bytes(len as usize)
    }

    /// Returns numbers of blocks and threads, of which some have nothing to do. They are whole warps if asked for.
    pub(crate) fn shape(&mut self, whole_warps: bool) -> LaunchConfig {
        let threads = match whole_warps {
            true => 32 * self.of(1..=32),
            false => self.of(1..=1024),
        };
        LaunchConfig::linear(self.of(1..=4) as u32, threads as u32)
    }
}

impl Deref for Random {
    type Target = mscclpp_test_support::Random;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Random {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}
