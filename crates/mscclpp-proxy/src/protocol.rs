//! The proxy's end of a FIFO, over abstract words, so that the same code runs on memory and under a model checker. The
//! kernels' end is in `fifo_device.hpp`, and its model is in `tests/loom`.
//!
//! # Invariants
//! 1. Position `p` belongs to the one push that got it from `head`. Its slot is `p % size`, and its lap is `p / size`.
//! 2. A slot holds the trigger of position `p` once the top bit of its second word is `(lap & 1) ^ 1`: memory starts
//!    at zero, so lap 0 commits with 1. Nothing is cleared, because a trigger of the lap before has the other bit.
//! 3. Only the push of position `p` writes its slot, and only when `tail > p - size`, that is, when the trigger of the
//!    lap before has been copied out. So a slot holds one lap after the other, and the bit tells two neighbouring laps
//!    apart.
//! 4. `tail` only grows, and only the proxy writes it: the triggers of all positions below it have been copied out.
//!    `tail_cache` is never above it, and only grows too.
//! 5. A push that gives up leaves a hole that the proxy cannot pass. It sets `poisoned`, and no later trigger counts.
//! 6. While `looking` is 1, one thread looks at the tail and raises `tail_cache`, for all threads that wait.
//!    Meanwhile it waits for nothing, and it sets the word back whatever it saw. The word orders nothing; it only
//!    saves looks. (A kernel's sync that knows of no other waiting thread does not raise the cache.)
//!
//! # Ordering
//! - The trigger's second word is stored with release, after the first, and is loaded with acquire, before the first.
//!   So the proxy sees the whole trigger, and everything that the pushing thread did or saw before. (Kernels store both
//!   words at once after a fence.)
//! - `tail` is stored with release after a trigger has been copied out. The push that reuses the slot loads it with
//!   acquire, directly or through `tail_cache`, which is raised with release and loaded with acquire too. It is raised
//!   by read-modify-writes, so a thread that loads it sees what all threads that raised it had released. So the new
//!   trigger is not written before the old one was read, and a `sync` sees what the handler did.
//! - If one push happens before another, it has the lower position, because additions to `head` have one order. Nothing
//!   else about `head` needs order.

use std::sync::atomic::Ordering;

pub use mscclpp_core::protocol::SharedWord;

/// The top bit of a trigger's second word.
pub const COMMIT_BIT: u64 = 1 << 63;

/// The words of a FIFO that the proxy uses.
#[derive(Debug, Clone, Copy)]
pub struct Ring<'a, W64> {
    /// The slots, a power of two of them; see invariants 2 and 3.
    pub slots: &'a [[W64; 2]],
    /// The position below which all triggers have been copied out; see invariant 4.
    pub tail: &'a W64,
}

impl<'a, W64: SharedWord<Value = u64>> Ring<'a, W64> {
    /// The number of slots.
    pub fn size(&self) -> u64 {
        self.slots.len() as u64
    }

    /// The slot of a position.
    pub fn slot(&self, position: u64) -> &'a [W64; 2] {
        &self.slots[(position & (self.size() - 1)) as usize]
    }

    /// The commit bit that a position uses, at its place in the word.
    pub fn commit(&self, position: u64) -> u64 {
        if position & self.size() == 0 { COMMIT_BIT } else { 0 }
    }

    /// Returns the trigger of `position`, without its commit bit, if it was pushed.
    pub fn front(&self, position: u64) -> Option<[u64; 2]> {
        let [first, second] = self.slot(position);
        let word = second.load(Ordering::Acquire);
        (word & COMMIT_BIT == self.commit(position))
            .then(|| [first.load(Ordering::Relaxed), word & !COMMIT_BIT])
    }

    /// Frees the slot of `position`, whose trigger has been copied out.
    pub fn pop(&self, position: u64) {
        self.tail.store(position + 1, Ordering::Release);
    }
}

/// The value of a FIFO's status word `refused` after a push that gave up and left a hole.
pub const POISONED: u32 = 1;
/// The value of a semaphore's status word `refused` for an offset, a size or a memory id that does not fit a trigger.
pub const TRIGGER_RANGE: u32 = 2;
