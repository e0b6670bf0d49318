//! The FIFO's device handle: a plain struct that kernels get, laid out as in the CUDA headers.

use mscclpp_gpu::KernelParam;

use crate::{FifoPosition, ProxyTrigger};

/// The device handle of a [`Fifo`](crate::Fifo): `FifoDeviceHandle` in the headers.
///
/// It holds no reference: the FIFO must outlive the kernels that use it.
#[derive(Debug, Clone, Copy)]
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

// SAFETY: pointers and numbers, plain data, laid out as in the header.
unsafe impl KernelParam for FifoHandle {}
// SAFETY: addresses and numbers. No safe function goes where they point; a kernel or unsafe code that does answers for
// its accesses itself, whichever thread the handle came from.
unsafe impl Send for FifoHandle {}
// SAFETY: as above.
unsafe impl Sync for FifoHandle {}

impl FifoHandle {
    /// What a kernel's `push` returns if it gave up. It is not a position.
    pub const FAILED: FifoPosition = FifoPosition::from_raw(u64::MAX);
    /// How many words after `tail_cache` the word is that says whether a thread looks at the tail.
    pub const WORDS_TO_LOOKING: usize = 16;
}
