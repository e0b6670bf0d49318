//! Starts, stops and drops.

use std::thread;

use mscclpp_test_support::until;

use super::{
    Case, Pair, Setup, Side,
    kernels::Thread,
    pair::{fill, mismatches, mix, within},
};

pub(super) const CASES: &[Case] = &[
    ("starts_and_stops_a_hundred_times", starts_and_stops_a_hundred_times),
    ("a_stop_drains_what_was_pushed", a_stop_drains_what_was_pushed),
    ("a_stop_waits_for_what_nobody_flushed", a_stop_waits_for_what_nobody_flushed),
    ("parts_can_be_dropped_in_any_order", parts_can_be_dropped_in_any_order),
    ("a_service_is_dropped_while_triggers_are_under_way", a_service_is_dropped_with_triggers_under_way),
];

fn starts_and_stops_a_hundred_times(setup: &Setup) {
    let pair = Pair::new(setup, 8192, 1, |builder| builder.fifo_size(4));
    let [a, b] = &pair.sides;
    let (from, to) = (a.thread(), b.thread());
    for round in 0..100 {
        fill(&a.words()[..1000], |i| mix(round, i));
        a.service.start_proxy(round % 2 == 0).unwrap();
        a.service.start_proxy(true).unwrap();
        assert!(from.put_with_signal_and_flush(0, 0, 8000) && to.wait());
        assert_eq!(mismatches(&b.words()[..1000], |i| mix(round, i)), 0);
        a.service.stop_proxy().unwrap();
        assert!(!a.service.is_running());
    }
    a.service.stop_proxy().expect("nothing to do");
}

fn a_stop_drains_what_was_pushed(setup: &Setup) {
    const EACH: u64 = 25;
    let pair = Pair::new(setup, 1 << 20, 1, |builder| builder);
    let [a, b] = &pair.sides;
    for round in 0..10 {
        let last = |i| mix(round, i);
        fill(&a.words()[..(1 << 17)], last);
        thread::scope(|scope| {
            for n in 0..4 {
                scope.spawn(move || {
                    let at = n << 18;
                    for _ in 0..EACH {
                        assert!(a.thread().put_with_signal(at, at, 1 << 13));
                    }
                });
            }
            a.service.start_proxy(false).unwrap();
        });
        a.service.stop_proxy().unwrap();
        // No service runs any more; the signals that were handed over come by themselves.
        for _ in 0..4 * EACH {
            assert!(b.thread().wait());
        }
        for n in 0..4 {
            let words = &b.words()[n << 15..][..1 << 10];
            assert_eq!(mismatches(words, |i| last(((n as u64) << 15) + i)), 0);
        }
        assert_eq!(a.service.stats().queue_depth, Some(0));
    }
}

/// Overwrites the source right after the stop: the data of all puts must be at the peer by then.
fn a_stop_waits_for_what_nobody_flushed(setup: &Setup) {
    const LEN: u64 = 1 << 20;
    const WORDS: usize = (LEN / 8) as usize;
    let pair = Pair::new(setup, LEN, 1, |builder| builder);
    let [a, b] = &pair.sides;
    for (round, signals) in [(0, false), (1, true)] {
        a.service.start_proxy(true).unwrap();
        fill(&a.words()[..WORDS], |i| mix(round, i));
        // The last put is given to the transport long before the transport begins with it.
        for _ in 0..16 {
            let put = if signals { a.thread().put_with_signal(0, 0, LEN) } else { a.thread().put(0, 0, LEN) };
            assert!(put);
        }
        a.service.stop_proxy().unwrap();
        fill(&a.words()[..WORDS], |_| 0);
        let wrong = mismatches(&b.words()[..WORDS], |i| mix(round, i));
        assert_eq!(wrong, 0, "round {round}: the source was still needed");
    }
}

/// A part of a side, held until it is dropped.
type Part = Box<dyn Send>;

fn parts(side: Side) -> Vec<Part> {
    let channel = side.channel(0);
    let Side { context, gpu, connection, buffer, own, theirs, semaphores, service, .. } = side;
    vec![
        Box::new(channel),
        Box::new(service),
        Box::new((semaphores, connection)),
        Box::new((own, theirs)),
        Box::new((context, gpu, buffer)),
    ]
}

fn parts_can_be_dropped_in_any_order(setup: &Setup) {
    // Every part is the first and the last once, and comes before and after every other.
    for turn in 0..5 {
        for backwards in [false, true] {
            let Pair { sides: [a, b] } = Pair::running(setup, 8192);
            assert!(a.thread().put_with_signal(0, 0, 8192));
            assert!(b.thread().wait());
            // This makes the service that stops later use its connection, too.
            assert!(b.thread().put_with_signal_and_flush(0, 0, 8192) && a.thread().wait());
            let mut parts = parts(a);
            parts.rotate_left(turn);
            if backwards {
                parts.reverse();
            }
            within("dropping the parts of a side", move || parts.into_iter().for_each(drop));
            until("the news", || b.connection.check().is_err());
            b.service.stop_proxy().expect("a peer that closed is no failure");
        }
    }
}

fn a_service_is_dropped_with_triggers_under_way(setup: &Setup) {
    for _ in 0..10 {
        let Pair { sides: [a, b] } = Pair::running(setup, 1 << 16);
        // The objects that the channel points to outlive `a`.
        let (channel, kernels) = (a.channel(0), a.kernels.clone());
        let kernel = Thread::of(&kernels, &channel);
        for _ in 0..20 {
            assert!(kernel.put_with_signal(0, 0, 1 << 16));
        }
        within("dropping a service", move || drop(a));
        for _ in 0..20 {
            assert!(b.thread().wait());
        }
        // No service would take this trigger.
        assert!(!(kernel.put(0, 0, 1 << 16) && kernel.flush()));
    }
}
