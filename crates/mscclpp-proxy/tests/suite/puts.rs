//! Puts: every byte of the data arrives, and no other byte.

use std::thread;

use mscclpp_gpu::{KernelArgs, LaunchConfig};
use mscclpp_proxy::SemaphoreId;
use mscclpp_test_support::LIMIT;

use super::{
    Case, Pair, Setup,
    kernels::Thread,
    pair::{THEIRS, fill, mismatches, mix},
};

pub(super) const CASES: &[Case] = &[
    ("puts_are_byte_exact", puts_are_byte_exact),
    ("sources_on_another_device_are_left_to_the_proxy", sources_on_another_device_are_left_to_the_proxy),
    ("flushed_sources_may_be_written_again", flushed_sources_may_be_written_again),
    ("works_in_captures_and_replays", works_in_captures_and_replays),
    ("works_on_one_core", works_on_one_core),
];

/// Puts all lengths around the limits of direct puts, at all alignments, in each of the three calls.
fn puts_are_byte_exact(setup: &Setup) {
    const LEN: u64 = 16 << 10;
    let pair = Pair::running(setup, LEN);
    let [a, b] = &pair.sides;
    let (from, to) = (a.thread(), b.thread());
    let noise: Vec<u8> = (0..LEN).map(|i| mix(7, i) as u8).collect();
    a.buffer.write(0, &noise).unwrap();
    let mut expected = b.bytes();
    let sizes = [0, 1, 7, 8, 9, 64, 100, 1000, 2056, 4088, 4096, 4104, 8191, 8192];
    for (n, size) in sizes.into_iter().enumerate() {
        for (dst, src) in [(0, 0), (LEN + 8, 16), (LEN + 3, 3), (LEN + 4, 1)] {
            let done = match (n + dst as usize + src as usize) % 3 {
                0 => from.put(dst, src, size) && from.signal() && from.flush(),
                1 => from.put_with_signal(dst, src, size) && from.flush(),
                _ => from.put_with_signal_and_flush(dst, src, size),
            };
            assert!(done && to.wait());
            expected[dst as usize..][..size as usize]
                .copy_from_slice(&noise[src as usize..][..size as usize]);
            assert!(b.bytes() == expected, "{size} bytes from {src} to {dst}");
        }
    }
    assert!(!to.poll(), "one signal each");
    a.service.stop_proxy().unwrap();
}

/// Checks that the proxy carries out puts from a source on another device, which a kernel's thread need not reach.
fn sources_on_another_device_are_left_to_the_proxy(setup: &Setup) {
    const LEN: u64 = 64;
    let pair = Pair::running(setup, LEN);
    let [a, b] = &pair.sides;
    let far = a.context.gpu(1).unwrap().allocate(LEN).unwrap();
    let noise: Vec<u8> = (0..LEN).map(|i| mix(11, i) as u8).collect();
    far.write(0, &noise).unwrap();
    let far = a.context.register_buffer(&far, setup.transport).unwrap();
    let far = a.service.add_memory(&far).unwrap();
    let channel = a.service.port_channel(SemaphoreId::from_raw(0), THEIRS, far).unwrap();
    let (from, to) = (Thread::of(&a.kernels, &channel), b.thread());
    assert!(from.put(0, 0, LEN) && from.put(0, 0, 0) && from.signal() && to.wait());
    assert_eq!(b.bytes()[..LEN as usize], noise);
    assert!(from.put_with_signal(LEN, 0, LEN) && from.flush() && to.wait());
    assert_eq!(b.bytes()[LEN as usize..], noise);
    assert_eq!(a.service.stats().total.direct_puts, 0);
    // The same puts from the service's own device go directly if that is possible.
    assert!(from.flush() && a.thread().put_with_signal(0, 0, LEN) && to.wait());
    assert_eq!(a.service.stats().total.direct_puts, u64::from(setup.reach == [true, true]));
}

/// Runs many threads on many channels at once, with large and small puts: right after the flush each overwrites its
/// source.
fn flushed_sources_may_be_written_again(setup: &Setup) {
    const THREADS: usize = 8;
    const WORDS: usize = 4096;
    let pair = Pair::new(setup, (8 * THREADS * WORDS) as u64, 3, |builder| builder.fifo_size(16));
    let [a, b] = &pair.sides;
    a.service.start_proxy(false).unwrap();
    for round in 0..4 {
        thread::scope(|scope| {
            for n in 0..THREADS {
                scope.spawn(move || {
                    let kernel = a.thread_on((n % 3) as u32);
                    let first = n * WORDS;
                    // A large put comes last: if the flush returned too early, the end of its source would be
                    // overwritten.
                    for words in [16, 200, WORDS] {
                        let source = &a.words()[first..first + words];
                        fill(source, |i| mix(round, (first as u64) << 20 | i));
                        assert!(kernel.put(8 * first as u64, 8 * first as u64, 8 * words as u64));
                        assert!(kernel.flush());
                        fill(source, |_| 0);
                    }
                });
            }
        });
        for n in 0..THREADS {
            let first = n * WORDS;
            let wrong =
                mismatches(&b.words()[first..first + WORDS], |i| mix(round, (first as u64) << 20 | i));
            assert_eq!(wrong, 0, "thread {n}: the source was still needed");
        }
    }
    a.service.stop_proxy().unwrap();
}

const ROUND: u64 = 512;
const BLOCKS: u64 = 4;

/// Returns the bytes that a block of `port_exchange` puts: many or few.
fn bytes_of(block: u64) -> u64 {
    if block == 0 { ROUND } else { 16 }
}

/// Checks that proxies work while a stream captures, and afterwards serve replays of the captured kernels.
fn works_in_captures_and_replays(setup: &Setup) {
    let pair = Pair::new(setup, BLOCKS * ROUND, 1, |builder| builder.direct_put_max(64));
    let channels = pair.sides.each_ref().map(|side| {
        side.service.start_proxy(true).unwrap();
        side.channel(0)
    });
    let runs = [0, 1].map(|n| {
        let side = &pair.sides[n];
        let kernel = side.kernels.kernel("port_exchange");
        let stream = side.gpu.stream().unwrap();
        stream.begin_capture().unwrap();
        let args = KernelArgs::new().with(channels[n].device_handle()).with(ROUND);
        // SAFETY: these are the kernel's arguments, and the channel lives until the streams are synchronised.
        unsafe { kernel.launch(&stream, LaunchConfig::linear(BLOCKS as u32, 1), &args).unwrap() };
        (stream, side)
    });
    // A channel is used while both streams capture.
    let [from, to] = pair.sides.each_ref().map(|side| side.thread());
    assert!(from.put_with_signal_and_flush(0, 0, ROUND) && to.wait());
    let graphs = runs.map(|(stream, side)| (stream.end_capture().unwrap(), stream, side));
    let words = (BLOCKS * ROUND / 8) as usize;
    for round in 0..5 {
        for (n, (_, _, side)) in (0..).zip(&graphs) {
            fill(&side.words()[..words], |i| mix(2 * round + n, i));
        }
        for (graph, stream, _) in &graphs {
            // SAFETY: everything that was captured is alive.
            unsafe { graph.launch(stream).unwrap() };
        }
        for (_, stream, side) in &graphs {
            stream.synchronize_timeout(LIMIT).unwrap();
            side.service.health().unwrap();
        }
        for (n, (_, _, side)) in (0..).zip(&graphs) {
            for block in 0..BLOCKS {
                let first = BLOCKS * ROUND / 8 + block * ROUND / 8;
                let put = &side.words()[first as usize..][..(bytes_of(block) / 8) as usize];
                let value = |i| mix(2 * round + 1 - n, block * ROUND / 8 + i);
                assert_eq!(mismatches(put, value), 0, "block {block} in replay {round}");
            }
        }
    }
    pair.sides.iter().for_each(|side| side.service.stop_proxy().unwrap());
}

/// Runs everything of both sides on one core, so that no wait may spin without yielding.
fn works_on_one_core(setup: &Setup) {
    thread::scope(|scope| {
        let bound = scope.spawn(|| {
            use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
            let allowed = sched_getaffinity(None).unwrap();
            let first = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).unwrap();
            let mut one = CpuSet::new();
            one.set(first);
            // This binds the thread and those that it starts: the proxies and the streams.
            sched_setaffinity(None, &one).unwrap();
            puts_are_byte_exact(setup);
        });
        bound.join().unwrap();
    });
}
