//! The numbers of threads, descriptors and mappings, and the device memory, do not grow. This test is alone in its process,
//! because it counts them. Other processes may use the device: they do not take memory during each of the measurements.

mod device;

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use mscclpp_gpu::{ExportHandle, Gpu, KernelArgs, KernelSource, LaunchConfig, Module, Platform};
use mscclpp_test_support::held;

const SOURCE: KernelSource<'_> = KernelSource::new(
    "nothing.cu",
    "__device__ char variable[64]; extern \"C\" __global__ void nothing() {}",
);

/// The longest time that streams dropped at work may take to end.
const GOING: Duration = Duration::from_secs(5);
/// The number of measurements after which device memory counts as leaked.
const MEASUREMENTS: usize = 8;

fn mappings() -> usize {
    fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

fn round(gpu: &Gpu, number: usize) {
    let (buffer, pinned) = (gpu.allocate(10_000).unwrap(), gpu.allocate_pinned(100).unwrap());
    let (stream, event) = (gpu.stream().unwrap(), gpu.event(true).unwrap());
    stream.begin_capture().unwrap();
    // SAFETY: the buffers outlive the work: the stream is synchronised before they go, or only its own queue is left.
    unsafe { stream.copy(buffer.ptr(), pinned.ptr(), 100).unwrap() };
    let graph = stream.end_capture().unwrap();
    // SAFETY: the same as above.
    unsafe { graph.launch(&stream).unwrap() };
    stream.record(&event).unwrap();
    stream.synchronize().unwrap();
    // SAFETY: `buffer` is live.
    let export = unsafe { gpu.export(buffer.ptr(), buffer.len()).unwrap() };
    if gpu.platform() == Platform::Sim {
        let imported = gpu.import(&export.handle, export.allocation_size).unwrap();
        assert_ne!(imported.ptr(), buffer.ptr());
        let rejected = gpu.import(&export.handle, export.allocation_size + 1);
        assert!(rejected.is_err());
        let ExportHandle::FileDescriptor(_) = export.handle else { panic!("{export:?}") };

        let module = Module::load(gpu, &SOURCE);
        let kernel = module.unwrap().kernel("nothing").unwrap();
        // SAFETY: it takes no arguments.
        unsafe { kernel.launch(&stream, LaunchConfig::linear(3, 1), &KernelArgs::new()).unwrap() };
        if number.is_multiple_of(2) {
            stream.synchronize().unwrap();
        }
    }
}

/// Returns how much free memory of the device is gone after a thousand rounds. Other processes may have taken it.
fn taken(gpu: &Gpu) -> u64 {
    let free = || gpu.memory_info().unwrap().free;
    let before = free();
    (0..1000).for_each(|number| round(gpu, number));
    let start = Instant::now();
    // Streams dropped at work end by themselves.
    while free() < before && start.elapsed() < GOING {
        thread::sleep(Duration::from_millis(5));
    }
    before.saturating_sub(free())
}

/// Waits until the process holds no more than `before`: a thread that has ended is listed a moment longer, and streams
/// dropped at work end by themselves.
fn assert_given_back(before: [usize; 3]) {
    let start = Instant::now();
    loop {
        let now = held();
        // Less is no leak: something may have been about to end at that time.
        if now.iter().zip(before).all(|(now, before)| *now <= before) {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{before:?} has become {now:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_thousand_rounds_leave_nothing_behind() {
    let gpu = device::gpu();
    let before = held();
    for number in 0..10 {
        round(&gpu, number);
    }
    let before = if gpu.platform() == Platform::Sim {
        assert_given_back(before);
        before
    } else {
        // A driver starts threads and opens descriptors of its own when first used.
        held()
    };
    let mapped = mappings();
    // A leak takes memory in each measurement.
    let all: Vec<u64> = (0..MEASUREMENTS).map(|_| taken(&gpu)).take_while(|bytes| *bytes > 0).collect();
    assert!(all.len() < MEASUREMENTS, "each thousand rounds took device memory: {all:?}");
    assert_given_back(before);
    // The number may differ a little: the C library keeps some stacks and arenas of ended threads.
    assert!(mappings() < mapped + 50, "{mapped} mappings became {}", mappings());
}
