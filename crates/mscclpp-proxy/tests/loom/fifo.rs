//! Models of pushes, pops and syncs.

use std::sync::{Arc, atomic::Ordering};

use loom::thread;
use mscclpp_proxy::protocol::SharedWord;

use crate::{Fifo, Seen, Weakness, backoff, model};

/// Checks that each trigger comes once, whole, and those of a thread in their order, if `producers` threads push
/// `each` triggers.
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

/// Checks that a push that reuses a slot comes after the proxy has read the slot, by data that the proxy writes.
fn reuse_is_ordered(weakness: Weakness) {
    model(Some(3), move || {
        let fifo = Arc::new(Fifo::after(0, weakness));
        let seen = Arc::new(Seen::default());
        fifo.push(1, |_| ());
        fifo.push(2, |_| ());
        // Two threads push: the second to find room may know of it from the first, through the cache alone.
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

/// Checks that a wait for a trigger to be taken ends after the proxy's earlier work, whichever waiting thread looked.
fn taking_is_ordered(weakness: Weakness) {
    model(Some(3), move || {
        let fifo = Arc::new(Fifo::after(0, weakness));
        let seen = Arc::new(Seen::default());
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
