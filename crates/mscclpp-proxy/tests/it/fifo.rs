//! The FIFO in mapped memory, with single calls and with hundreds of threads.

use std::{thread, time::Instant};

use crate::{kernels::Kernels, proxy::kernels};
use mscclpp_gpu::{KernelArgs, LaunchConfig, Platform};
use mscclpp_proxy::{Error, Fifo, FifoHandle, FifoPosition, ProxyTrigger, Result};
use mscclpp_test_support::LIMIT;

fn fifo(size: u64) -> Result<Fifo> {
    Fifo::new(&Platform::Sim.gpu(0)?, size)
}

fn numbered(n: u64) -> ProxyTrigger {
    ProxyTrigger { fst: n, snd: !n >> 1 }
}

fn push(fifo: &Fifo, n: u64, spins: i64) -> FifoPosition {
    kernels().push(fifo.device_handle(), numbered(n), spins)
}

fn is_taken(fifo: &Fifo, position: u64) -> bool {
    kernels().is_taken(fifo.device_handle(), FifoPosition::from_raw(position))
}

fn sync(fifo: &Fifo, position: u64, spins: i64) -> bool {
    kernels().sync(fifo.device_handle(), FifoPosition::from_raw(position), spins)
}

#[test]
fn sizes_are_powers_of_two_within_limits() {
    for size in [0, 1, 3, 511, 8192, u64::MAX] {
        assert!(fifo(size).unwrap_err().to_string().contains(&size.to_string()));
    }
    for size in [2, 512, 4096] {
        assert_eq!(fifo(size).unwrap().size(), size);
    }
}

#[test]
fn lap_after_lap_in_order() {
    let mut fifo = fifo(4).unwrap();
    for n in (0..40).step_by(2) {
        assert_eq!([push(&fifo, n, -1), push(&fifo, n + 1, -1)].map(FifoPosition::raw), [n, n + 1]);
        assert!(!is_taken(&fifo, n));
        assert!(!sync(&fifo, n, 5), "a sync that runs out of polls");
        for k in [n, n + 1] {
            assert_eq!((fifo.tail().raw(), fifo.poll()), (k, Some(numbered(k))));
            fifo.pop();
            assert!(is_taken(&fifo, k) && sync(&fifo, k, 0));
        }
        assert_eq!(fifo.poll(), None);
    }
}

#[test]
fn a_push_that_gives_up_poisons() {
    let mut fifo = fifo(2).unwrap();
    assert_eq!([0, 1].map(|n| push(&fifo, n, 0).raw()), [0, 1]);
    assert_eq!(push(&fifo, 2, 10), FifoHandle::FAILED);
    // Triggers before the hole still count.
    for n in [0, 1] {
        fifo.check().unwrap();
        assert_eq!(fifo.poll(), Some(numbered(n)));
        fifo.pop();
    }
    assert!(matches!(fifo.check(), Err(Error::Poisoned { position }) if position.raw() == 2));
    assert!(!fifo.is_pushed_beyond());
    // A slot is free, but the proxy cannot get to it.
    assert_eq!(push(&fifo, 3, -1).raw(), 3);
    assert!(fifo.is_pushed_beyond());
    assert_eq!(push(&fifo, 4, -1), FifoHandle::FAILED);
}

#[test]
fn an_abort_ends_waits() {
    let fifo = fifo(2).unwrap();
    fifo.abort();
    assert_eq!(push(&fifo, 0, -1).raw(), 0);
    assert!(!sync(&fifo, 0, -1));
    assert_eq!((push(&fifo, 1, -1).raw(), push(&fifo, 2, -1)), (1, FifoHandle::FAILED));
}

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
