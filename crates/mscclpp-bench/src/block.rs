//! The single block of a ping-pong's kernel on each side. It compares every element of every message.

use crate::prelude::*;

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
}

impl Block {
    pub(crate) fn on<'a>(&self, pair: &'a Pair) -> Result<BlockOnDevice<'a>> {
        let default = if pair.gpu.platform() == Platform::Sim { 32 } else { 1024 };
        let threads = self.threads.unwrap_or(default);
        Ok(BlockOnDevice { pair, threads, mismatches: pair.gpu.allocate(8)? })
    }
}

impl BlockOnDevice<'_> {
    pub(crate) fn config(&self) -> LaunchConfig {
        LaunchConfig::linear(1, self.threads)
    }

    /// The address of the kernel's count of wrong elements, set to 0: eight bytes of device memory.
    pub(crate) fn mismatches(&self) -> Result<DevicePtr> {
        self.mismatches.fill(0, 8, 0)?;
        Ok(self.mismatches.ptr())
    }

    /// Whether neither side's kernel has found a wrong element.
    pub(crate) fn found_all_right(&self) -> Result<bool> {
        let mut wrong = [0; 8];
        self.mismatches.read(0, &mut wrong)?;
        self.pair.ranks.all(wrong == [0; 8])
    }

    /// The row of a ping-pong with messages of `bytes` bytes, without times.
    pub(crate) fn row(&self, workload: &str, bytes: u64, rounds: u32) -> Row {
        Row::new(workload, format!("1x{}", self.threads), (bytes, SizeOf::Bytes), rounds)
    }
}
