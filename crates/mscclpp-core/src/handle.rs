//! Device handles: plain structs that kernels get, laid out as in the CUDA headers, which have their methods.

use std::ops::Deref;

use mscclpp_gpu::KernelParam;

/// What kernels do with a semaphore between two devices: `MemoryDevice2DeviceSemaphoreDeviceHandle` in the headers.
///
/// It holds no reference: the [`DeviceToDeviceSemaphore`](crate::DeviceToDeviceSemaphore) must outlive the kernels that use
/// it.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct DeviceToDeviceSemaphoreHandle {
    /// Local device memory, counts the peers' signals.
    pub inbound_token: *mut u64,
    /// Local device memory, counts the tokens that waits here have claimed.
    pub expected_inbound_token: *mut u64,
    /// The peer's `inbound_token`, as mapped here.
    pub remote_inbound_token: *mut u64,
    /// Null where atomics reach the peer's memory; else two local words: a lock, and the count of signals sent.
    pub outbound_lock: *mut u64,
    /// Pinned host memory, four words: abort request, a wait timed out, a wait saw the abort, a call was refused.
    pub status: *mut u32,
}

/// What kernels do with a channel that only synchronises: `BaseMemoryChannelDeviceHandle` in the headers.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct BaseMemoryChannelHandle {
    /// The semaphore it signals and waits on.
    pub semaphore: DeviceToDeviceSemaphoreHandle,
}

impl Deref for BaseMemoryChannelHandle {
    type Target = DeviceToDeviceSemaphoreHandle;
    fn deref(&self) -> &Self::Target {
        &self.semaphore
    }
}

/// The handle by which kernels wait on a semaphore that hosts signal: `Host2DeviceSemaphoreDeviceHandle` in the headers.
///
/// It holds no reference: the semaphore must outlive the kernels that use it.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct HostToDeviceSemaphoreHandle {
    /// Two words side by side, 16-byte aligned, in memory that this device reaches: how many signals have come from the peer's
    /// kernels, and how many over its link.
    pub inbound_token: *mut u64,
    /// A word of local device memory: how many signals waits here have claimed.
    pub expected_inbound_token: *mut u64,
    /// Pinned host memory: abort request, a wait timed out, a wait saw the abort, reserved.
    pub status: *mut u32,
    /// In a port channel's handle, the parts that a kernel needs to make a handle of its own; else null.
    pub port: *const u64,
}

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

impl Deref for MemoryChannelHandle {
    type Target = BaseMemoryChannelHandle;
    fn deref(&self) -> &Self::Target {
        &self.base
    }
}

impl MemoryChannelHandle {
    /// In `flags`: a line of 128 bytes that a warp stores arrives whole at the peer, so LL128 packets work.
    pub const LINES_ARRIVE_WHOLE: u32 = 1;
}

// SAFETY: pointers and numbers, plain data, laid out as in the headers (`tests/layout` compares).
unsafe impl KernelParam for DeviceToDeviceSemaphoreHandle {}
// SAFETY: as above.
unsafe impl KernelParam for HostToDeviceSemaphoreHandle {}
// SAFETY: as above.
unsafe impl KernelParam for BaseMemoryChannelHandle {}
// SAFETY: as above.
unsafe impl KernelParam for MemoryChannelHandle {}
// SAFETY: addresses and numbers. No safe function goes where they point; a kernel or unsafe code that does answers for its
// accesses itself, whichever thread the handle came from.
unsafe impl Send for DeviceToDeviceSemaphoreHandle {}
// SAFETY: as above.
unsafe impl Sync for DeviceToDeviceSemaphoreHandle {}
// SAFETY: as above.
unsafe impl Send for HostToDeviceSemaphoreHandle {}
// SAFETY: as above.
unsafe impl Sync for HostToDeviceSemaphoreHandle {}
// SAFETY: as above.
unsafe impl Send for MemoryChannelHandle {}
// SAFETY: as above.
unsafe impl Sync for MemoryChannelHandle {}
