//! Signals and waits through the device handles, by host threads: the Host platform's device memory is host memory.
//!
//! Every unbounded wait here runs on a thread that the case watches, so that a lost signal fails it.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread::{self, JoinHandle},
    time::Duration,
};

use super::{
    Case, Setup, host_signals,
    pair::{End, PATIENCE, Pair, assert_error, join, received},
    semaphores::build,
};
use crate::{BaseMemoryChannel, Connection, Error, HostToDeviceSemaphore};

pub(super) const CASES: &[(&str, Case)] = &[
    ("signals::each_wait_takes_one_signal", each_wait_takes_one_signal),
    ("signals::an_endpoint_signals_itself", an_endpoint_signals_itself),
    ("signals::both_sides_take_turns", both_sides_take_turns),
    ("signals::a_wait_that_times_out_consumes_nothing", a_wait_that_times_out_consumes_nothing),
    ("signals::an_abort_ends_waits", an_abort_ends_waits),
    ("signals::a_peer_that_closed_ends_waits", a_peer_that_closed_ends_waits),
    (
        "signals::a_wait_sees_what_was_written_before_the_signal",
        a_wait_sees_what_was_written_before_the_signal,
    ),
    ("signals::signals_of_many_threads_add_up", signals_of_many_threads_add_up),
    ("signals::semaphores_share_no_words", semaphores_share_no_words),
    ("signals::signals_of_kernels_and_of_links_add_up", signals_of_kernels_and_of_links_add_up),
];

/// A poll count that no machine gets through while a case runs, yet an end.
const LONG: i64 = 1 << 20;

/// One side's channel, in the hands of host threads.
#[derive(Clone)]
struct Side(BaseMemoryChannel);

// SAFETY of the `unsafe` blocks below: the handle is one of a semaphore of the Host platform, which `self.0` keeps.
impl Side {
    fn signal(&self) {
        // SAFETY: see above.
        unsafe { self.0.device_handle().signal() }
    }

    fn relaxed_signal(&self) {
        // SAFETY: see above.
        unsafe { self.0.device_handle().relaxed_signal() }
    }

    fn poll(&self) -> bool {
        // SAFETY: see above.
        unsafe { self.0.device_handle().poll() }
    }

    fn wait(&self, max_spins: i64) -> bool {
        // SAFETY: see above.
        unsafe { self.0.device_handle().wait(max_spins) }
    }

    fn relaxed_wait(&self, max_spins: i64) -> bool {
        // SAFETY: see above.
        unsafe { self.0.device_handle().relaxed_wait(max_spins) }
    }

    /// An unbounded wait on a thread of its own.
    fn waiting(&self) -> JoinHandle<bool> {
        let side = self.clone();
        thread::spawn(move || side.wait(-1))
    }
}

/// Both sides of a new channel.
fn channel(ab: &Connection, ba: &Connection) -> (Side, Side) {
    let (a, b) = build(ab, ba);
    let side = |semaphore| Side(BaseMemoryChannel::new(semaphore).expect("a channel"));
    (side(&a), side(&b))
}

fn each_wait_takes_one_signal(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let (a, b) = channel(&pair.ab, &pair.ba);
    assert!(!b.poll() && !a.poll(), "a new semaphore has signals");
    let takes: [fn(&Side) -> bool; 5] = [
        |side| side.poll(),
        |side| side.wait(1),
        |side| join(side.waiting(), PATIENCE, "a wait for a signal that was sent"),
        |side| side.relaxed_wait(1),
        |side| side.relaxed_wait(LONG),
    ];
    for (from, to) in [(&a, &b), (&b, &a)] {
        for take in takes {
            from.signal();
            assert!(take(to), "a signal was lost");
            assert!(!to.poll(), "a signal was taken twice");
            from.relaxed_signal();
            from.signal();
            assert!(take(to) && take(to) && !to.poll(), "two signals are two");
        }
        let waiting = to.waiting();
        thread::sleep(Duration::from_millis(5));
        assert!(!waiting.is_finished(), "a wait without a signal returned");
        from.signal();
        assert!(join(waiting, PATIENCE, "a wait that was signalled"));
        assert!(!from.poll(), "a signal came back");
    }
}

fn an_endpoint_signals_itself(setup: &dyn Setup) {
    let end = End::open(setup, 0);
    let connection =
        end.context.connect(&end.endpoint, &received(&end.endpoint)).expect("connecting with itself");
    let (first, second) = channel(&connection, &connection);
    first.signal();
    assert!(!first.poll() && second.poll() && !second.poll());
    second.signal();
    assert!(!second.poll() && first.poll() && !first.poll());
}

fn both_sides_take_turns(setup: &dyn Setup) {
    const ROUNDS: usize = 2000;
    let pair = Pair::connect(setup);
    let (a, b) = channel(&pair.ab, &pair.ba);
    let pong = thread::spawn(move || (0..ROUNDS).all(|_| b.wait(-1) && (b.signal(), true).1));
    let ping = thread::spawn(move || (0..ROUNDS).all(|_| (a.signal(), true).1 && a.wait(-1)));
    assert!(join(ping, PATIENCE, "the side that begins"));
    assert!(join(pong, PATIENCE, "the side that answers"));
}

fn a_wait_that_times_out_consumes_nothing(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    pair.ba.set_label("rank 0");
    let (a, b) = channel(&pair.ab, &pair.ba);
    let semaphore = b.0.semaphore();
    for _ in 0..3 {
        assert!(!b.wait(0) && !b.wait(1) && !b.wait(1000) && !b.relaxed_wait(10));
        let error = semaphore.check().expect_err("a wait has timed out");
        assert!(matches!(&error, Error::DeviceWaitTimedOut { peer } if peer == "rank 0"), "{error}");
        semaphore.check().expect("reported once");
        a.signal();
        assert!(b.wait(1000), "the wait repeated finds the signal");
        assert!(!b.poll());
        semaphore.check().expect("nothing has timed out since");
    }
}

/// Those under way and later ones; what was signalled before still counts.
fn an_abort_ends_waits(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let (a, b) = channel(&pair.ab, &pair.ba);
    let waiting: Vec<_> = (0..3).map(|_| b.waiting()).collect();
    let bounded = thread::spawn({
        let b = b.clone();
        move || b.wait(i64::MAX)
    });
    thread::sleep(Duration::from_millis(5));
    b.0.semaphore().abort("the test is over");
    for thread in waiting.into_iter().chain([bounded]) {
        assert!(!join(thread, PATIENCE, "a wait that was aborted"), "nobody has signalled");
    }
    assert!(!join(b.waiting(), PATIENCE, "a wait after the abort"));
    assert_error!(b.0.semaphore().check(), Error::Aborted { .. });

    a.0.semaphore().check().expect("the peer is not told");
    b.signal();
    assert!(a.wait(1000), "the peer still gets signals");
    a.signal();
}

fn a_peer_that_closed_ends_waits(setup: &dyn Setup) {
    let Pair { a: _a, b, ab, ba } = Pair::connect(setup);
    let (ours, theirs) = channel(&ab, &ba);
    let waiting = ours.waiting();
    drop((theirs, ba, b));
    assert!(!join(waiting, PATIENCE, "a wait for a peer that is gone"));
    assert_error!(ours.0.semaphore().check(), Error::PeerClosed { .. } | Error::PeerLost { .. });
}

/// A litmus test of the release of `signal` and the acquire of `wait`, through the peer's memory as mapped here.
fn a_wait_sees_what_was_written_before_the_signal(setup: &dyn Setup) {
    const ROUNDS: u64 = 20_000;
    let pair = Pair::connect(setup);
    let (a, b) = channel(&pair.ab, &pair.ba);
    let data = pair.b.share(64);
    let mapped = pair.ab.peer_ptr(&data.at_peer).expect("mapping the peer's memory").expect("a pointer");
    let words = move |start: u64| -> [&'static AtomicU64; 8] {
        // SAFETY: 64 bytes of a buffer that outlives the threads, which are joined before `pair` and `data` go; both
        // addresses are those of allocations, so aligned, and all access is atomic.
        std::array::from_fn(|i| unsafe { AtomicU64::from_ptr((start as *mut u64).add(i)) })
    };
    let there = words(mapped.0);
    let here = words(data.buffer.ptr().0);
    let writer = thread::spawn(move || {
        (1..=ROUNDS).all(|round| {
            there.iter().for_each(|word| word.store(round, Ordering::Relaxed));
            a.signal();
            a.wait(-1)
        })
    });
    let reader = thread::spawn(move || {
        (1..=ROUNDS).all(|round| {
            assert!(b.wait(-1));
            here.iter()
                .for_each(|word| assert_eq!(word.load(Ordering::Relaxed), round, "data behind its signal"));
            b.signal();
            true
        })
    });
    assert!(join(reader, 4 * PATIENCE, "the reader"));
    assert!(join(writer, 4 * PATIENCE, "the writer"));
}

fn signals_of_many_threads_add_up(setup: &dyn Setup) {
    const THREADS: usize = 4;
    const EACH: usize = 500;
    let pair = Pair::connect(setup);
    let (a, b) = channel(&pair.ab, &pair.ba);
    let repeat = |side: &Side, act: fn(&Side) -> bool| {
        let side = side.clone();
        thread::spawn(move || (0..EACH).all(|_| act(&side)))
    };
    let waiters: Vec<_> = (0..THREADS)
        .map(|i| if i % 2 == 0 { repeat(&b, |b| b.wait(-1)) } else { repeat(&b, |b| b.wait(LONG)) })
        .collect();
    let signallers: Vec<_> = (0..THREADS)
        .map(|i| match i % 2 {
            0 => repeat(&a, |a| (a.signal(), true).1),
            _ => repeat(&a, |a| (a.relaxed_signal(), true).1),
        })
        .collect();
    for thread in signallers.into_iter().chain(waiters) {
        assert!(join(thread, 2 * PATIENCE, "one of many threads"));
    }
    assert!(!b.poll(), "more signals than were sent");
}

/// Also not with one that is gone: a peer that still signals it must not reach a newer one.
fn semaphores_share_no_words(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let mut seen = std::collections::HashSet::new();
    let mut stale = Vec::new();
    for round in 0..100 {
        let (a, b) = channel(&pair.ab, &pair.ba);
        for side in [&a, &b] {
            let handle = side.0.device_handle();
            for pointer in [handle.inbound_token, handle.expected_inbound_token] {
                assert!(seen.insert(pointer.addr()), "{pointer:?} was given out twice");
            }
        }
        stale.iter().for_each(Side::signal);
        assert!(!a.poll() && !b.poll(), "signals of others arrived in round {round}");
        // One side is dropped, the other goes on signalling it.
        stale.push(a);
    }
}

fn signals_of_kernels_and_of_links_add_up(setup: &dyn Setup) {
    const EACH: u64 = 500;
    let pair = Pair::connect(setup);
    let (a, b) = build(&pair.ab, &pair.ba);
    let (host, device) = (
        HostToDeviceSemaphore::new(&a).expect("a semaphore that hosts signal"),
        BaseMemoryChannel::new(&a).expect("a channel of the same semaphore"),
    );
    let by_device = std::thread::spawn(move || {
        for _ in 0..EACH {
            // SAFETY: the handle is one of a live semaphore of the Host platform.
            unsafe { device.device_handle().signal() };
        }
    });
    for _ in 0..EACH {
        host.signal().expect("a signal");
    }
    join(by_device, PATIENCE, "signals of a kernel");
    for n in 0..2 * EACH {
        assert!(host_signals::wait(&b, host_signals::LONG), "signal {n} of {} is lost", 2 * EACH);
    }
    assert!(!host_signals::wait(&b, 1), "there are more signals than were sent");
}
