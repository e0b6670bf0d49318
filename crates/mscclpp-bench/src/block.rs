//! The one block of a kernel that plays a ping-pong, on each side. It compares every element of every message.

use clap::Args;
use mscclpp::prelude::*;

use crate::{Result, measuring::Subject, pair::Pair, report::Known};

#[derive(Args)]
pub(crate) struct Block {
    /// Threads of the one block [default: 1024, 32 on simulated devices].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
}

/// The block on this rank's device.
pub(crate) struct BlockOnDevice<'a> {
    pair: &'a Pair,
    threads: u32,
    mismatches: DeviceBuffer,
    /// Of one element, between two GPUs, by 1024 threads.
    known: Known,
}

impl Block {
    pub(crate) fn on<'a>(&self, pair: &'a Pair, known: Known) -> Result<BlockOnDevice<'a>> {
        let default = if pair.gpu.platform() == Platform::Sim { 32 } else { 1024 };
        let threads = self.threads.unwrap_or(default);
        Ok(BlockOnDevice { pair, threads, mismatches: pair.gpu.allocate(8)?, known })
    }
}

impl BlockOnDevice<'_> {
    pub(crate) fn config(&self) -> LaunchConfig {
        LaunchConfig::linear(1, self.threads)
    }

    /// Where the kernel counts elements that are wrong, from 0 on: eight bytes of device memory.
    pub(crate) fn mismatches(&self) -> Result<DevicePtr> {
        self.mismatches.fill(0, 8, 0)?;
        Ok(self.mismatches.ptr())
    }

    /// Whether the kernels of both sides have found no element wrong.
    pub(crate) fn found_all_right(&self) -> Result<bool> {
        let mut wrong = [0; 8];
        self.mismatches.read(0, &mut wrong)?;
        self.pair.ranks.all(wrong == [0; 8])
    }

    /// Messages of so many bytes, back and forth.
    pub(crate) fn subject(
        &self,
        workload: &'static str,
        bytes: u64,
        element: u64,
        rounds: u32,
        parts: u32,
    ) -> Subject {
        let is_comparable = self.pair.is_of_two_gpus() && bytes == element && self.threads == 1024;
        let known = if is_comparable { self.known } else { (None, None) };
        Subject { workload, variant: format!("1x{}", self.threads), bytes, rounds, parts, launches: 1, known }
    }
}
