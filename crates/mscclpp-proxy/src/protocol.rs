//! The FIFO between device threads and a proxy, and what a channel knows of its progress, over abstract words, so that
//! the same code runs on mapped memory and under a model checker.
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
    fn size(&self) -> u64 {
        self.slots.len() as u64
    }

    fn slot(&self, position: u64) -> &'a [W64; 2] {
        &self.slots[(position & (self.size() - 1)) as usize]
    }

    /// The commit bit of a position, in its place.
    fn commit(&self, position: u64) -> u64 {
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

    fn publish(&self, position: u64, [first, second]: [u64; 2]) {
        let slot = self.slot(position);
        slot[0].store(first, Ordering::Relaxed);
        slot[1].store(second & !COMMIT_BIT | self.commit(position), Ordering::Release);
    }
}

/// What device threads need of a FIFO.
#[derive(Debug)]
pub struct FifoWords<'a, W64, W32> {
    /// The part that the proxy works on.
    pub ring: Ring<'a, W64>,
    /// The next position to be given out.
    pub head: &'a W64,
    /// The highest tail that was seen, nearer than the tail itself.
    pub tail_cache: &'a W64,
    /// 1 while a thread is looking at the tail; see invariant 6.
    pub looking: &'a W64,
    /// The status words of the FIFO.
    pub status: StatusWords<'a, W32>,
}

/// Four words by which the host and device threads tell each other when to give up, and why.
#[derive(Debug, Clone, Copy)]
pub struct StatusWords<'a, W32> {
    /// Non-zero: give up.
    pub abort: &'a W32,
    /// Set to 1 by a wait that ran out of polls.
    pub timed_out: &'a W32,
    /// Set to 1 by a wait that saw `abort`.
    pub aborted: &'a W32,
    /// Set by a call that did nothing, or that left something undone: [`POISONED`], [`TRIGGER_RANGE`].
    pub refused: &'a W32,
}

/// In [`StatusWords::refused`] of a FIFO: a push gave up and left a hole.
pub const POISONED: u32 = 1;
/// In [`StatusWords::refused`] of a semaphore: an offset, a size or a memory id that no trigger has room for.
pub const TRIGGER_RANGE: u32 = 2;

impl<W32: SharedWord<Value = u32>> StatusWords<'_, W32> {
    /// Whether waits are to give up.
    pub fn abort_requested(&self) -> bool {
        self.abort.load(Ordering::Relaxed) != 0
    }

    /// Notes why a wait gave up.
    pub fn note(&self, why: GaveUp) {
        let word = match why {
            GaveUp::TimedOut => self.timed_out,
            GaveUp::Aborted => self.aborted,
        };
        word.store(1, Ordering::Release);
    }
}

/// Why a wait ended without what it waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GaveUp {
    /// It made all the polls it was allowed.
    TimedOut,
    /// The host asked for it.
    Aborted,
}

/// How many polls a wait makes before it looks for an abort each time. Fewer in a model checker, which tries them all.
const POLLS_BEFORE_ABORT_CHECK: u64 = if cfg!(loom) { 2 } else { 64 };

/// Polls until `ready`: for ever with `max_spins < 0`, else that many times and once more.
///
/// # Errors
/// Why it gave up.
pub fn wait_until(
    max_spins: i64,
    ready: impl Fn() -> bool,
    abort_requested: impl Fn() -> bool,
    mut backoff: impl FnMut(),
) -> Result<(), GaveUp> {
    let mut polls = 0u64;
    loop {
        if ready() {
            return Ok(());
        }
        let why = if polls.is_multiple_of(POLLS_BEFORE_ABORT_CHECK) && abort_requested() {
            GaveUp::Aborted
        } else if max_spins >= 0 && polls >= max_spins.cast_unsigned() {
            GaveUp::TimedOut
        } else {
            polls += 1;
            backoff();
            continue;
        };
        // One last look: what came before the abort still counts.
        return if ready() { Ok(()) } else { Err(why) };
    }
}

impl<W64: SharedWord<Value = u64>, W32: SharedWord<Value = u32>> FifoWords<'_, W64, W32> {
    /// Pushes a trigger and returns its position. `announce` is called with that before the proxy can see the trigger.
    /// Waits while the FIFO is full, as [`wait_until`] says.
    ///
    /// # Errors
    /// Why it gave up. The FIFO is of no use any more then, and its other pushes are told to give up too.
    pub fn push(
        &self,
        trigger: [u64; 2],
        max_spins: i64,
        announce: impl FnOnce(u64),
        abort_requested: impl Fn() -> bool,
        backoff: impl FnMut(),
    ) -> Result<u64, GaveUp> {
        let position = self.head.fetch_add(1, Ordering::Relaxed);
        announce(position);
        let abort_requested = || self.status.abort_requested() || abort_requested();
        if let Err(why) = wait_until(max_spins, || self.has_room(position), abort_requested, backoff) {
            // The hole first: who is told to give up can read why.
            self.status.refused.store(POISONED, Ordering::Release);
            self.status.abort.store(1, Ordering::Release);
            self.status.note(why);
            return Err(why);
        }
        self.ring.publish(position, trigger);
        Ok(position)
    }

    fn has_room(&self, position: u64) -> bool {
        self.look((position + 1).saturating_sub(self.ring.size()))
    }

    /// Whether the proxy is known to have taken the trigger of `position`: as [`Self::is_taken`], for those that ask
    /// again and again. It need not know what another thread is about to see.
    pub fn is_seen_taken(&self, position: u64) -> bool {
        self.look(position + 1)
    }

    /// Whether the proxy has taken the trigger of `position`.
    pub fn is_taken(&self, position: u64) -> bool {
        self.tail_cache.load(Ordering::Acquire) > position
            || self.ring.tail.load(Ordering::Acquire) > position
    }

    /// Whether the tail has reached `needed`, as far as the cache knows, or the tail itself if nobody else looks there.
    fn look(&self, needed: u64) -> bool {
        let cached = self.tail_cache.load(Ordering::Acquire);
        if cached >= needed {
            return true;
        }
        if self.looking.load(Ordering::Relaxed) != 0
            || self.looking.compare_exchange(0, 1, Ordering::Relaxed).is_err()
        {
            return false;
        }
        let tail = self.ring.tail.load(Ordering::Acquire);
        self.raise_cache(cached, tail);
        self.looking.store(0, Ordering::Relaxed);
        tail >= needed
    }

    fn raise_cache(&self, mut cached: u64, tail: u64) {
        while cached < tail {
            match self.tail_cache.compare_exchange(cached, tail, Ordering::Release) {
                Ok(_) => return,
                Err(now) => cached = now,
            }
        }
    }
}

/// How far a connection's triggers are.
#[derive(Debug, Clone, Copy)]
pub struct ProgressWords<'a, W64> {
    /// 1 + the highest position of a trigger of this connection.
    pub last_pushed: &'a W64,
    /// All triggers of this connection at positions below it are complete at the peer.
    pub completed: &'a W64,
}

impl<W64: SharedWord<Value = u64>> ProgressWords<'_, W64> {
    /// To be called with the position of a push before it is published: whoever learns of the push finds it pending.
    pub fn announce(&self, position: u64) {
        let mut last = self.last_pushed.load(Ordering::Relaxed);
        while last <= position {
            match self.last_pushed.compare_exchange(last, position + 1, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => last = now,
            }
        }
    }

    /// Whether every push that happened before this call is complete.
    ///
    /// `last_pushed` is at least as high as each of those announced. Both words only grow, so it does not matter which
    /// is read first. The acquire pairs with the store behind the completion.
    pub fn nothing_pending(&self) -> bool {
        let pushed = self.last_pushed.load(Ordering::Relaxed);
        self.is_complete(pushed)
    }

    /// Whether the triggers below `position` are complete.
    pub fn is_complete(&self, position: u64) -> bool {
        self.completed.load(Ordering::Acquire) >= position
    }
}
