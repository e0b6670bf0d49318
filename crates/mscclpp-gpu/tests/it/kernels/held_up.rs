//! Streams that a kernel holds up, and waits for them.

use std::time::Duration;

use mscclpp_gpu::{Error, Gpu, KernelArgs, LaunchConfig, Platform, Stream};

use super::{SECONDS, failure, launch, module};
use crate::{kept::Gate, words};

/// Launches a kernel that holds `stream` up until the gate is opened.
fn close_gate(gpu: &Gpu, stream: &Stream) -> Gate {
    let gate = Gate::new(gpu);
    let args = KernelArgs::new().with(gate.0.ptr()).with(1u64);
    launch(&module(gpu).kernel("gate").unwrap(), stream, LaunchConfig::linear(1, 1), &args).unwrap();
    gate
}

#[test]
fn a_kernel_that_fails_fails_its_stream_and_what_waits_for_it() {
    let gpu = Platform::Sim.gpu(2).unwrap();
    let (stream, waiting, bystander) = (gpu.stream().unwrap(), gpu.stream().unwrap(), gpu.stream().unwrap());
    let event = gpu.event(true).unwrap();
    let word = gpu.allocate(8).unwrap();
    let kernel = module(&gpu).kernel("fails").unwrap();
    let gate = close_gate(&gpu, &stream);
    launch(&kernel, &stream, LaunchConfig::linear(4, 1), &KernelArgs::new().with(2u32)).unwrap();
    // SAFETY: `word` outlives the work.
    unsafe { stream.write_u64(word.ptr(), 1).unwrap() };
    stream.record(&event).unwrap();
    waiting.wait_event(&event).unwrap();
    gate.open();

    let failed = |result: Result<(), Error>| {
        let message = failure(result, "fails");
        assert!(message.starts_with("block [2, 0, 0], thread [0, 0, 0]: "), "{message}");
        assert!(message.contains("blockIdx.x != block"), "{message}");
    };
    failed(stream.synchronize_timeout(SECONDS));
    failed(stream.synchronize());
    failed(stream.query().map(drop));
    failed(launch(&kernel, &stream, LaunchConfig::linear(1, 1), &KernelArgs::new().with(9u32)));
    failed(stream.begin_capture());
    failed(event.query().map(drop));
    failed(waiting.synchronize_timeout(SECONDS));
    failed(gpu.synchronize());
    assert_eq!(words(&word), [0], "work behind the failure was done");

    launch(&kernel, &bystander, LaunchConfig::linear(4, 1), &KernelArgs::new().with(9u32)).unwrap();
    bystander.synchronize().unwrap();
    drop((stream, waiting));
    gpu.synchronize().unwrap();
}

#[test]
fn a_wait_that_timed_out_can_be_repeated() {
    let gpu = Platform::Sim.gpu(0).unwrap();
    let stream = gpu.stream().unwrap();
    let event = gpu.event(true).unwrap();
    let gate = close_gate(&gpu, &stream);
    stream.record(&event).unwrap();
    let short = Duration::from_millis(20);
    for _ in 0..2 {
        let Err(Error::Timeout { after, .. }) = stream.synchronize_timeout(short) else {
            panic!("the gate is shut")
        };
        assert_eq!(after, short);
        assert!(matches!(event.synchronize_timeout(short), Err(Error::Timeout { .. })));
    }
    assert!(!stream.query().unwrap());
    assert!(!event.query().unwrap());
    assert!(matches!(event.elapsed_ms(&event), Err(Error::InvalidArgument(_))));
    gate.open();
    stream.synchronize_timeout(SECONDS).unwrap();
    assert!(event.query().unwrap());
}

#[test]
fn an_event_holds_other_streams_up_until_it_is_reached() {
    let gpu = Platform::Sim.gpu(0).unwrap();
    let (held, waiting) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let event = gpu.event(false).unwrap();
    let word = gpu.allocate(8).unwrap();
    let gate = close_gate(&gpu, &held);
    held.record(&event).unwrap();
    waiting.wait_event(&event).unwrap();
    // The event counts as it was recorded when it was waited for, not as it is recorded later.
    waiting.record(&event).unwrap();
    // SAFETY: `word` outlives the work.
    unsafe { waiting.write_u64(word.ptr(), 1).unwrap() };
    assert!(matches!(waiting.synchronize_timeout(Duration::from_millis(50)), Err(Error::Timeout { .. })));
    assert_eq!(words(&word), [0]);
    gate.open();
    waiting.synchronize_timeout(SECONDS).unwrap();
    assert_eq!(words(&word), [1]);
}

#[test]
fn a_dropped_stream_does_its_work_without_holding_the_drop_up() {
    let gpu = Platform::Sim.gpu(0).unwrap();
    let word = gpu.allocate(8).unwrap();
    let stream = gpu.stream().unwrap();
    let event = gpu.event(false).unwrap();
    let gate = close_gate(&gpu, &stream);
    // SAFETY: `word` outlives the work.
    unsafe { stream.write_u64(word.ptr(), 7).unwrap() };
    stream.record(&event).unwrap();
    // If the drop waited for the work, it would wait for the gate for ever.
    drop(stream);
    assert_eq!(words(&word), [0]);
    gate.open();
    event.synchronize_timeout(SECONDS).unwrap();
    assert_eq!(words(&word), [7]);
}
