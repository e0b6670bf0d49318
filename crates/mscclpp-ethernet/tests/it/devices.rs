//! Tests with a CPU at one end and a simulated device or a CPU at the other.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use crate::support::{self, Words, context, mix};
use mscclpp_conformance::{pair::received, semaphore_waits, semaphores::build};
use mscclpp_core::{
    Connection, Context, Device, Endpoint, EndpointConfig, Error, HostToDeviceSemaphore, HostToHostSemaphore,
    RegisteredMemory, Transport, TransportFlags,
};
use mscclpp_ethernet::Ethernet;
use mscclpp_gpu::{DevicePtr, Platform};
use mscclpp_test_support::{LIMIT, Lines};

/// A number of polls that takes longer than the test, but ends.
const LONG: i64 = 1 << 24;
const WORDS: usize = 150_000;

struct DeviceEnd {
    context: mscclpp_core::Context,
    endpoint: Endpoint,
}

fn semaphores(to: &Connection, back: &Connection) -> (HostToHostSemaphore, HostToDeviceSemaphore) {
    let (at_cpu, at_device) = build(to, back);
    (
        HostToHostSemaphore::new(&at_cpu).expect("the CPU's side"),
        HostToDeviceSemaphore::new(&at_device).expect("the device's side"),
    )
}

/// Data goes from the CPU to the device and back, followed by a signal each time.
#[test]
fn a_cpu_and_a_device_exchange_data_and_signals() {
    let cpu = support::end();
    let context = context(Ethernet::builder().staging(64 << 10, 3));
    let config = EndpointConfig::new(Transport::ETHERNET, Device::gpu(1));
    let device = DeviceEnd { endpoint: context.create_endpoint(config).expect("an endpoint"), context };
    let to = cpu.connect(&device.endpoint);
    let back = device.context.connect(&device.endpoint, &received(&cpu.endpoint)).expect("connecting");
    let (at_cpu, at_device) = semaphores(&to, &back);

    let buffer = device.context.gpu(1).expect("a device").allocate(8 * WORDS as u64).expect("memory");
    let on_device = device.context.register_buffer(&buffer, Transport::ETHERNET).expect("a registration");
    let there = RegisteredMemory::deserialize(&on_device.serialize().expect("serializing")).expect("reading");
    let (source, target) = (Words::new(&cpu, WORDS), Words::new(&cpu, WORDS));
    let here = target.at_peer();
    for round in 0..20u64 {
        (0..WORDS).for_each(|i| source.set(i, mix(round << 32 | i as u64)));
        to.write(&there, 0, &source.memory, 0, 8 * WORDS as u64).expect("a write");
        at_cpu.signal().expect("a signal");
        assert_eq!(semaphore_waits(at_device.semaphore(), LONG, 1), 1, "the device was not signalled");
        back.write(&here, 0, &on_device, 0, 8 * WORDS as u64).expect("a write back");
        at_device.signal().expect("a signal back");
        at_cpu.wait(-1).expect("a signal back");
        let wrong = (0..WORDS).find(|i| target.at(*i) != mix(round << 32 | *i as u64));
        assert_eq!(wrong, None, "round {round}");
        back.flush(LIMIT).expect("a flush");
        to.flush(LIMIT).expect("a flush");
    }
}

/// Each CPU has several host semaphores. Threads signal and wait through all of them.
#[test]
fn host_semaphores_of_one_semaphore_share_its_tokens() {
    const EACH: usize = 200;
    let pair = support::pair();
    let (a, b) = pair.semaphores();
    let several = |first: &HostToHostSemaphore| {
        let new = || HostToHostSemaphore::new(first.semaphore()).expect("another of them");
        [new(), new(), first.clone()]
    };
    let (at_a, at_b) = (several(&a), several(&b));
    for (from, to) in [(&at_a, &at_b), (&at_b, &at_a)] {
        std::thread::scope(|scope| {
            for object in from {
                scope.spawn(|| (0..EACH).for_each(|_| object.signal().expect("a signal")));
            }
            for object in to {
                scope.spawn(|| (0..EACH).for_each(|_| object.wait(LONG).expect("a signal of any of them")));
            }
        });
        for object in to {
            assert!(!object.poll().expect("nothing has failed"), "a signal was taken twice");
            assert!(matches!(object.wait(10), Err(Error::Timeout { .. })));
        }
        from[0].signal().expect("a signal");
        to[1].wait(LONG).expect("a wait that timed out has taken nothing");
    }
}

/// The threads share the status word in which a wait that gives up says so.
#[test]
fn a_poll_does_not_fail_by_the_time_out_of_another_thread() {
    let pair = support::pair();
    let (semaphore, _peer) = pair.semaphores();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) && semaphore.wait(1).is_err() {
                std::hint::spin_loop();
            }
        });
        let failure = (0..100_000).find_map(|_| semaphore.poll().err());
        done.store(true, Ordering::Relaxed);
        assert!(failure.is_none(), "{failure:?}");
    });
}

/// The memory is registered for no transport, and no peer can name it.
#[test]
fn host_memory_for_local_use_is_written_from() {
    static SOURCE: [AtomicU64; 100] = [const { AtomicU64::new(0) }; 100];
    let pair = support::pair();
    let target = Words::new(&pair.b, SOURCE.len());
    SOURCE.iter().zip(1..).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
    let ptr = DevicePtr::from_ptr(SOURCE.as_ptr());
    // SAFETY: static memory of atomics lives and may be shared.
    let local = unsafe { pair.a.context.register_memory(ptr, 800, TransportFlags::NONE) }.expect("a memory");
    pair.ab.write(&target.at_peer(), 0, &local, 0, 800).expect("a write");
    pair.ab.flush(LIMIT).expect("a flush");
    assert!((0..SOURCE.len()).all(|i| target.at(i) == i as u64 + 1));
    let bytes = local.serialize().expect("serializing");
    let there = RegisteredMemory::deserialize(&bytes).expect("reading");
    let refused = pair.ba.write(&there, 0, &target.memory, 0, 8);
    assert!(matches!(refused, Err(Error::NotRegistered { .. })), "{refused:?}");
}

#[test]
fn a_long_wait_for_a_signal_names_the_peer_and_the_transport() {
    let builder = Context::builder().provider(Ethernet::new()).log_waits_after(Duration::from_millis(1));
    let context = builder.platform(Platform::Sim).build();
    let end = || context.create_endpoint(EndpointConfig::new(Transport::ETHERNET, Device::CPU));
    let (a, b) = (end().expect("an endpoint"), end().expect("an endpoint"));
    let (ab, ba) = (context.connect(&a, &b).expect("a way"), context.connect(&b, &a).expect("a way back"));
    ab.set_label("rank 3");
    let (here, there) = mscclpp_conformance::hosts::semaphores(&ab, &ba);
    let log = Lines::then(move || there.signal().expect("a signal"));
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).finish();
    // The log line sends the signal; without it there would be none.
    tracing::subscriber::with_default(subscriber, || here.wait(LONG)).expect("the signal");
    let text = log.text();
    let line = "WARN mscclpp::wait: waiting for rank 3: a signal, over Ethernet (for";
    assert!(text.contains(line), "{text}");
}
