//! Transfers: writes, updates and flushes, the order in which they arrive, and the bytes that they must not change.

use std::{thread, time::Duration};

use mscclpp_core::{Connection, Error, provider::TokenMemory};

use crate::{
    Cases, Setup,
    pair::{
        End, PATIENCE, Pair, SharedMemory, assert_error, assert_same, await_value, eventually, noise, travel,
    },
};

pub(crate) const CASES: Cases = cases!["transfers":
    writes_are_exact,
    writes_take_effect_in_order,
    both_ways_at_once,
    many_threads_write_over_one_connection,
    an_update_comes_after_the_data,
    an_update_is_eight_aligned_bytes,
    an_update_of_an_unaligned_memory_does_no_harm,
    a_word_rises_past_32_bits,
    a_flush_can_time_out_and_be_repeated,
    tickets_are_reached_in_order,
    nothing_is_written_out_of_bounds,
];

const MIB: u64 = 1 << 20;

/// Writes fresh random bytes of many sizes at many alignments, and checks that the bytes around them stay as they
/// were.
fn writes_are_exact(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let check = |len: u64, sizes: &[u64], offsets: &[(u64, u64)]| {
        let (source, target) = (pair.a.share(len), pair.b.share(len));
        for size in sizes {
            for (dst, src) in offsets.iter().chain(&[(len - size, 0), (0, len - size)]) {
                let (data, mut expected) = (noise(len as usize), noise(len as usize));
                source.buffer.write(0, &data).expect("filling the source");
                target.buffer.write(0, &expected).expect("filling the target");
                pair.ab.write(&target.at_peer, *dst, &source.memory, *src, *size).expect("write");
                pair.ab.flush(PATIENCE).expect("flush");
                let [dst, src, size] = [*dst, *src, *size].map(|n| n as usize);
                expected[dst..][..size].copy_from_slice(&data[src..][..size]);
                assert_same(&target.bytes(), &expected, &format!("{size} bytes from {src} to {dst}"));
                assert_same(&source.bytes(), &data, "the source");
            }
        }
    };
    let offsets = [(0, 0), (1, 0), (0, 1), (5, 3), (8, 16), (4095, 4097)];
    check(16 << 10, &[0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 127, 511, 4095, 4096, 4097], &offsets);
    check(MIB + 4096, &[65537, MIB - 1, MIB], &[(9, 2)]);
}

fn writes_take_effect_in_order(setup: &dyn Setup) {
    if !setup.orders_writes() {
        return;
    }
    let pair = Pair::connect(setup);
    let sources: Vec<SharedMemory> = (0..16u8).map(|i| pair.a.share_bytes(&[i + 1; 4096])).collect();
    let target = pair.b.share(4096 + 16 * 8);
    for _ in 0..8 {
        let mut expected = target.bytes();
        for (i, source) in sources.iter().enumerate() {
            pair.ab.write(&target.at_peer, 8 * i as u64, &source.memory, 0, 4096).expect("write");
            expected[8 * i..][..4096].fill(i as u8 + 1);
        }
        pair.ab.flush(PATIENCE).expect("flush");
        assert_same(&target.bytes(), &expected, "overlapping writes");
    }
}

fn both_ways_at_once(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let run = |connection: &Connection, from: &End, to: &End| {
        for _ in 0..20 {
            let data = noise(100_000);
            let (source, target) = (from.share_bytes(&data), to.share(100_000));
            connection.write(&target.at_peer, 0, &source.memory, 0, 100_000).expect("write");
            connection.flush(PATIENCE).expect("flush");
            assert_same(&target.bytes(), &data, "with traffic in both directions");
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| run(&pair.ab, &pair.a, &pair.b));
        scope.spawn(|| run(&pair.ba, &pair.b, &pair.a));
    });
}

fn many_threads_write_over_one_connection(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let target = pair.b.share(4 * 10_000);
    thread::scope(|scope| {
        for i in 0..4u64 {
            let (pair, target) = (&pair, &target);
            scope.spawn(move || {
                for _ in 0..25 {
                    let data = noise(10_000);
                    let source = pair.a.share_bytes(&data);
                    pair.ab.write(&target.at_peer, i * 10_000, &source.memory, 0, 10_000).expect("write");
                    pair.ab.flush(PATIENCE).expect("flush");
                    let mut got = vec![0; 10_000];
                    target.buffer.read(i * 10_000, &mut got).expect("read");
                    assert_same(&got, &data, "one of four writing threads");
                }
            });
        }
    });
}

/// The central promise: whoever sees the value sees the data, at once, round after round.
fn an_update_comes_after_the_data(setup: &dyn Setup) {
    const DATA: usize = 32 << 10;
    let pair = Pair::connect(setup);
    for (connection, from, to) in [(&pair.ab, &pair.a, &pair.b), (&pair.ba, &pair.b, &pair.a)] {
        let (source, target) = (from.share(DATA as u64), to.share(DATA as u64 + 8));
        let mut sent = 0;
        for round in 1..=150 {
            let data = noise(DATA);
            source.buffer.write(0, &data).expect("filling the source");
            // There are several writes, so that there is an order to break.
            for quarter in 0..4 {
                let at = quarter * DATA as u64 / 4;
                connection.write(&target.at_peer, at, &source.memory, at, DATA as u64 / 4).expect("write");
            }
            connection.update_and_sync(&target.at_peer, DATA as u64, &mut sent, round).expect("update");
            assert_eq!(sent, round, "the sender's copy");
            await_value(&target, DATA as u64, round);
            let mut got = vec![0; DATA];
            target.buffer.read(0, &mut got).expect("read");
            assert_same(&got, &data, &format!("the data of round {round}"));
        }
    }
}

fn an_update_is_eight_aligned_bytes(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let before = noise(64);
    let target = pair.b.share_bytes(&before);
    let mut sent = 5;
    for offset in [1, 4, 7, 9] {
        assert_error!(
            pair.ab.update_and_sync(&target.at_peer, offset, &mut sent, 6),
            Error::InvalidArgument(_)
        );
    }
    pair.ab.flush(PATIENCE).expect("flush");
    assert_eq!((sent, target.bytes()), (5, before.clone()), "an update that was refused changes nothing");

    let value = u64::MAX - 12;
    pair.ab.update_and_sync(&target.at_peer, 56, &mut sent, value).expect("the last 8 bytes");
    pair.ab.flush(PATIENCE).expect("flush");
    let mut expected = before;
    expected[56..].copy_from_slice(&value.to_ne_bytes());
    assert_eq!((sent, target.bytes()), (value, expected));
}

/// Raises a word as tokens are raised: its value before is known, and transports may send a part of the difference.
fn a_word_rises_past_32_bits(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    // Only tokens are raised in this way. The words below are in the device's memory, so tokens must be there.
    let place = pair.ba.token_place().expect("a place for tokens");
    if place.is_none_or(|(_, memory)| memory != TokenMemory::Device) {
        return;
    }
    for start in [0_u64, (1 << 32) - 4, (7 << 32) - 4] {
        let target = pair.b.share(64);
        target.buffer.write(8, &start.to_ne_bytes()).expect("filling the target");
        for value in start..start + 8 {
            pair.ab.raise(&target.at_peer, 8, value, value + 1).expect("an update");
            await_value(&target, 8, value + 1);
        }
        // These steps are larger than one, and then larger than half of a word holds.
        for (value, previous) in
            [(start + 8 + (1 << 31), start + 8), (start + (5 << 32), start + 8 + (1 << 31))]
        {
            pair.ab.raise(&target.at_peer, 8, previous, value).expect("an update");
            await_value(&target, 8, value);
        }
    }
}

/// The core checks only the offset. A transport that needs an aligned address returns an error, and the others store
/// 8 bytes.
fn an_update_of_an_unaligned_memory_does_no_harm(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let mut expected = noise(64);
    let target = pair.b.share_bytes(&expected);
    let ptr = target.buffer.ptr().add(3);
    // SAFETY: the range is inside the buffer, which outlives the registration.
    let memory = unsafe { pair.b.context.register_memory(ptr, 32, setup.transport()) }.expect("registering");
    let mut sent = 5;
    let result = pair.ab.update_and_sync(&travel(&memory), 8, &mut sent, u64::MAX - 77);
    pair.ab.flush(PATIENCE).expect("flush");
    match result {
        Ok(()) => {
            expected[11..19].copy_from_slice(&(u64::MAX - 77).to_ne_bytes());
            assert_eq!(sent, u64::MAX - 77);
        }
        Err(_) => assert_eq!(sent, 5),
    }
    assert_same(&target.bytes(), &expected, "an update at an odd address");
}

fn a_flush_can_time_out_and_be_repeated(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    pair.ab.flush(PATIENCE).expect("a flush of nothing");
    let source = pair.a.share(MIB);
    let target = pair.b.share(MIB);
    for _ in 0..5 {
        let data = noise(MIB as usize);
        source.buffer.write(0, &data).expect("filling the source");
        for _ in 0..4 {
            pair.ab.write(&target.at_peer, 0, &source.memory, 0, MIB).expect("write");
        }
        for impatience in [Duration::ZERO, Duration::from_micros(1)] {
            match pair.ab.flush(impatience) {
                Ok(()) | Err(Error::Timeout { .. }) => {}
                Err(other) => panic!("a flush in no time should be done or time out, not: {other}"),
            }
        }
        pair.ab.flush(PATIENCE).expect("the flush repeated");
        assert_same(&target.bytes(), &data, "after a flush that was repeated");
        pair.ab.flush(PATIENCE).expect("a flush of what is flushed");
    }
}

fn tickets_are_reached_in_order(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let mut queue = pair.ab.open_queue().expect("a queue");
    let (source, target) = (pair.a.share(65536), pair.b.share(65536));
    let route = queue.route(&target.at_peer, &source.memory).expect("a route");
    let (mut last_ticket, mut last_progress) = (0, queue.progress().expect("progress"));
    for _ in 0..30 {
        let data = noise(65536);
        source.buffer.write(0, &data).expect("filling the source");
        queue.write(route, 0, 0, 65536).expect("write");
        let ticket = queue.request_flush().expect("a ticket");
        assert!(ticket >= last_ticket, "ticket {ticket} was given after {last_ticket}");
        let reached = eventually(PATIENCE, || {
            let now = queue.progress().expect("progress");
            assert!(now >= last_progress, "progress went from {last_progress} back to {now}");
            last_progress = now;
            now >= ticket
        });
        assert!(reached, "ticket {ticket} is not reached, progress is at {last_progress}");
        assert_same(&target.bytes(), &data, "when the ticket is reached");
        last_ticket = ticket;
    }
}

fn nothing_is_written_out_of_bounds(setup: &dyn Setup) {
    const LEN: u64 = 1000;
    let pair = Pair::connect(setup);
    let before = noise(LEN as usize);
    let target = pair.b.share_bytes(&before);
    let source = pair.a.share(LEN);
    let beyond = [
        (0, LEN + 1),
        (1, LEN),
        (LEN - 1, 2),
        (LEN, 1),
        (LEN + 1, 0),
        (u64::MAX, 1),
        (1, u64::MAX),
        (u64::MAX, u64::MAX),
        (u64::MAX - 7, 8),
        (u64::MAX / 2 + 1, u64::MAX / 2 + 1),
    ];
    let longer = pair.a.share(2 * LEN);
    for (offset, size) in beyond {
        let dst = pair.ab.write(&target.at_peer, offset, &longer.memory, 0, size);
        assert_error!(dst, Error::OutOfBounds { .. });
        let src = pair.ab.write(&target.at_peer, 0, &source.memory, offset, size);
        assert_error!(src, Error::OutOfBounds { .. });
    }
    let mut sent = 3;
    for offset in [LEN - 7, LEN, LEN + 8, u64::MAX - 7, u64::MAX] {
        let update = pair.ab.update_and_sync(&target.at_peer, offset, &mut sent, 4);
        assert_error!(update, Error::OutOfBounds { .. });
    }
    pair.ab.flush(PATIENCE).expect("flush");
    assert_eq!(sent, 3);
    assert_same(&target.bytes(), &before, "after writes that were refused");
}
