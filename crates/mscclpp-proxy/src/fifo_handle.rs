//! The FIFO's device handle: a plain struct that kernels get, laid out as in the CUDA headers.

use mscclpp_gpu::KernelParam;

use crate::{FifoPosition, ProxyTrigger};

/// What kernels do with a [`crate::Fifo`]: `FifoDeviceHandle` in the headers.
///
/// It holds no reference: the FIFO must outlive the kernels that use it.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct FifoHandle {
    /// Pinned host memory: `size` slots, 16-byte aligned.
    pub triggers: *mut ProxyTrigger,
    /// Local device memory: the next position.
    pub head: *mut u64,
    /// Pinned host memory, which the proxy writes: the positions below have been taken.
    pub tail: *mut u64,
    /// Local device memory: the highest tail that was seen. [`Self::WORDS_TO_LOOKING`] words behind it is a word that
    /// is 1 while a thread looks at the tail for all that wait.
    pub tail_cache: *mut u64,
    /// Pinned host memory, four words: abort request, a wait timed out, a wait saw the abort, poisoned.
    pub status: *mut u32,
    /// How many slots there are, a power of two.
    pub size: u32,
    /// Less one.
    pub size_mask: u32,
    /// Which power.
    pub size_shift: u32,
    /// 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<FifoHandle>() == 56, "as in the header");

// SAFETY: pointers and numbers, plain data, laid out as in the header.
unsafe impl KernelParam for FifoHandle {}
// SAFETY: its pointers are to memory that is only touched with atomic operations.
unsafe impl Send for FifoHandle {}
// SAFETY: as above.
unsafe impl Sync for FifoHandle {}

impl FifoHandle {
    /// What `push` returns in a kernel when it gave up: no position.
    pub const FAILED: FifoPosition = FifoPosition::from_raw(u64::MAX);
    /// How far behind `tail_cache` the word is that says whether a thread is looking at the tail.
    pub const WORDS_TO_LOOKING: usize = 16;
}
