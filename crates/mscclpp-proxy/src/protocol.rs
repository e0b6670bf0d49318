//! The proxy's end of a FIFO, over abstract words, so that the same code runs on memory and under a model checker. The
//! kernels' end is in `fifo_device.hpp`, and the model of it in `tests/loom`.
//!
//! # Invariants
//! 1. Position `p` belongs to the one push that got it from `head`. Its slot is `p % size`, its lap `p / size`.
//! 2. A slot holds the trigger of position `p` once the top bit of its second word is `(lap & 1) ^ 1`: memory starts at
//!    zero, so lap 0 commits with 1. Nothing is cleared; what an earlier lap left has the other bit.
//! 3. Only the push of position `p` writes its slot, and only when `tail > p - size`: the trigger of the lap before has
//!    been copied out. So slots hold lap after lap, and the bit tells two neighbours apart.
//! 4. `tail` only grows, and only the proxy writes it: the triggers of all positions below it have been copied out.
//!    `tail_cache` is never above it, and only grows too.
//! 5. A push that gives up leaves a hole that the proxy cannot pass. It says so in `poisoned`, and nothing after it counts.
//! 6. While `looking` is 1, one thread looks at the tail and raises `tail_cache`, for all that wait. It waits for nothing
//!    meanwhile and sets the word back whatever it saw. The word orders nothing; it saves looks. (A kernel's sync that
//!    knows of nobody else does not raise the cache.)
//!
//! # Ordering
//! - The trigger's second word is stored with release, after the first, and loaded with acquire, before it: the proxy
//!   sees the whole trigger, and everything that the pushing thread did or had seen before. (Kernels store both words
//!   at once behind a fence.)
//! - The release of `tail` after a trigger has been copied out pairs with the acquire by the push that reuses its slot,
//!   directly or by way of `tail_cache`, which is raised with release and loaded with acquire too. It is raised by
//!   read-modify-writes, so whoever loads it has what was released by all that raised it. So the new trigger is not
//!   written before the old one was read, and a `sync` sees what the handler did.
//! - Of two pushes of which one happens before the other, that one has the lower position: additions to `head` are in
//!   one order. Nothing else about `head` needs order.

use std::sync::atomic::Ordering;

pub use mscclpp_core::protocol::SharedWord;

/// The top bit of a trigger's second word.
pub const COMMIT_BIT: u64 = 1 << 63;

/// What the proxy needs of a FIFO.
#[derive(Debug, Clone, Copy)]
pub struct Ring<'a, W64> {
    /// The slots, a power of two of them; see invariants 2 and 3.
    pub slots: &'a [[W64; 2]],
    /// See invariant 4.
    pub tail: &'a W64,
}

impl<'a, W64: SharedWord<Value = u64>> Ring<'a, W64> {
    /// How many slots there are.
    pub fn size(&self) -> u64 {
        self.slots.len() as u64
    }

    /// The slot of a position.
    pub fn slot(&self, position: u64) -> &'a [W64; 2] {
        &self.slots[(position & (self.size() - 1)) as usize]
    }

    /// The commit bit of a position, in its place.
    pub fn commit(&self, position: u64) -> u64 {
        if position & self.size() == 0 { COMMIT_BIT } else { 0 }
    }

    /// The trigger of `position`, without its commit bit, if it is there.
    pub fn front(&self, position: u64) -> Option<[u64; 2]> {
        let [first, second] = self.slot(position);
        let word = second.load(Ordering::Acquire);
        (word & COMMIT_BIT == self.commit(position))
            .then(|| [first.load(Ordering::Relaxed), word & !COMMIT_BIT])
    }

    /// The trigger of `position` has been copied out.
    pub fn pop(&self, position: u64) {
        self.tail.store(position + 1, Ordering::Release);
    }
}

/// In the status word `refused` of a FIFO: a push gave up and left a hole.
pub const POISONED: u32 = 1;
/// In the status word `refused` of a semaphore: an offset, a size or a memory id that no trigger has room for.
pub const TRIGGER_RANGE: u32 = 2;
