use mscclpp_gpu::KernelParam;

use super::BaseMemoryChannelHandle;

/// What kernels do with a channel that moves data: `MemoryChannelDeviceHandle` in the headers.
///
/// It holds no reference: the [`MemoryChannel`](crate::MemoryChannel) must outlive the kernels that use it.
///
/// Data goes between `dst`, the peer's memory, and `src`, this side's; packets go into the peer's packet buffer, which
/// is `dst` for whoever puts them, and are taken out of `packet_buffer` by their receiver.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct MemoryChannelHandle {
    /// The semaphore it signals and waits on.
    pub base: BaseMemoryChannelHandle,
    /// The peer's memory, as mapped here.
    pub dst: *mut u8,
    /// This side's memory.
    pub src: *mut u8,
    /// This side's packet buffer, or null.
    pub packet_buffer: *mut u8,
    /// [`MemoryChannelHandle::LINES_ARRIVE_WHOLE`], or 0.
    pub flags: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: pointers and numbers, plain data, laid out as in the header (`tests/layout.rs` compares).
unsafe impl KernelParam for MemoryChannelHandle {}
// SAFETY: addresses and numbers. No safe function goes where they point; a kernel or unsafe code that does answers for
// its accesses itself, whichever thread the handle came from.
unsafe impl Send for MemoryChannelHandle {}
// SAFETY: as above.
unsafe impl Sync for MemoryChannelHandle {}

impl std::ops::Deref for MemoryChannelHandle {
    type Target = BaseMemoryChannelHandle;
    fn deref(&self) -> &Self::Target {
        &self.base
    }
}

impl MemoryChannelHandle {
    /// In `flags`: a line of 128 bytes that a warp stores arrives whole at the peer, so LL128 packets work.
    pub const LINES_ARRIVE_WHOLE: u32 = 1;
}
