//! The names and parameters of the kernels in `memory_bench.cu`.

use mscclpp::{gpu::KernelParam, prelude::*};

use super::{Barriers, Move, Packets, Shape};

/// The parameters of a launch, which is one round, in the layout of the kernels' source.
#[derive(Debug, Clone, Copy, KernelParam)]
#[repr(C)]
pub(super) struct Round {
    pub(super) bytes: u64,
    pub(super) incoming: u64,
    /// The address of [`state::SIZE`] bytes of device memory, zero at first.
    pub(super) state: DevicePtr,
    pub(super) failed: DevicePtr,
    pub(super) workers: u32,
    pub(super) full: u32,
    pub(super) part: u64,
    pub(super) putters: u32,
    pub(super) first_unpacker: u32,
}

/// One channel for each block.
#[derive(Debug, Clone, Copy, KernelParam)]
#[repr(C)]
pub(super) struct OwnChannels {
    pub(super) of: [BaseMemoryChannelHandle; Self::MOST],
}

impl OwnChannels {
    pub(super) const MOST: usize = 64;
}

/// The bytes of shared memory of a block that moves by bulk copies: a `BulkStage<>` of the headers.
pub(super) const BULK_STAGE: u32 = (6 * 16384 + 6 * 8_u32).next_multiple_of(128);

/// The state that is kept from launch to launch: two barriers, each on a cache line of its own, and a flag for each block.
pub(super) mod state {
    pub(crate) const SIZE: u64 = 256 + 4 * MAX_BLOCKS as u64;
    pub(crate) const MAX_BLOCKS: u32 = 1024;
}

pub(super) fn name(what: Move, shape: Shape, barriers: Barriers) -> String {
    let entry = match what {
        Move::Put => "memory_put",
        Move::Get => "memory_get",
        Move::PutPackets(Packets::Ll8) => "memory_put_ll8",
        Move::PutPackets(Packets::Ll16) => "memory_put_ll16",
        Move::PutPackets(Packets::Ll128) => "memory_put_ll128",
    };
    let own = if barriers == Barriers::None { "_own" } else { "" };
    let bulk = if shape.is_bulk { "_bulk" } else { "" };
    format!("{entry}{bulk}{own}")
}
