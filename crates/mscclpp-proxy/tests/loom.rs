//! The FIFO and the order of channels under the loom model checker: all interleavings (up to a number of preemptions)
//! and all values that the memory model lets a load return. The code is the one that runs on mapped memory.
//!
//! Loom knows one scope, so this says nothing about the scopes of GPUs; the headers argue those in text.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p mscclpp-proxy --test loom --release`
#![cfg(loom)]

use std::sync::{Arc, atomic::Ordering};

use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicU32, AtomicU64},
    thread,
};
use mscclpp_proxy::protocol::{FifoWords, ProgressWords, Ring, SharedWord, StatusWords};

/// A word of 8 bytes; its orders can be weakened, to show that they are needed.
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

struct Word32(AtomicU32);

impl SharedWord for Word32 {
    type Value = u32;
    fn load(&self, order: Ordering) -> u32 {
        self.0.load(order)
    }
    fn store(&self, value: u32, order: Ordering) {
        self.0.store(value, order);
    }
    fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        self.0.fetch_add(value, order)
    }
    fn compare_exchange(&self, from: u32, to: u32, order: Ordering) -> Result<u32, u32> {
        self.0.compare_exchange(from, to, order, Ordering::Relaxed)
    }
}

/// What is deliberately broken.
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
    /// Signals and puts go directly whatever is pending.
    Overtaking,
}

/// A FIFO of two slots, as it is after `start` triggers.
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
        // What the last trigger in a slot left: its commit bit.
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
        let [abort, timed_out, aborted, refused] = &self.status;
        FifoWords {
            ring: Ring { slots: &self.slots, tail: &self.tail },
            head: &self.head,
            tail_cache: &self.tail_cache,
            looking: &self.looking,
            status: StatusWords { abort, timed_out, aborted, refused },
        }
    }

    fn push(&self, value: u64, announce: impl FnOnce(u64)) -> u64 {
        // Both words say the same, so that a torn trigger shows.
        self.words().push([value, value], -1, announce, || false, backoff()).expect("no reason to give up")
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

/// Yields. Two threads could yield to each other for ever while a third has something to do; such schedules are tried
/// for a few rounds, then the run goes on fairly and branches no further.
fn backoff() -> impl FnMut() {
    let mut rounds = 0;
    move || {
        rounds += 1;
        if rounds > 3 {
            loom::skip_branch();
        }
        thread::yield_now();
    }
}

/// `preemptions`: how often a thread may be interrupted that could go on; all schedules if none is given.
fn model(preemptions: Option<usize>, check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(check);
}

/// `producers` threads push `each` triggers; each comes once, whole, and those of a thread in their order.
fn all_arrive(preemptions: Option<usize>, start: u64, producers: u64, each: u64, weakness: Weakness) {
    model(preemptions, move || {
        let fifo = Arc::new(Fifo::after(start, weakness));
        let threads: Vec<_> = (0..producers)
            .map(|producer| {
                let fifo = fifo.clone();
                thread::spawn(move || {
                    for n in 1..=each {
                        fifo.push(producer << 8 | n, |_| ());
                    }
                })
            })
            .collect();
        let mut next = vec![1; producers as usize];
        for position in start..start + producers * each {
            let value = fifo.take(position);
            let expected = &mut next[(value >> 8) as usize];
            assert_eq!(value & 0xff, *expected, "lost, doubled or out of order");
            *expected += 1;
            fifo.pop(position);
        }
        assert!(next.iter().all(|n| *n == each + 1));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn one_producer_one_consumer_across_the_wrap_exhaustively() {
    // The second trigger is the first of the next lap; the third reuses the slot of the first.
    for start in [1, 3] {
        all_arrive(None, start, 1, 3, Weakness::None);
    }
}

#[test]
fn two_producers_share_laps() {
    all_arrive(Some(2), 1, 2, 2, Weakness::None);
}

#[test]
#[should_panic]
fn weakened_commit_tears_triggers() {
    all_arrive(None, 1, 1, 3, Weakness::Commit);
}

/// A push that reuses a slot comes after the proxy has read it: shown with data of the proxy's own.
fn reuse_is_ordered(weakness: Weakness) {
    model(Some(3), move || {
        let fifo = Arc::new(Fifo::after(0, weakness));
        let seen = Arc::new(Seen(UnsafeCell::new(0)));
        fifo.push(1, |_| ());
        fifo.push(2, |_| ());
        // Two threads: the second to find room may know of it from the first, by way of the cache alone.
        let threads: Vec<_> = [3, 4]
            .map(|value| {
                let (fifo, seen) = (fifo.clone(), seen.clone());
                thread::spawn(move || {
                    let position = fifo.push(value, |_| ());
                    if position == 2 || position == 3 {
                        seen.read();
                    }
                })
            })
            .into_iter()
            .collect();
        fifo.take(0);
        fifo.take(1);
        seen.write();
        fifo.pop(0);
        fifo.pop(1);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// A wait for a trigger to be taken comes after what the proxy did before, whichever of the waiting threads looked.
fn taking_is_ordered(weakness: Weakness) {
    model(Some(3), move || {
        let fifo = Arc::new(Fifo::after(0, weakness));
        let seen = Arc::new(Seen(UnsafeCell::new(0)));
        fifo.push(1, |_| ());
        let threads = [(); 2].map(|()| {
            let (fifo, seen) = (fifo.clone(), seen.clone());
            thread::spawn(move || {
                let mut wait = backoff();
                while !fifo.words().is_seen_taken(0) {
                    wait();
                }
                seen.read();
            })
        });
        fifo.take(0);
        seen.write();
        fifo.pop(0);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(fifo.looking.load(Ordering::Relaxed), 0);
        assert!(fifo.words().is_taken(0) && fifo.tail_cache.load(Ordering::Relaxed) == 1);
    });
}

struct Seen(UnsafeCell<u64>);

// SAFETY: a checked cell: an access that is not ordered fails the model, which is what is tested.
unsafe impl Sync for Seen {}
// SAFETY: as above.
unsafe impl Send for Seen {}

impl Seen {
    fn write(&self) {
        // SAFETY: loom checks that nothing else accesses the cell meanwhile.
        self.0.with_mut(|cell| unsafe { *cell += 1 });
    }

    fn read(&self) -> u64 {
        // SAFETY: loom checks that nothing writes the cell meanwhile.
        self.0.with(|cell| unsafe { *cell })
    }
}

#[test]
fn a_slot_is_reused_after_it_was_read() {
    reuse_is_ordered(Weakness::None);
}

#[test]
#[should_panic]
fn weakened_tail_reuses_too_early() {
    reuse_is_ordered(Weakness::Tail);
}

#[test]
#[should_panic]
fn weakened_tail_cache_reuses_too_early() {
    reuse_is_ordered(Weakness::TailCache);
}

#[test]
fn a_sync_comes_after_the_handler() {
    taking_is_ordered(Weakness::None);
}

#[test]
#[should_panic]
fn weakened_tail_cache_lets_a_sync_return_too_early() {
    taking_is_ordered(Weakness::TailCache);
}

/// One direction of a connection: its data and the peer's token, of two words.
struct Channel {
    fifo: Fifo,
    last_pushed: Word64,
    completed: Word64,
    token: Word64,
    token_by_link: Word64,
    /// What the proxy's put writes at the peer, and what a direct put writes there.
    put: Seen,
    direct: Seen,
    weakness: Weakness,
}

const PUT: u64 = 1;
const SIGNAL: u64 = 2;

impl Channel {
    fn new(weakness: Weakness) -> Arc<Self> {
        Arc::new(Self {
            fifo: Fifo::after(1, weakness),
            last_pushed: Word64::new(0),
            completed: Word64 { weakened: weakness == Weakness::Completed, ..Word64::new(0) },
            token: Word64::new(0),
            token_by_link: Word64::new(0),
            put: Seen(UnsafeCell::new(0)),
            direct: Seen(UnsafeCell::new(0)),
            weakness,
        })
    }

    fn progress(&self) -> ProgressWords<'_, Word64> {
        ProgressWords { last_pushed: &self.last_pushed, completed: &self.completed }
    }

    fn nothing_pending(&self) -> bool {
        self.weakness == Weakness::Overtaking || self.progress().nothing_pending()
    }

    fn push(&self, what: u64) {
        self.fifo.push(what, |position| self.progress().announce(position));
    }

    /// Whether it went directly.
    fn signal(&self) -> bool {
        let direct = self.nothing_pending();
        if direct {
            self.token.fetch_add(1, Ordering::Release);
        } else {
            self.push(SIGNAL);
        }
        direct
    }

    /// The proxy, for the trigger of `position`; the transport completes at once.
    fn serve(&self, position: u64) {
        let what = self.fifo.take(position);
        self.fifo.pop(position);
        if what & PUT != 0 {
            self.put.write();
        }
        if what & SIGNAL != 0 {
            // Only the proxy stores this word, one signal at a time.
            let sent = self.token_by_link.load(Ordering::Relaxed) + 1;
            self.token_by_link.store(sent, Ordering::Release);
            self.completed.store(position + 1, Ordering::Release);
        }
    }

    /// The peer's wait for its `n`th signal.
    fn wait(&self, n: u64) {
        let mut wait = backoff();
        while self.token.load(Ordering::Acquire) + self.token_by_link.load(Ordering::Acquire) < n {
            wait();
        }
    }
}

/// A put with a signal through the proxy, then a signal of the same thread, which may go directly: whoever has one
/// signal sees the data, for either was sent after it.
fn a_later_signal_does_not_overtake(weakness: Weakness) {
    model(Some(2), move || {
        let channel = Channel::new(weakness);
        let sender = thread::spawn({
            let channel = channel.clone();
            move || {
                channel.push(PUT | SIGNAL);
                channel.signal()
            }
        });
        let peer = thread::spawn({
            let channel = channel.clone();
            move || {
                channel.wait(1);
                assert_eq!(channel.put.read(), 1);
            }
        });
        channel.serve(1);
        if !sender.join().unwrap() {
            channel.serve(2);
        }
        peer.join().unwrap();
    });
}

#[test]
fn a_direct_signal_does_not_overtake_a_put() {
    a_later_signal_does_not_overtake(Weakness::None);
}

#[test]
#[should_panic]
fn a_signal_that_does_not_look_overtakes() {
    a_later_signal_does_not_overtake(Weakness::Overtaking);
}

#[test]
#[should_panic]
fn weakened_completion_lets_a_signal_overtake() {
    a_later_signal_does_not_overtake(Weakness::Completed);
}

/// A put that may go directly and its signal, beside another thread's trigger, so that the signal may have to go through
/// the proxy: whoever has both signals sees both puts.
fn both_puts_are_seen(weakness: Weakness) {
    model(Some(2), move || {
        let channel = Channel::new(weakness);
        let sender = thread::spawn({
            let channel = channel.clone();
            move || {
                let direct = channel.nothing_pending();
                if direct {
                    channel.direct.write();
                }
                (direct, channel.signal())
            }
        });
        let peer = thread::spawn({
            let channel = channel.clone();
            move || {
                channel.wait(2);
                (channel.put.read(), channel.direct.read())
            }
        });
        let other = thread::spawn({
            let channel = channel.clone();
            move || channel.push(PUT | SIGNAL)
        });
        channel.serve(1);
        let (put, signal) = sender.join().unwrap();
        if !signal {
            channel.serve(2);
        }
        other.join().unwrap();
        assert_eq!(peer.join().unwrap(), (1, u64::from(put)));
    });
}

#[test]
fn direct_puts_come_with_signals_of_either_way() {
    both_puts_are_seen(Weakness::None);
}

#[test]
#[should_panic]
fn weakened_commit_loses_a_direct_put() {
    both_puts_are_seen(Weakness::Commit);
}
