//! What the kernels of `memory_bench.cu` are called and get.

use mscclpp::{BaseMemoryChannelHandle, DevicePtr, KernelParam};

use super::{Barriers, Move, Packets};

/// A launch is one round; laid out as in the kernels' source.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Round {
    pub(crate) bytes: u64,
    pub(crate) incoming: u64,
    /// [`state::SIZE`] bytes of device memory, zeroed.
    pub(crate) state: DevicePtr,
    pub(crate) failed: DevicePtr,
    pub(crate) workers: u32,
    pub(crate) full: u32,
    pub(crate) part: u64,
    pub(crate) putters: u32,
    pub(crate) first_unpacker: u32,
}

// SAFETY: plain data without padding, laid out as in the kernels' source.
unsafe impl KernelParam for Round {}

/// One channel for each block.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct OwnChannels {
    pub(crate) of: [BaseMemoryChannelHandle; Self::MOST],
}

impl OwnChannels {
    pub(crate) const MOST: usize = 64;
}

// SAFETY: handles, plain data, laid out as in the kernels' source.
unsafe impl KernelParam for OwnChannels {}

/// Where what stays from launch to launch is.
pub(crate) mod state {
    pub(crate) const BEGIN: u64 = 0;
    pub(crate) const END: u64 = 128;
    pub(crate) const FLAGS: u64 = 256;
    pub(crate) const SIZE: u64 = FLAGS + 4 * MAX_BLOCKS as u64;
    pub(crate) const MAX_BLOCKS: u32 = 1024;
}

pub(super) fn name(what: Move, barriers: Barriers) -> String {
    let entry = match what {
        Move::Put => "memory_put",
        Move::Get => "memory_get",
        Move::PutPackets(Packets::Ll8) => "memory_put_ll8",
        Move::PutPackets(Packets::Ll16) => "memory_put_ll16",
        Move::PutPackets(Packets::Ll128) => "memory_put_ll128",
    };
    let own = if barriers == Barriers::None { "_own" } else { "" };
    format!("{entry}{own}")
}

#[cfg(test)]
mod tests {
    use mscclpp::{MemoryChannelHandle, kernels};

    use super::*;

    /// What the kernels are handed has the sizes that they were compiled for.
    #[test]
    fn the_parameters_are_as_large_as_in_the_kernels() {
        let sizes = [size_of::<MemoryChannelHandle>(), size_of::<Round>(), size_of::<OwnChannels>()];
        for (n, size) in sizes.into_iter().enumerate() {
            let parameter = format!("memory_put_own_param_{n}[{size}]");
            assert!(kernels::MEMORY_BENCH.contains(&parameter), "{parameter}");
        }
    }
}
