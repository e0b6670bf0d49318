//! The stacks of a block's threads: one mapping for all of them, kept for later blocks.

use std::num::NonZeroUsize;

use corosensei::stack::{Stack, StackPointer};
use parking_lot::Mutex;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use super::abi::{STACK_BYTES, Thread};
use crate::{Error, Result};

/// The value after the [`Thread`] at the lower end of each stack. A thread that needs more stack than there is has
/// overwritten it.
const CANARY: u64 = 0x6d73_6363_6c70_7063;

/// The most stacks that are kept. Each takes the memory that threads have touched of it, a few KiB.
const KEPT: usize = 64;

static IDLE: Mutex<Vec<Stacks>> = Mutex::new(Vec::new());

/// The stacks for as many threads as a block may have. The system gives them memory when they are first touched.
pub(super) struct Stacks {
    mapping: usize,
    len: usize,
    first: usize,
    count: usize,
}

impl Stacks {
    /// Takes stacks for `count` threads.
    pub(super) fn take(count: usize) -> Result<Self> {
        let mut idle = IDLE.lock();
        if let Some(fitting) = idle.iter().position(|stacks| stacks.count >= count) {
            return Ok(idle.swap_remove(fitting));
        }
        drop(idle);
        Self::map(count)
    }

    fn map(count: usize) -> Result<Self> {
        // There is one more before them, so that they can be aligned and no other memory is directly below the first.
        let len = (count + 1) * STACK_BYTES;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let mapped =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) };
        let mapping = mapped
            .map_err(|e| Error::system(format!("mmap of {len} bytes for the stacks of {count} threads"), e))?
            .addr();
        let first = (mapping + 1).next_multiple_of(STACK_BYTES);
        let stacks = Self { mapping, len, first, count };
        // SAFETY: the range is of this new mapping, in front of the first stack.
        let guarded = unsafe { mprotect(mapping as *mut _, first - mapping, MprotectFlags::empty()) };
        guarded.map_err(|e| Error::system("mprotect in front of the stacks of a block", e))?;
        Ok(stacks)
    }

    /// Returns the address of the [`Thread`] of stack `index`.
    pub(super) fn thread(&self, index: usize) -> *mut Thread {
        debug_assert!(index < self.count);
        (self.first + index * STACK_BYTES) as *mut Thread
    }

    /// Prepares stack `index` for a thread.
    ///
    /// # Safety
    /// Nothing else uses it as long as the result lives, nor does that outlive `self`.
    pub(super) unsafe fn prepare(&self, index: usize) -> ThreadStack {
        // SAFETY: inside the mapping, aligned to 8, and the caller's.
        unsafe { self.canary(index).write(CANARY) };
        ThreadStack { limit: self.first + index * STACK_BYTES + RESERVED }
    }

    /// Whether the thread on stack `index` has kept within it.
    pub(super) fn is_sound(&self, index: usize) -> bool {
        // SAFETY: inside the mapping and aligned; the thread that could write it is not running.
        unsafe { self.canary(index).read() == CANARY }
    }

    fn canary(&self, index: usize) -> *mut u64 {
        (self.thread(index) as usize + RESERVED - size_of::<u64>()) as *mut u64
    }

    /// Keeps the stacks for the next block.
    pub(super) fn give_back(self) {
        let mut idle = IDLE.lock();
        if idle.len() < KEPT {
            idle.push(self);
        }
    }
}

/// The bytes at the lower end of a stack that are reserved for the [`Thread`] and the canary.
const RESERVED: usize = 512;
const _: () = assert!(size_of::<Thread>() + size_of::<u64>() <= RESERVED);

impl Drop for Stacks {
    fn drop(&mut self) {
        // SAFETY: made by mmap with this length; no thread is left on them (`prepare`).
        if let Err(error) = unsafe { munmap(self.mapping as *mut _, self.len) } {
            tracing::warn!(target: "mscclpp::gpu", %error, "munmap of the stacks of a block failed");
        }
    }
}

/// The stack of one thread.
pub(super) struct ThreadStack {
    limit: usize,
}

// SAFETY: the memory between `limit` and `base` is mapped, and this thread's alone. There is no guard page between two
// stacks, of which a process may not have enough: what a kernel needs of its stack is part of what its launch promises
// (`Kernel::launch`), a thread that needs more is found by its canary, and the lowest stack has a guard.
unsafe impl Stack for ThreadStack {
    fn base(&self) -> StackPointer {
        NonZeroUsize::new(self.limit - RESERVED + STACK_BYTES).expect("no mapping ends at address 0")
    }

    fn limit(&self) -> StackPointer {
        NonZeroUsize::new(self.limit).expect("no mapping begins at address 0")
    }
}
