//! Semaphores of simulated devices under many threads: nothing is lost, nothing is taken twice, and a signal carries
//! the data written before it. With additions on the peer's memory and, where there are none, with the lock.

mod courier;

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    thread,
};

use courier::{Courier, Reach};
use mscclpp_core::{
    BaseMemoryChannel, BaseMemoryChannelHandle, Connection, Context, Device, EndpointConfig, Semaphore,
    SemaphoreStub,
};
use mscclpp_gpu::{DeviceBuffer, Gpu, Platform};

/// Two simulated devices with a channel between them.
struct Pair {
    a: BaseMemoryChannel,
    b: BaseMemoryChannel,
    gpu_b: Gpu,
}

impl Pair {
    fn connect(reach: Reach) -> Self {
        let context = Context::builder().provider(Courier::new(reach)).platform(Platform::Host).build();
        let endpoint =
            |gpu| context.create_endpoint(EndpointConfig::new(Courier::TRANSPORT, Device::gpu(gpu)));
        let (a, b) = (endpoint(0).unwrap(), endpoint(1).unwrap());
        let (ab, ba) = (context.connect(&a, &b).unwrap(), context.connect(&b, &a).unwrap());
        let stub = |connection: &Connection| SemaphoreStub::new(connection).unwrap();
        let (stub_a, stub_b) = (stub(&ab), stub(&ba));
        let channel =
            |local, remote| BaseMemoryChannel::new(&Semaphore::new(local, remote).unwrap()).unwrap();
        let pair = Self {
            a: channel(&stub_a, &stub_b),
            b: channel(&stub_b, &stub_a),
            gpu_b: context.gpu(1).unwrap(),
        };
        assert_eq!(pair.a.device_handle().outbound_lock.is_null(), reach == Reach::Atomics);
        pair
    }
}

/// A handle in the hands of one of the threads below, which all end before the channels do.
#[derive(Clone, Copy)]
struct Side(BaseMemoryChannelHandle);

impl Side {
    fn of(channel: &BaseMemoryChannel) -> Self {
        Self(channel.device_handle())
    }

    fn signal(self) {
        // SAFETY: the semaphore is one of the Host platform and outlives the test's threads.
        unsafe { self.0.signal() }
    }

    fn relaxed_signal(self) {
        // SAFETY: as above.
        unsafe { self.0.relaxed_signal() }
    }

    fn poll(self) -> bool {
        // SAFETY: as above.
        unsafe { self.0.poll() }
    }

    fn wait(self, max_spins: i64) -> bool {
        // SAFETY: as above.
        unsafe { self.0.wait(max_spins) }
    }
}

/// Signallers of both kinds and waiters of all kinds, for as many signals as are waited for.
fn counts_add_up(reach: Reach) {
    const SIGNALLERS: usize = 6;
    const EACH: usize = 4000;
    // Unbounded waits come to no more than the signals, or the last ones would wait for ever.
    const UNBOUNDED: usize = 3;
    let pair = Pair::connect(reach);
    let (a, b) = (Side::of(&pair.a), Side::of(&pair.b));
    let taken_by_others = AtomicUsize::new(0);
    thread::scope(|scope| {
        for i in 0..SIGNALLERS {
            scope.spawn(move || {
                for round in 0..EACH {
                    if (round + i) % 3 == 0 { a.relaxed_signal() } else { a.signal() }
                }
            });
        }
        for _ in 0..UNBOUNDED {
            scope.spawn(move || assert!((0..EACH).all(|_| b.wait(-1))));
        }
        let left = (SIGNALLERS - UNBOUNDED) * EACH;
        for polls in [0i64, 0, 1, 3, 50] {
            let taken = &taken_by_others;
            scope.spawn(move || {
                while taken.load(Ordering::Relaxed) < left {
                    // Claims a place first: were more taken than are left, an unbounded wait would starve.
                    if taken.fetch_add(1, Ordering::Relaxed) >= left {
                        taken.fetch_sub(1, Ordering::Relaxed);
                        return;
                    }
                    let got = if polls == 0 { b.poll() } else { b.wait(polls) };
                    if !got {
                        taken.fetch_sub(1, Ordering::Relaxed);
                        thread::yield_now();
                    }
                }
            });
        }
    });
    while b.poll() {
        taken_by_others.fetch_add(1, Ordering::Relaxed);
    }
    assert_eq!(taken_by_others.load(Ordering::Relaxed), (SIGNALLERS - UNBOUNDED) * EACH);
    // SAFETY: all threads are done; the words are live and aligned.
    let word = |p: *mut u64| unsafe { AtomicU64::from_ptr(p) }.load(Ordering::Relaxed);
    assert_eq!(word(b.0.inbound_token), (SIGNALLERS * EACH) as u64);
    assert_eq!(word(b.0.expected_inbound_token), (SIGNALLERS * EACH) as u64);
    assert!(!a.poll(), "nobody has signalled the other way");
}

/// Message passing, over and over: one side writes the peer's memory and signals, the other waits and looks at once.
fn data_arrives_before_its_signal(reach: Reach) {
    const ROUNDS: u64 = 100_000;
    const WORDS: usize = 8;
    let pair = Pair::connect(reach);
    let (a, b) = (Side::of(&pair.a), Side::of(&pair.b));
    let buffer = pair.gpu_b.allocate(4096).unwrap();
    let words = words::<WORDS>(&buffer);
    let failed = thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                words.iter().for_each(|word| word.store(round, Ordering::Relaxed));
                a.signal();
                assert!(a.wait(-1));
            }
        });
        let reader = scope.spawn(|| {
            let mut failed = 0;
            for round in 1..=ROUNDS {
                assert!(b.wait(-1));
                failed += u64::from(words.iter().rev().any(|word| word.load(Ordering::Relaxed) != round));
                b.signal();
            }
            failed
        });
        reader.join().unwrap()
    });
    println!("{reach:?}: data behind its signal in {failed} of {ROUNDS} rounds");
    assert_eq!(failed, 0);
}

/// Words of the buffer on lines of their own.
fn words<const N: usize>(buffer: &DeviceBuffer) -> [&AtomicU64; N] {
    assert!(buffer.len() >= 64 * N as u64);
    // SAFETY: inside a buffer of the Host platform, which the references borrow; all access to them is atomic.
    std::array::from_fn(|i| unsafe { AtomicU64::from_ptr(buffer.ptr().add(64 * i as u64).as_mut_ptr()) })
}

#[test]
fn counts_add_up_with_atomics() {
    counts_add_up(Reach::Atomics);
}

#[test]
fn counts_add_up_with_the_lock() {
    counts_add_up(Reach::Stores);
}

#[test]
fn data_arrives_before_its_signal_with_atomics() {
    data_arrives_before_its_signal(Reach::Atomics);
}

#[test]
fn data_arrives_before_its_signal_with_the_lock() {
    data_arrives_before_its_signal(Reach::Stores);
}
