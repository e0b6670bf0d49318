//! The FIFO's device handle: a plain struct that kernels get, laid out as in the CUDA headers, with host twins.

use std::sync::atomic::{AtomicU32, AtomicU64};

use mscclpp_gpu::{KernelParam, host::Backoff};

use crate::{
    ProxyTrigger,
    protocol::{FifoWords, Ring, StatusWords, wait_until},
};

/// What kernels do with a [`crate::Fifo`]: `FifoDeviceHandle` in the headers.
///
/// Its methods are the host twins of the header's, for kernels of the Host platform; any number of threads may call
/// them at once. It holds no reference: the FIFO must outlive the kernels that use it.
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
    /// 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<FifoHandle>() == 48, "as in the header");

// SAFETY: pointers and numbers, plain data, laid out as in the header.
unsafe impl KernelParam for FifoHandle {}
// SAFETY: its pointers are to memory that is only touched with atomic operations.
unsafe impl Send for FifoHandle {}
// SAFETY: as above.
unsafe impl Sync for FifoHandle {}

impl FifoHandle {
    /// What [`Self::push`] returns when it gave up.
    pub const FAILED: u64 = u64::MAX;
    /// How far behind `tail_cache` the word is that says whether a thread is looking at the tail.
    pub const WORDS_TO_LOOKING: usize = 16;

    /// # Safety
    /// The handle must be one of a live FIFO of the Host platform; so for all methods below.
    pub(crate) unsafe fn words(&self) -> FifoWords<'_, AtomicU64, AtomicU32> {
        // SAFETY: the pointers of a live handle are aligned and stay valid, and everybody uses atomics on them, which
        // have the layout of the words.
        unsafe {
            FifoWords {
                ring: Ring {
                    slots: std::slice::from_raw_parts(self.triggers.cast(), self.size as usize),
                    tail: AtomicU64::from_ptr(self.tail),
                },
                head: AtomicU64::from_ptr(self.head),
                tail_cache: AtomicU64::from_ptr(self.tail_cache),
                looking: AtomicU64::from_ptr(self.tail_cache.add(Self::WORDS_TO_LOOKING)),
                status: status_words(self.status),
            }
        }
    }

    /// Pushes a trigger; returns its position, or [`Self::FAILED`]. The proxy sees everything this thread did before.
    ///
    /// Waits while the FIFO is full: without bound if `max_spins` is negative, else for that many polls. One that gives
    /// up, or is made to from the host, leaves a hole, with which the FIFO is of no use any more.
    ///
    /// # Safety
    /// The handle must be one of a live FIFO of the Host platform.
    #[must_use]
    pub unsafe fn push(&self, trigger: ProxyTrigger, max_spins: i64) -> u64 {
        let mut backoff = Backoff::new();
        // SAFETY: the caller's promise.
        let words = unsafe { self.words() };
        let pushed = words.push([trigger.fst, trigger.snd], max_spins, |_| (), || false, || backoff.wait());
        pushed.unwrap_or(Self::FAILED)
    }

    /// Whether the proxy has taken the trigger of `position`. Does not block.
    ///
    /// # Safety
    /// As [`Self::push`].
    #[must_use]
    pub unsafe fn poll(&self, position: u64) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.words() }.is_taken(position)
    }

    /// Waits until the proxy has taken the trigger of `position`: without bound if `max_spins` is negative, else for
    /// that many polls. Returns whether it has; if not, the wait can be repeated, unless it was aborted.
    ///
    /// # Safety
    /// As [`Self::push`].
    #[must_use]
    pub unsafe fn sync(&self, position: u64, max_spins: i64) -> bool {
        let mut backoff = Backoff::new();
        // SAFETY: the caller's promise.
        let words = unsafe { self.words() };
        let taken = wait_until(
            max_spins,
            || words.is_seen_taken(position),
            || words.status.abort_requested(),
            || backoff.wait(),
        );
        taken.map_err(|why| words.status.note(why)).is_ok()
    }
}

/// # Safety
/// Four aligned words that stay valid and that everybody uses atomics on.
pub(crate) unsafe fn status_words<'a>(status: *mut u32) -> StatusWords<'a, AtomicU32> {
    // SAFETY: the caller's promise.
    unsafe {
        StatusWords {
            abort: AtomicU32::from_ptr(status),
            timed_out: AtomicU32::from_ptr(status.add(1)),
            aborted: AtomicU32::from_ptr(status.add(2)),
            refused: AtomicU32::from_ptr(status.add(3)),
        }
    }
}
