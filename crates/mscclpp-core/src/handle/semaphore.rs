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

// SAFETY: five pointers, plain data, laid out as in the header (`tests/layout.rs` compares).
unsafe impl KernelParam for DeviceToDeviceSemaphoreHandle {}
// SAFETY: addresses and numbers. No safe function goes where they point; a kernel or unsafe code that does answers for
// its accesses itself, whichever thread the handle came from.
unsafe impl Send for DeviceToDeviceSemaphoreHandle {}
// SAFETY: as above.
unsafe impl Sync for DeviceToDeviceSemaphoreHandle {}

/// What kernels do with a channel that only synchronises: `BaseMemoryChannelDeviceHandle` in the headers.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct BaseMemoryChannelHandle {
    /// The semaphore it signals and waits on.
    pub semaphore: DeviceToDeviceSemaphoreHandle,
}

// SAFETY: one plain struct, laid out as in the header (`tests/layout.rs` compares).
unsafe impl KernelParam for BaseMemoryChannelHandle {}

impl std::ops::Deref for BaseMemoryChannelHandle {
    type Target = DeviceToDeviceSemaphoreHandle;
    fn deref(&self) -> &Self::Target {
        &self.semaphore
    }
}
