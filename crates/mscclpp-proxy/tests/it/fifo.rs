//! The FIFO in mapped memory, with hundreds of threads.

use std::{thread, time::Instant};

use crate::kernels::Kernels;
use mscclpp_gpu::{KernelArgs, LaunchConfig, Platform};
use mscclpp_proxy::Fifo;
use mscclpp_test_support::LIMIT;

/// Bits of a trigger's words for the number of a thread, above its sequence number.
const SEQUENCE: u32 = 40;

/// Checks that each of `producers * each` triggers comes once, whole, and those of a producer in their order.
fn storm(size: u64, producers: u64, each: u64) {
    let gpu = Platform::Sim.gpu(0).unwrap();
    let mut fifo = Fifo::new(&gpu, size).unwrap();
    let kernel = Kernels::load(&gpu).kernel("fifo_push_numbered");
    let stream = gpu.stream().unwrap();
    let args = KernelArgs::new().with(fifo.device_handle()).with(each).with(SEQUENCE);
    let config = LaunchConfig::linear(producers as u32, 1);
    // SAFETY: these are the kernel's arguments, and the FIFO lives until the stream is synchronised.
    unsafe { kernel.launch(&stream, config, &args).unwrap() };

    let mut next = vec![0; producers as usize];
    let mut last = Instant::now();
    for taken in 0..producers * each {
        let trigger = loop {
            match fifo.poll() {
                Some(trigger) => break trigger,
                None if last.elapsed() > LIMIT => panic!("nothing after {taken} triggers, size {size}"),
                None => thread::yield_now(),
            }
        };
        assert_eq!(fifo.tail().raw(), taken);
        assert_eq!(trigger.snd, !trigger.fst >> 1, "a torn trigger, size {size}");
        let (producer, n) = ((trigger.fst >> SEQUENCE) as usize, trigger.fst & ((1 << SEQUENCE) - 1));
        assert_eq!(n, next[producer], "lost, doubled or out of order: producer {producer}, size {size}");
        next[producer] += 1;
        fifo.pop();
        last = Instant::now();
    }
    stream.synchronize_timeout(LIMIT).unwrap();
    assert_eq!(fifo.poll(), None);
    fifo.check().unwrap();
}

/// Runs kernels of up to 512 threads, and laps that many of them share. If the FIFO is small there are fewer threads,
/// as threads that wait for room only take turns.
#[test]
fn nothing_is_lost_doubled_or_torn_among_many_producers() {
    for (size, producers, each) in
        [(2, 8, 200), (16, 32, 100), (512, 512, 20), (1024, 512, 20), (4096, 512, 40)]
    {
        storm(size, producers, each);
    }
}

#[test]
fn a_single_producer_over_thousands_of_laps() {
    for size in [2, 4, 64] {
        storm(size, 1, 2_000);
    }
}
