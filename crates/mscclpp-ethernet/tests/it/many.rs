//! Tests with many connections at once, with much data, and of the things that a queue must not do meanwhile.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::support::{self, End, Pair, Words, mix};
use mscclpp_conformance::hosts::semaphores;
use mscclpp_test_support::{LIMIT, Random, until};

#[test]
fn a_hundred_connections_between_eight_ranks() {
    const RANKS: usize = 8;
    const PAIRS: usize = 50;
    const WORDS: usize = 5000;
    let ranks: Vec<End> = (0..RANKS).map(|_| support::end()).collect();
    // Each pair has two connections, one for each direction, with queues of their own.
    let pairs: Vec<_> = (0..PAIRS)
        .map(|n| {
            let (a, b) = (&ranks[n % RANKS], &ranks[(n + 1 + n / RANKS) % RANKS]);
            (a, b, a.connect(&b.endpoint), b.connect(&a.endpoint))
        })
        .collect();
    thread::scope(|scope| {
        for (number, (a, b, ab, ba)) in pairs.iter().enumerate() {
            let (at_a, at_b) = semaphores(ab, ba);
            let (from_a, from_b) = (Words::new(a, WORDS), Words::new(b, WORDS));
            let (to_a, to_b) = (Words::new(a, WORDS), Words::new(b, WORDS));
            let sides = [(ab, at_a, from_a, to_b.at_peer(), 0), (ba, at_b, from_b, to_a.at_peer(), 1)];
            let mut incoming = [to_a, to_b].into_iter();
            for (connection, semaphore, source, there, side) in sides {
                let target = incoming.next().expect("one for each side");
                scope.spawn(move || {
                    let value = |side: u64, round: u64, i: usize| {
                        mix((number as u64) << 40 | side << 36 | round << 32 | i as u64)
                    };
                    for round in 0..4u64 {
                        (0..WORDS).for_each(|i| source.set(i, value(side, round, i)));
                        connection
                            .write(&there, 0, &source.memory, 0, source.memory.size())
                            .expect("a write");
                        semaphore.signal().expect("a signal");
                        semaphore.wait(-1).expect("a signal");
                        let wrong = (0..WORDS).find(|i| target.at(*i) != value(1 - side, round, *i));
                        assert_eq!(wrong, None, "pair {number}, side {side}, round {round}");
                        connection.flush(LIMIT).expect("a flush");
                        semaphore.signal().expect("a signal");
                        semaphore.wait(-1).expect("a signal");
                    }
                });
            }
        }
    });
}

/// Uses two queues at once, until `is_enough` returns true for the time and the bytes so far.
fn soak(is_enough: impl Fn(Duration, u64) -> bool + Sync) {
    let pair = support::pair();
    let (began, total) = (Instant::now(), AtomicU64::new(0));
    let more = |bytes| {
        let total = bytes + total.fetch_add(bytes, Ordering::Relaxed);
        !is_enough(began.elapsed(), total)
    };
    thread::scope(|scope| {
        for seed in 0..2 {
            let (pair, more) = (&pair, &more);
            scope.spawn(move || soak_queue(pair, seed, more));
        }
    });
    println!("{} bytes in {:?}, all as they should be", total.into_inner(), began.elapsed());
}

/// Makes writes of all sizes to all places, and compares the memories after each flush.
fn soak_queue(pair: &Pair, seed: u64, more: impl Fn(u64) -> bool) {
    const WORDS: usize = 1 << 20;
    let (source, target) = (Words::new(&pair.a, WORDS), Words::new(&pair.b, WORDS));
    let mut queue = pair.ab.open_queue().expect("a queue");
    let route = queue.route(&target.at_peer(), &source.memory).expect("a route");
    let mut random = Random::with_seed(seed);
    let mut due = vec![0; WORDS];
    let mut bytes = 0;
    while more(bytes) {
        let base = random.word();
        (0..WORDS).for_each(|i| source.set(i, base ^ mix(i as u64)));
        bytes = 0;
        for _ in 0..1 + random.below(30) {
            let most = if random.below(4) == 0 { WORDS } else { 3000 };
            let len = 1 + random.below(most);
            let mut place = || random.below(WORDS - len + 1);
            let (to, from) = (place(), place());
            queue.write(route, 8 * to as u64, 8 * from as u64, 8 * len as u64).expect("a write");
            (0..len).for_each(|i| due[to + i] = base ^ mix((from + i) as u64));
            bytes += 8 * len as u64;
        }
        let ticket = queue.request_flush().expect("a ticket");
        until("a flush", || queue.progress().expect("progress") >= ticket);
        assert_eq!((0..WORDS).find(|i| target.at(*i) != due[*i]), None, "a word is not what was written");
    }
}

#[test]
fn a_short_soak() {
    soak(|time, _| time > Duration::from_secs(3));
}

#[test]
#[ignore = "takes two minutes"]
fn two_minutes_of_soak() {
    soak(|time, _| time > Duration::from_secs(120));
}

#[test]
#[ignore = "takes many minutes, and less when optimised"]
fn two_hundred_gibibytes_of_soak() {
    soak(|_, bytes| bytes >= 200 << 30);
}

/// A write arrives even if nobody flushes or calls the queue again.
#[test]
fn a_write_arrives_by_itself() {
    let pair = support::pair();
    for words in [1, 100, 100_000] {
        let (source, target) = (Words::new(&pair.a, words), Words::new(&pair.b, words));
        (0..words).for_each(|i| source.set(i, i as u64 + 1));
        pair.ab.write(&target.at_peer(), 0, &source.memory, 0, source.memory.size()).expect("a write");
        until("a write", || (0..words).all(|i| target.at(i) == i as u64 + 1));
    }
}

/// Operations that were submitted before a queue is dropped are carried out.
#[test]
fn a_dropped_queue_carries_out_what_it_was_given() {
    const WORDS: usize = 2 << 20;
    let pair = support::pair();
    let (source, target) = (Words::new(&pair.a, WORDS), Words::new(&pair.b, WORDS));
    (0..WORDS).for_each(|i| source.set(i, i as u64 + 1));
    let mut queue = pair.ab.open_queue().expect("a queue");
    let route = queue.route(&target.at_peer(), &source.memory).expect("a route");
    queue.write(route, 0, 0, 8 * WORDS as u64).expect("a write");
    drop(queue);
    until("the last word", || target.at(WORDS - 1) == WORDS as u64);
    assert_eq!((0..WORDS).find(|i| target.at(*i) != *i as u64 + 1), None);
}

/// Makes many more writes than the queue holds, too large for the socket to take at once: each waits for room, and arrives.
#[test]
fn too_much_at_once_waits_for_room() {
    const WORDS: usize = 1 << 20;
    use mscclpp_core::{Device, EndpointConfig, Transport};
    let (mut a, b) = (support::end(), support::end());
    let config = EndpointConfig::new(Transport::ETHERNET, Device::CPU).max_write_queue_size(3);
    a.endpoint = a.context.create_endpoint(config).expect("an endpoint");
    let pair = Pair::of(a, b);
    let (source, target) = (Words::new(&pair.a, WORDS), Words::new(&pair.b, WORDS));
    let there = target.at_peer();
    (0..WORDS).for_each(|i| source.set(i, i as u64 + 1));
    for _ in 0..20 {
        pair.ab.write(&there, 0, &source.memory, 0, 8 * WORDS as u64).expect("a write");
    }
    pair.ab.flush(LIMIT).expect("a flush");
    assert!((0..WORDS).all(|i| target.at(i) == i as u64 + 1));

    // A queue reports that it is full instead of waiting, and that is no failure.
    let mut queue = pair.ab.open_queue().expect("a queue");
    let route = queue.route(&there, &source.memory).expect("a route");
    for _ in 0..20 {
        queue.write(route, 0, 0, 8 * WORDS as u64).expect("a write");
    }
    assert!(queue.submit().expect("no failure") >= 15, "it took more than it holds");
    let ticket = queue.request_flush().expect("a ticket");
    until("a flush", || queue.progress().expect("progress") >= ticket);
    assert_eq!(queue.waiting(), 0);
}
