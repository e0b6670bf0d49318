//! Tests of how many requests are posted and how many completions are asked for. A node's speed does not change these
//! counts.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use mscclpp_core::{IbConfig, IbMode};

use crate::{
    ends::Words,
    world::{MODES, POLLS, World, flush},
};
use mscclpp_fake_ib::Config;

#[test]
fn a_put_with_its_signal_is_one_call() {
    for (mode, requests) in [(IbMode::Host, 2), (IbMode::HostNoAtomic, 1)] {
        let world = World::new(Config::new(2));
        // A peer with so many receives posts nothing in this test.
        let pair = world.pair(mode, IbConfig::new().max_recv_wr(64));
        let (there, back) = pair.semaphores();
        let (source, target) = (Words::new(&pair.a, 8), Words::new(&pair.b, 8));
        let mut queue = pair.ab.open_queue().expect("a queue");
        let route = queue.route(&target.at_peer(), &source.memory).expect("a route");
        let signaller = queue.attach(there.semaphore().signaller().expect("a signaller")).expect("attaching");
        // The first signal selects the token for the numbers behind it.
        queue.signal(signaller).expect("a signal");
        flush(&mut queue);
        back.wait(POLLS).expect("a signal");
        for round in 1..=10 {
            source.fill(round);
            let before = world.fake.counters();
            queue.write(route, 0, 0, 64).expect("a write");
            queue.signal(signaller).expect("a signal");
            assert_eq!(queue.submit().expect("handing over"), 0);
            let after = world.fake.counters();
            let counted = (after.posts - before.posts, after.requests - before.requests);
            assert_eq!(counted, (1, requests), "{mode:?}, round {round}");
            back.wait(POLLS).expect("a signal");
            assert_eq!(target.all_hold(round), Ok(()));
            flush(&mut queue);
        }
    }
}

#[test]
fn sixty_four_puts_and_a_flush_tell_of_few_completions() {
    for (mode, each_alone) in MODES.into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
        let world = World::new(Config::new(2));
        let pair = world.pair(mode, IbConfig::new());
        let (source, target) = (Words::new(&pair.a, 64), Words::new(&pair.b, 64));
        let mut queue = pair.ab.open_queue().expect("a queue");
        let route = queue.route(&target.at_peer(), &source.memory).expect("a route");
        source.fill(3);
        let before = world.fake.counters();
        for word in 0..64 {
            queue.write(route, 8 * word, 8 * word, 8).expect("a write");
            if each_alone {
                queue.submit().expect("handing over");
            }
        }
        flush(&mut queue);
        let after = world.fake.counters();
        assert_eq!(target.all_hold(3), Ok(()));
        let requests = after.requests - before.requests;
        assert!(
            (64..=64 + u64::from(each_alone)).contains(&requests),
            "{requests} requests for 64 puts and a flush"
        );
        let told = after.send_completions - before.send_completions;
        assert!((1..=4).contains(&told), "{told} completions for 64 puts and a flush");
        let calls = after.posts - before.posts;
        let most = if each_alone { 65 } else { 2 };
        assert!(calls <= most, "{calls} calls for 64 puts and a flush");
    }
}

#[test]
fn a_burst_of_signals_finds_receives() {
    const SIGNALS: u64 = 10_000;
    for mode in MODES {
        let world = World::new(Config::new(2));
        let pair = world.pair(mode, IbConfig::new());
        let (there, back) = pair.semaphores();
        thread::scope(|scope| {
            scope.spawn(|| (0..SIGNALS).for_each(|_| there.signal().expect("a signal")));
            (0..SIGNALS).for_each(|_| back.wait(POLLS).expect("a signal"));
        });
        assert!(!back.poll().expect("a poll"), "there were more signals than were sent");
        let counters = world.fake.counters();
        assert_eq!((counters.rnr_retries, counters.overruns), (0, 0), "{counters:?}");
        if mode == IbMode::HostNoAtomic {
            assert!(counters.receive_completions >= SIGNALS, "they went as immediate data: {counters:?}");
        }
    }
}

/// Threads that wait handle the signals themselves, so the adapter need not wake the transport's thread for each. On a busy
/// machine they get a processor late and poll seldom. Then it is right to use events, so one of several runs has few.
#[test]
fn signals_that_are_waited_for_make_few_events() {
    const ROUNDS: u64 = 2000;
    let world = World::new(Config::new(2));
    let pair = world.pair(IbMode::HostNoAtomic, IbConfig::new());
    let (there, back) = pair.semaphores();
    let events = || {
        let before = world.fake.counters();
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    back.wait(POLLS).expect("a signal");
                    back.signal().expect("a signal");
                }
            });
            for _ in 0..ROUNDS {
                there.signal().expect("a signal");
                there.wait(POLLS).expect("a signal");
            }
        });
        let after = world.fake.counters();
        assert!(after.receive_completions - before.receive_completions >= 2 * ROUNDS);
        let events = after.events - before.events;
        println!("{events} events for {} signals", 2 * ROUNDS);
        events
    };
    assert!((0..20).any(|_| events() < ROUNDS), "events for more than half of the signals in 20 runs");
}

/// A thread that polls only now and then handles signals too. Events are faster, so the transport's thread must not
/// leave the signals to it: the peer, which knows of a few receives only, must not wait for it.
#[test]
fn a_thread_that_polls_now_and_then_is_no_reason_to_do_without_events() {
    const SIGNALS: u64 = 100;
    const BETWEEN_POLLS: Duration = Duration::from_micros(300);
    const BETWEEN_SIGNALS: Duration = Duration::from_millis(1);
    let world = World::new(Config::new(2));
    let pair = world.pair(IbMode::HostNoAtomic, IbConfig::new());
    let ((there, back), (_, idle)) = (pair.semaphores(), pair.semaphores());
    there.signal().expect("a signal");
    back.wait(POLLS).expect("a signal");
    let is_over = AtomicBool::new(false);
    let before = world.fake.counters();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(idle.poll().ok(), Some(false), "nobody signals this one");
                thread::sleep(BETWEEN_POLLS);
            }
        });
        for _ in 0..SIGNALS {
            thread::sleep(BETWEEN_SIGNALS);
            there.signal().expect("a signal");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let events = world.fake.counters().events - before.events;
    println!("{events} events for {SIGNALS} signals");
    // Signals that come before the transport's thread gets a processor share an event.
    assert!(events > SIGNALS / 10, "{events} events for {SIGNALS} signals");
}
