//! Threads, descriptors, mappings and device memory do not grow. This test is alone in its process, because it counts
//! them.

mod device;

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use mscclpp_gpu::{ExportHandle, Gpu, KernelArgs, KernelSource, LaunchConfig, Module, Platform};

const SOURCE: KernelSource<'_> = KernelSource::new(
    "nothing.cu",
    "__device__ char variable[64]; extern \"C\" __global__ void nothing() {}",
);

/// What a process can leak.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Held {
    threads: usize,
    descriptors: usize,
    /// Of device memory and modules of the Host platform.
    shared_mappings: usize,
    device_memory: u64,
}

impl Held {
    fn now(gpu: &Gpu) -> Self {
        let entries = |path| fs::read_dir(path).unwrap().count();
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        Self {
            threads: entries("/proc/self/task"),
            descriptors: entries("/proc/self/fd"),
            shared_mappings: maps.lines().filter(|line| line.contains("memfd:mscclpp-")).count(),
            device_memory: gpu.memory_info().unwrap().free,
        }
    }
}

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
    // SAFETY: as above.
    unsafe { graph.launch(&stream).unwrap() };
    stream.record(&event).unwrap();
    stream.synchronize().unwrap();
    // SAFETY: `buffer` is live.
    let export = unsafe { gpu.export(buffer.ptr(), buffer.len()).unwrap() };
    if gpu.platform() == Platform::Host {
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

/// Waits until it is `before` again: a thread that has ended is listed a moment longer, and streams dropped at work
/// end by themselves.
fn settled(gpu: &Gpu, before: Held) -> Held {
    let start = Instant::now();
    loop {
        let now = Held::now(gpu);
        if now == before || start.elapsed() > Duration::from_secs(5) {
            return now;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_thousand_rounds_leave_nothing_behind() {
    let gpu = device::gpu();
    let before = Held::now(&gpu);
    for number in 0..10 {
        round(&gpu, number);
    }
    let before = if gpu.platform() == Platform::Host {
        assert_eq!(settled(&gpu, before), before, "after the first rounds");
        before
    } else {
        // A driver starts threads and opens descriptors of its own when first used.
        Held::now(&gpu)
    };
    let mapped = mappings();
    for number in 0..1000 {
        round(&gpu, number);
    }
    assert_eq!(settled(&gpu, before), before);
    // Not exactly: the C library keeps some stacks and arenas of ended threads.
    assert!(mappings() < mapped + 50, "{mapped} mappings became {}", mappings());
}
