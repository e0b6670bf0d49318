//! The FIFO and the order of channels under the loom model checker: all interleavings (up to a number of preemptions)
//! and all values that the memory model lets a load return. Kernels are modelled in [`kernels`]; the proxy's own code
//! is checked as it is.
//!
//! Loom has only one scope, so these tests do not check the scopes of GPUs; the headers argue those in text.
//!
//! Run it with `cargo test -p mscclpp-proxy --test loom --release`: unoptimised, it would take too long, and is
//! empty.
#![cfg(not(debug_assertions))]

mod channel;
mod fifo;
mod kernels;

use std::sync::atomic::Ordering;

use kernels::FifoWords;
use loom::sync::atomic::{AtomicU32, AtomicU64};
use mscclpp_core::protocol::StatusWords;
use mscclpp_proxy::protocol::{Ring, SharedWord};
use mscclpp_test_support::loom::{Seen, backoff, model};

mscclpp_test_support::word32_of_loom!(SharedWord);

/// A word of 8 bytes. Its orders can be weakened, to show that they are needed.
struct Word64 {
    word: AtomicU64,
    weakened: bool,
}

impl Word64 {
    fn new(value: u64) -> Self {
        Self { word: AtomicU64::new(value), weakened: false }
    }

    fn order(&self, order: Ordering) -> Ordering {
        if self.weakened { Ordering::Relaxed } else { order }
    }
}

impl SharedWord for Word64 {
    type Value = u64;
    fn load(&self, order: Ordering) -> u64 {
        self.word.load(self.order(order))
    }
    fn store(&self, value: u64, order: Ordering) {
        self.word.store(value, self.order(order));
    }
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.word.fetch_add(value, self.order(order))
    }
    fn compare_exchange(&self, from: u64, to: u64, order: Ordering) -> Result<u64, u64> {
        self.word.compare_exchange(from, to, self.order(order), Ordering::Relaxed)
    }
}

/// The part of the protocol that is deliberately broken.
#[derive(Clone, Copy, PartialEq)]
enum Weakness {
    None,
    /// The commit bit is stored and loaded relaxed.
    Commit,
    /// The tail is stored and loaded relaxed.
    Tail,
    /// The cached tail is stored and loaded relaxed.
    TailCache,
    /// Completions are stored and loaded relaxed.
    Completed,
    /// Signals and puts go directly even if something is pending.
    Overtaking,
}

/// A FIFO of two slots, in its state after `start` triggers.
struct Fifo {
    slots: [[Word64; 2]; 2],
    head: Word64,
    tail: Word64,
    tail_cache: Word64,
    looking: Word64,
    status: [Word32; 4],
}

impl Fifo {
    fn after(start: u64, weakness: Weakness) -> Self {
        let weak = |value, when| Word64 { weakened: weakness == when, ..Word64::new(value) };
        // The commit bit that the last trigger in a slot has left.
        let left = |slot: u64| {
            let lap = (0..start).rev().find(|p| p % 2 == slot).map_or(1, |p| p / 2);
            weak(u64::from(lap % 2 == 0) << 63, Weakness::Commit)
        };
        Self {
            slots: [[Word64::new(0), left(0)], [Word64::new(0), left(1)]],
            head: Word64::new(start),
            tail: weak(start, Weakness::Tail),
            tail_cache: weak(start, Weakness::TailCache),
            looking: Word64::new(0),
            status: [0, 0, 0, 0].map(|v| Word32(AtomicU32::new(v))),
        }
    }

    fn words(&self) -> FifoWords<'_, Word64, Word32> {
        FifoWords {
            ring: Ring { slots: &self.slots, tail: &self.tail },
            head: &self.head,
            tail_cache: &self.tail_cache,
            looking: &self.looking,
            status: StatusWords::of(&self.status),
        }
    }

    fn push(&self, value: u64, announce: impl FnOnce(u64)) -> u64 {
        // Both words hold the same value, so that a torn trigger shows.
        self.words().push([value, value], -1, announce, backoff()).expect("no reason to give up")
    }

    fn take(&self, position: u64) -> u64 {
        let mut wait = backoff();
        loop {
            if let Some([first, second]) = self.words().ring.front(position) {
                assert_eq!(first, second, "a torn trigger");
                return first;
            }
            wait();
        }
    }

    fn pop(&self, position: u64) {
        self.words().ring.pop(position);
    }
}
