//! Tests that a signal is never visible before the data that was written before it.

use std::{
    sync::atomic::{Ordering, fence},
    thread,
    time::{Duration, Instant},
};

use crate::support::{self, Pair, Words, mix};
use mscclpp_core::{RegisteredMemory, Transport};
use mscclpp_ethernet::Ethernet;
use mscclpp_test_support::{LIMIT, Random};

/// The number of words that a round writes: any number, most often few.
fn size_of(round: u64, limit: usize) -> usize {
    let mut random = Random::with_seed(round);
    let most = match random.below(8) {
        0 => limit,
        1..4 => limit.min(600),
        _ => limit.min(16),
    };
    1 + random.below(most)
}

fn expected(round: u64, index: usize) -> u64 {
    mix(round << 32 | index as u64)
}

/// Whether a signal is sent behind its data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Kept,
    /// The signal comes first and the data a moment later, as if the signal had overtaken it.
    Broken,
}

/// Writes and signals from one end to the other `rounds` times. Returns how often the data was missing when the signal came.
fn violations(pair: &Pair, order: Order, rounds: u64, words: usize) -> usize {
    let (source, target) = (Words::new(&pair.a, words), Words::new(&pair.b, words));
    let there = target.at_peer();
    let (writer, reader) = pair.semaphores();
    thread::scope(|scope| {
        let seen = scope.spawn(|| {
            let mut violations = 0;
            for round in 1..=rounds {
                reader.wait(-1).expect("a signal");
                let wrong = (0..size_of(round, words)).any(|i| target.at(i) != expected(round, i));
                violations += usize::from(wrong);
                reader.signal().expect("a signal back");
            }
            violations
        });
        for round in 1..=rounds {
            let size = size_of(round, words);
            (0..size).for_each(|i| source.set(i, expected(round, i)));
            if order == Order::Broken {
                writer.signal().expect("a signal");
                thread::sleep(Duration::from_micros(200));
            }
            // A third of the rounds use two writes, so that there is more than one frame that could get out of order.
            let first = if round % 3 == 0 { size / 2 } else { size };
            for (at, end) in [(0, first), (first, size)] {
                let (at, len) = (8 * at as u64, 8 * (end - at) as u64);
                pair.ab.write(&there, at, &source.memory, at, len).expect("a write");
            }
            if order == Order::Kept {
                writer.signal().expect("a signal");
            }
            writer.wait(-1).expect("a signal back");
        }
        seen.join().expect("the reader")
    })
}

#[test]
fn no_signal_overtakes_its_data() {
    assert_eq!(violations(&support::pair(), Order::Kept, 10_000, 20_000), 0);
}

#[test]
fn no_signal_overtakes_its_data_with_checksums() {
    let end = || support::end_with(Ethernet::builder().checksums(true));
    assert_eq!(violations(&Pair::of(end(), end()), Order::Kept, 2_000, 20_000), 0);
}

#[test]
#[ignore = "takes a minute"]
fn no_signal_overtakes_its_data_in_a_hundred_thousand_rounds() {
    assert_eq!(violations(&support::pair(), Order::Kept, 100_000, 20_000), 0);
}

/// The test above would notice a signal that comes before its data.
#[test]
fn a_broken_order_would_be_seen() {
    let seen = violations(&support::pair(), Order::Broken, 300, 16);
    assert_ne!(seen, 0, "the order was broken on purpose, and nobody noticed");
}

/// The data is on a device, and the update that announces it on the host or on another device: no stream orders the two.
#[test]
fn an_update_elsewhere_comes_after_the_data_of_a_device() {
    const LEN: usize = 1 << 20;
    let pair = support::pair();
    let [data, sign] =
        [0, 1].map(|id| pair.b.context.gpu(id).expect("a device").allocate(LEN as u64).expect("memory"));
    let registered =
        |buffer| pair.b.context.register_buffer(buffer, Transport::ETHERNET).expect("a registration");
    let (data_memory, sign_memory) = (registered(&data), registered(&sign));
    let travel = |memory: &RegisteredMemory| {
        RegisteredMemory::deserialize(&memory.serialize().expect("serializing")).expect("reading")
    };
    let (there, sign_there) = (travel(&data_memory), travel(&sign_memory));
    let (source, word) = (Words::new(&pair.a, LEN / 8), Words::new(&pair.b, 1));
    let word_there = word.at_peer();
    for round in 1..=150u64 {
        (0..LEN / 8).for_each(|i| source.set(i, expected(round, i)));
        pair.ab.write(&there, 0, &source.memory, 0, LEN as u64).expect("a write");
        let on_host = round % 2 == 0;
        let announced = if on_host { &word_there } else { &sign_there };
        pair.ab.update_and_sync(announced, 0, &mut 0, round).expect("an update");
        // Polls without a pause, so that the update is seen as early as possible.
        let is_there = || match on_host {
            true => word.acquire(0) == round,
            false => {
                let mut bytes = [0; 8];
                sign.read(0, &mut bytes).expect("reading a device");
                // The read is a relaxed load; with the fence it pairs with the store of the update.
                fence(Ordering::Acquire);
                u64::from_ne_bytes(bytes) == round
            }
        };
        let deadline = Instant::now() + LIMIT;
        while !is_there() {
            assert!(Instant::now() < deadline, "the update of round {round} does not come");
            thread::yield_now();
        }
        let mut bytes = vec![0; LEN];
        data.read(0, &mut bytes).expect("reading a device");
        let (words, _) = bytes.as_chunks::<8>();
        let wrong = (0..LEN / 8).find(|i| u64::from_ne_bytes(words[*i]) != expected(round, *i));
        assert_eq!(wrong, None, "round {round}");
        pair.ab.flush(LIMIT).expect("a flush");
    }
}
