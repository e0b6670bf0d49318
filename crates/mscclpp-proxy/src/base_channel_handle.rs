//! The device handle of a channel whose puts each name their memories, laid out as in the CUDA headers.
//!
//! # Which way an operation goes
//! A thread does a small put or a signal itself, *directly*, only if nothing of the connection is pending in the FIFO.
//! Otherwise it pushes a trigger. So if one operation happens before another, the second never overtakes the first;
//! `docs/design/port-channel.md` goes through the cases.

use mscclpp_core::HostToDeviceSemaphoreHandle;
use mscclpp_gpu::KernelParam;

use crate::{FifoHandle, SemaphoreId};

/// The device handle of a [`BasePortChannel`](crate::BasePortChannel): `BasePortChannelDeviceHandle` in the headers.
///
/// It holds no reference: the channel must outlive the kernels that use it.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct BasePortChannelHandle {
    /// The semaphore on which this side waits for the peer's signals.
    pub semaphore: HostToDeviceSemaphoreHandle,
    /// The FIFO that takes the triggers.
    pub fifo: FifoHandle,
    /// Local device memory: four words of this connection in this service. They hold 1 + the highest position of a
    /// trigger, the number of puts done directly, their bytes, and the number of signals sent directly.
    pub last_pushed: *mut u64,
    /// All triggers of this connection at positions below this word's value are complete. Local device memory if the
    /// transport itself stores the value, otherwise pinned host memory.
    pub completed: *mut u64,
    /// The peer's token for kernels, as mapped here; null if kernels do not reach it with atomics.
    pub direct_token: *mut u64,
    /// The semaphore's number in its service.
    pub semaphore_id: SemaphoreId,
    /// Always 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<BasePortChannelHandle>() == 120, "as in the header");

// SAFETY: pointers and numbers, plain data, laid out as in the header.
unsafe impl KernelParam for BasePortChannelHandle {}
// SAFETY: addresses and numbers. No safe function goes where they point; a kernel or unsafe code that does answers for
// its accesses itself, whichever thread the handle came from.
unsafe impl Send for BasePortChannelHandle {}
// SAFETY: as above.
unsafe impl Sync for BasePortChannelHandle {}

/// The words after `last_pushed` that count direct operations.
#[derive(Clone, Copy)]
pub(crate) enum DirectCount {
    Puts = 1,
    Bytes = 2,
    Signals = 3,
}
