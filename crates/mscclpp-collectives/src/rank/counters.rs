//! Words in the memory of a rank's own device.

use mscclpp::{DeviceBuffer, DevicePtr, Gpu};

use crate::{
    Result,
    handle::{Reach, WORDS_BEFORE},
};

/// The number of blocks that move messages between each two ranks, in each direction.
pub(crate) const LANES: u32 = 8;

/// Words of the device's own: whether a launch gave up and a call runs (`CollectiveWords`), an epoch for each block, the counts
/// of messages, the words that a barrier moves, and those by which kernels reach published memory.
pub(crate) struct Counters {
    pub(crate) buffer: DeviceBuffer,
    messages: u64,
    barrier: u64,
    pub(crate) reach: u64,
}

impl Counters {
    pub(crate) fn new(gpu: &Gpu, ranks: usize, max_blocks: u32) -> Result<Self> {
        let messages = 8 * (WORDS_BEFORE + u64::from(max_blocks));
        let ranks = ranks as u64;
        let barrier = messages + 8 * ranks * 2 * u64::from(LANES);
        let reach = barrier + 8 * (1 + ranks);
        // Fresh memory is zero.
        let buffer = gpu.allocate(reach + size_of::<Reach>() as u64)?;
        Ok(Self { buffer, messages, barrier, reach })
    }

    pub(crate) fn epochs(&self) -> DevicePtr {
        self.buffer.ptr().add(8 * WORDS_BEFORE)
    }

    pub(crate) fn messages(&self) -> DevicePtr {
        self.buffer.ptr().add(self.messages)
    }

    /// A word to give, followed by a word for each rank.
    pub(crate) fn barrier(&self) -> DevicePtr {
        self.buffer.ptr().add(self.barrier)
    }
}
