//! The device handles of FIFOs and port channels: plain structs that kernels get, laid out as in the CUDA headers
//! (`tests/layout` compares the layouts).
//!
//! # How an operation travels
//! A thread does a small put or a signal itself, *directly*, only if nothing of the connection is pending in the FIFO.
//! Otherwise it pushes a trigger. So if one operation happens before another, the second never overtakes the first;
//! `docs/design/port-channel.md` goes through the cases.

use std::ops::Deref;

use mscclpp_core::HostToDeviceSemaphoreHandle;
use mscclpp_gpu::KernelParam;

use crate::{FifoPosition, MemoryId, ProxyTrigger, SemaphoreId};

/// The device handle of a [`Fifo`](crate::Fifo): `FifoDeviceHandle` in the headers.
///
/// The handle holds no reference: the FIFO must outlive the kernels that use it.
#[derive(Debug, Clone, Copy, KernelParam)]
#[repr(C)]
pub struct FifoHandle {
    /// Pinned host memory: `size` slots, 16-byte aligned.
    pub triggers: *mut ProxyTrigger,
    /// Local device memory: the next position.
    pub head: *mut u64,
    /// Pinned host memory, written by the proxy: all positions below its value have been taken.
    pub tail: *mut u64,
    /// Local device memory: the highest tail seen so far. [`Self::WORDS_TO_LOOKING`] words after it is a word that is 1
    /// while one thread looks at the tail for all threads that wait.
    pub tail_cache: *mut u64,
    /// Pinned host memory, four words. They say: an abort was requested; a wait timed out; a wait saw the abort; the
    /// FIFO is poisoned.
    pub status: *mut u32,
    /// The number of slots, a power of two.
    pub size: u32,
    /// `size` - 1.
    pub size_mask: u32,
    /// The binary logarithm of `size`.
    pub size_shift: u32,
    /// Always 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<FifoHandle>() == 56, "as in the header");

impl FifoHandle {
    /// The value that a kernel's `push` returns if it gave up. It is not a position.
    pub const FAILED: FifoPosition = FifoPosition::from_raw(u64::MAX);
    /// The number of words from `tail_cache` to the word that says whether a thread looks at the tail.
    pub const WORDS_TO_LOOKING: usize = 16;
}

/// The device handle of a [`BasePortChannel`](crate::BasePortChannel): `BasePortChannelDeviceHandle` in the headers.
///
/// The handle holds no reference: the channel must outlive the kernels that use it.
#[derive(Debug, Clone, Copy, KernelParam)]
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

/// The words after `last_pushed` that count direct operations.
#[derive(Clone, Copy)]
pub(crate) enum DirectCount {
    Puts = 1,
    Bytes = 2,
    Signals = 3,
}

/// The device handle of a [`PortChannel`](crate::PortChannel): `PortChannelDeviceHandle` in the headers.
///
/// The handle holds no reference: the channel must outlive the kernels that use it.
#[derive(Debug, Clone, Copy, KernelParam)]
#[repr(C)]
pub struct PortChannelHandle {
    /// The handle of the channel without its memories.
    pub base: BasePortChannelHandle,
    /// The number of the peer's memory in the service.
    pub dst: MemoryId,
    /// The number of this side's memory in the service.
    pub src: MemoryId,
    /// The peer's memory as mapped here; null if it is not mapped, or if `src_ptr` is null.
    pub dst_ptr: *mut u8,
    /// This side's memory; null if it is not on the service's device.
    pub src_ptr: *mut u8,
    /// Size of the peer's memory in bytes.
    pub dst_size: u64,
    /// Size of this side's memory in bytes.
    pub src_size: u64,
    /// The largest put, in bytes, that a thread copies itself word by word; 0 for none.
    pub direct_put_max: u32,
    /// The largest put, in bytes, that a thread copies itself by bulk copies; 0 for none.
    pub bulk_put_max: u32,
}

const _: () = assert!(size_of::<PortChannelHandle>() == 168, "as in the header");

impl Deref for PortChannelHandle {
    type Target = BasePortChannelHandle;
    fn deref(&self) -> &Self::Target {
        &self.base
    }
}

// SAFETY: addresses and numbers. No safe function accesses the memory they point to; a kernel or unsafe code that
// does is responsible for its accesses, whichever thread the handle came from.
unsafe impl Send for FifoHandle {}
// SAFETY: as above.
unsafe impl Sync for FifoHandle {}
// SAFETY: as above.
unsafe impl Send for BasePortChannelHandle {}
// SAFETY: as above.
unsafe impl Sync for BasePortChannelHandle {}
// SAFETY: as above.
unsafe impl Send for PortChannelHandle {}
// SAFETY: as above.
unsafe impl Sync for PortChannelHandle {}
