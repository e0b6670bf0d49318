//! What launches of collectives keep alive, and ask what became of their waits.

use std::sync::atomic::AtomicU32;

use mscclpp::{
    DeviceBuffer,
    gpu::{KernelObject, KernelWait, Owner, PinnedBuffer},
};

/// Channels, and memory that no channel keeps.
pub(crate) struct Kept {
    channels: Vec<Owner>,
    _memory: Vec<DeviceBuffer>,
    _mismatch: PinnedBuffer<AtomicU32>,
}

impl Kept {
    pub(crate) fn new(
        channels: Vec<Owner>,
        memory: Vec<DeviceBuffer>,
        mismatch: PinnedBuffer<AtomicU32>,
    ) -> Self {
        Self { channels, _memory: memory, _mismatch: mismatch }
    }
}

impl KernelObject for Kept {
    fn peers(&self) -> Vec<String> {
        self.channels.peers()
    }

    fn waits(&self) -> Vec<KernelWait> {
        self.channels.waits()
    }

    fn may_have_failed(&self) -> bool {
        self.channels.may_have_failed()
    }

    fn check(&self) -> Result<(), mscclpp::errors::GpuError> {
        self.channels.check()
    }
}
