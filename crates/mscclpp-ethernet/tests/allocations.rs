//! Tests that the owner's calls on a queue allocate nothing on the heap, once the queue has run for a while.

mod support;

use std::{cell::Cell, time::Duration};

use mscclpp_core::Semaphore;
use mscclpp_test_support::{Noting, until};
use parking_lot::Mutex;
use support::Words;

thread_local! {
    /// The number of this thread's allocations.
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

extern "C" fn count(_bytes: usize) {
    // A thread that is ending no longer has a count, and nobody needs it.
    let _ = COUNT.try_with(|count| count.set(count.get() + 1));
}

#[global_allocator]
static ALLOCATOR: Noting = Noting(count);

/// Waits for a lock. A thread allocates memory when it first has to wait for one, and it is chance whether that happens
/// before the rounds that count.
fn wait_for_a_lock() {
    let lock = Mutex::new(());
    let _held = lock.lock();
    assert!(lock.try_lock_for(Duration::from_millis(10)).is_none());
}

#[test]
fn a_queue_in_its_stride_allocates_nothing() {
    const WORDS: usize = 100_000;
    let pair = support::pair();
    let (source, target) = (Words::new(&pair.a, WORDS), Words::new(&pair.b, WORDS));
    let (here, _there) = pair.semaphores();
    let semaphore: Semaphore = here.semaphore().clone();
    drop(here);
    let mut queue = pair.ab.open_queue().expect("a queue");
    let signaller = queue.attach(semaphore.signaller().expect("the only signaller")).expect("a signaller");
    let route = queue.route(&target.at_peer(), &source.memory).expect("a route");
    let mut round = |counted: bool| {
        let before = COUNT.get();
        // The owner sends small writes, and hands large ones over.
        for len in [8, 1000, 8 * WORDS as u64, 8, 20_000] {
            queue.write(route, 0, 0, len).expect("a write");
            queue.signal(signaller).expect("a signal");
            queue.submit().expect("handing over");
        }
        let ticket = queue.request_flush().expect("a ticket");
        until("a flush", || queue.progress().expect("progress") >= ticket);
        if counted {
            assert_eq!(COUNT.get(), before, "the owner's thread has allocated");
        }
    };
    wait_for_a_lock();
    (0..200).for_each(|_| round(false));
    (0..200).for_each(|_| round(true));
}
