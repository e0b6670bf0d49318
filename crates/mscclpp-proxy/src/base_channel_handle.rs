//! The device handle of a channel that names memories with each put, laid out as in the CUDA headers.
//!
//! # Which way an operation goes
//! A thread does a small put or a signal itself, *directly*, only when nothing of the connection is pending in the FIFO;
//! else it pushes a trigger. So of two operations of which one happens before the other, the later one never overtakes
//! the earlier: `docs/design/port-channel.md` goes through the cases.

use mscclpp_core::HostToDeviceSemaphoreHandle;
use mscclpp_gpu::KernelParam;

use crate::{FifoHandle, SemaphoreId};

/// What kernels do with a [`crate::BasePortChannel`]: `BasePortChannelDeviceHandle` in the headers.
///
/// It holds no reference: the channel must outlive the kernels that use it.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct BasePortChannelHandle {
    /// Where this side waits for the peer's signals.
    pub semaphore: HostToDeviceSemaphoreHandle,
    /// Where triggers go.
    pub fifo: FifoHandle,
    /// Local device memory, four words of this connection and service: 1 + the highest position of a trigger; how many
    /// puts were done directly, their bytes, and how many signals.
    pub last_pushed: *mut u64,
    /// All triggers of this connection at positions below it are complete. Local device memory where the transport
    /// stores it by itself, else pinned host memory.
    pub completed: *mut u64,
    /// The peer's token for kernels, as mapped here; null where kernels do not reach it with atomics.
    pub direct_token: *mut u64,
    /// The semaphore's number in its service.
    pub semaphore_id: SemaphoreId,
    /// 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<BasePortChannelHandle>() == 120, "as in the header");

// SAFETY: pointers and numbers, plain data, laid out as in the header.
unsafe impl KernelParam for BasePortChannelHandle {}
// SAFETY: its pointers are to memory that is only touched with atomic operations.
unsafe impl Send for BasePortChannelHandle {}
// SAFETY: as above.
unsafe impl Sync for BasePortChannelHandle {}

/// Words behind `last_pushed` that count what was done directly.
#[derive(Clone, Copy)]
pub(crate) enum DirectCount {
    Puts = 1,
    Bytes = 2,
    Signals = 3,
}
