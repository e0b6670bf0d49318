//! Device handles: plain structs that kernels get, laid out as in the CUDA headers, which define their methods
//! (`tests/layout` compares the layouts).

use std::ops::Deref;

use mscclpp_gpu::KernelParam;

/// The handle of a semaphore between two devices: `MemoryDevice2DeviceSemaphoreDeviceHandle` in the headers.
///
/// The handle holds no reference: the [`DeviceToDeviceSemaphore`](crate::DeviceToDeviceSemaphore) must outlive the
/// kernels that use it.
#[derive(Debug, Clone, Copy, KernelParam)]
#[repr(C)]
pub struct DeviceToDeviceSemaphoreHandle {
    /// A word of local device memory that counts the peers' signals.
    pub inbound_token: *mut u64,
    /// A word of local device memory that counts the tokens that waits here have claimed.
    pub expected_inbound_token: *mut u64,
    /// The peer's `inbound_token`, at the address where it is mapped here.
    pub remote_inbound_token: *mut u64,
    /// Null if atomics reach the peer's memory; else two local words: a lock, and the count of signals sent.
    pub outbound_lock: *mut u64,
    /// Four words of pinned host memory: abort request, a wait timed out, a wait saw the abort, a call was refused.
    pub status: *mut u32,
}

/// The handle of a channel that only synchronises: `BaseMemoryChannelDeviceHandle` in the headers.
#[derive(Debug, Clone, Copy, KernelParam)]
#[repr(C)]
pub struct BaseMemoryChannelHandle {
    /// The semaphore that the channel signals and waits on.
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
/// The handle holds no reference: the semaphore must outlive the kernels that use it.
#[derive(Debug, Clone, Copy, KernelParam)]
#[repr(C)]
pub struct HostToDeviceSemaphoreHandle {
    /// Two adjacent words, 16-byte aligned, in memory that this device reaches: the first counts signals from the
    /// peer's kernels, the second those over the link.
    pub inbound_token: *mut u64,
    /// A word of local device memory that counts the signals that waits here have claimed.
    pub expected_inbound_token: *mut u64,
    /// Four words of pinned host memory: abort request, a wait timed out, a wait saw the abort, a call was refused.
    pub status: *mut u32,
    /// In a port channel's handle, the parts of which a kernel makes a handle of its own; else null.
    pub port: *const u64,
}

/// The handle of a channel that moves data: `MemoryChannelDeviceHandle` in the headers.
///
/// The handle holds no reference: the [`MemoryChannel`](crate::MemoryChannel) must outlive the kernels that use it.
///
/// Data goes between `dst`, the peer's memory, and `src`, this side's. Packets go into the peer's packet buffer,
/// which is `dst` for the sender; their receiver takes them out of `packet_buffer`.
#[derive(Debug, Clone, Copy, KernelParam)]
#[repr(C)]
pub struct MemoryChannelHandle {
    /// The semaphore that the channel signals and waits on.
    pub base: BaseMemoryChannelHandle,
    /// The peer's memory, at the address where it is mapped here.
    pub dst: *mut u8,
    /// This side's memory.
    pub src: *mut u8,
    /// This side's packet buffer, or null.
    pub packet_buffer: *mut u8,
    /// [`MemoryChannelHandle::LINES_ARRIVE_WHOLE`], or 0.
    pub flags: u32,
    /// Always 0.
    pub reserved: u32,
}

impl Deref for MemoryChannelHandle {
    type Target = BaseMemoryChannelHandle;
    fn deref(&self) -> &Self::Target {
        &self.base
    }
}

impl MemoryChannelHandle {
    /// The bit of `flags` that says that a line of 128 bytes stored by a warp arrives whole at the peer, so LL128
    /// packets work.
    pub const LINES_ARRIVE_WHOLE: u32 = 1;
}

// SAFETY: addresses and numbers. No safe function accesses the memory they point to; a kernel or unsafe code that
// does is responsible for its accesses, whichever thread the handle came from.
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
