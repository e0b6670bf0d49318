//! Simulated devices know memory to the byte: every access past its end is noticed.

use std::time::Duration;

use mscclpp_gpu::{
    DeviceBuffer, DevicePtr, Error, Gpu, KernelArgs, KernelSource, LaunchConfig, Module, OutOfBounds,
    Platform,
};

const SECONDS: Duration = Duration::from_secs(20);

const SOURCE: KernelSource<'_> = KernelSource::new("overruns.cu", include_str!("overruns.cu"));

/// The number of ways of `access` in the source.
const WAYS: u32 = 12;

/// Runs a kernel by itself, and returns the message of a failure.
fn run(gpu: &Gpu, kernel: &str, shared_bytes: u32, args: &KernelArgs) -> Result<(), String> {
    let (module, stream) = (Module::load(gpu, &SOURCE).unwrap(), gpu.stream().unwrap());
    let config = LaunchConfig { shared_bytes, ..LaunchConfig::linear(1, 1) };
    // SAFETY: each kernel gets its arguments; the memory outlives the work, which is waited for. Memory that must not be
    // accessed belongs to nobody.
    unsafe { module.kernel(kernel).unwrap().launch(&stream, config, args).unwrap() };
    match stream.synchronize_timeout(SECONDS) {
        Ok(()) => Ok(()),
        Err(Error::KernelFailed { message, .. }) => Err(message),
        Err(other) => panic!("{other}"),
    }
}

/// Returns how many bytes the way accesses at `at`, and whether it was allowed to.
fn access(gpu: &Gpu, at: DevicePtr, way: u32) -> (u32, Result<(), String>) {
    let bytes = gpu.allocate_pinned_words::<std::sync::atomic::AtomicU32>(4).unwrap();
    let result = run(gpu, "access", 0, &KernelArgs::new().with(at).with(way).with(bytes.ptr()));
    (bytes.word(0).unwrap().load(std::sync::atomic::Ordering::Relaxed), result)
}

/// Tests every way of access inside of `size` bytes at `memory`, up to the last, and past them.
fn all_ways(gpu: &Gpu, memory: DevicePtr, size: u64) {
    for way in 0..WAYS {
        let (bytes, result) = access(gpu, memory, way);
        assert_eq!(result, Ok(()), "way {way}");
        let bytes = u64::from(bytes);
        // At multiples of 16, and of the largest power of two below that the access has.
        let step = bytes.min(16);
        let last = (size - bytes) / step * step;
        assert_eq!(access(gpu, memory.add(last), way).1, Ok(()), "way {way}, the last place");
        for at in [last + step, 4096, 4096 + 2 * step, 65536] {
            let message = access(gpu, memory.add(at), way).1.expect_err("it was allowed");
            assert!(
                message.contains(&format!("{size} bytes")) && message.contains("offset "),
                "way {way} at {at}: {message}"
            );
        }
    }
}

#[test]
fn kernels_are_kept_within_buffers_to_the_byte() {
    let gpu = Platform::Sim.gpu(0).unwrap();
    // An overrun would hit one of the neighbours.
    let buffers: Vec<DeviceBuffer> = (0..3).map(|_| gpu.allocate(100).unwrap()).collect();
    all_ways(&gpu, buffers[1].ptr(), 100);
    let mut neighbour = [1; 100];
    for buffer in [&buffers[0], &buffers[2]] {
        buffer.read(0, &mut neighbour).unwrap();
        assert_eq!(neighbour, [0; 100]);
    }
    let whole_pages = gpu.allocate(8192).unwrap();
    let message = access(&gpu, whole_pages.ptr().add(8192), 0).1.unwrap_err();
    assert!(message.contains("offset 8192 of the 8192 bytes"), "{message}");
}

#[test]
fn kernels_are_kept_within_pinned_and_imported_memory_to_the_byte() {
    let gpu = Platform::Sim.gpu(0).unwrap();
    all_ways(&gpu, gpu.allocate_pinned(100).unwrap().ptr(), 100);
    let buffer = gpu.allocate(100).unwrap();
    // SAFETY: the buffer is live.
    let export = unsafe { gpu.export(buffer.ptr(), 100).unwrap() };
    let imported = gpu.import(&export.handle, export.allocation_size).unwrap();
    assert_ne!(imported.ptr(), buffer.ptr());
    all_ways(&gpu, imported.ptr(), 100);
}

#[test]
fn kernels_are_kept_within_variables_and_shared_memory() {
    let gpu = Platform::Sim.gpu(0).unwrap();
    for kernel in ["touch_numbers", "read_numbers"] {
        let touch = |index: u32| run(&gpu, kernel, 0, &KernelArgs::new().with(index));
        assert_eq!(touch(19), Ok(()), "{kernel}");
        touch(20).unwrap_err();
    }
    let shared = |index: u32, bytes, is_dynamic: i32| {
        run(&gpu, "write_shared", bytes, &KernelArgs::new().with(index).with(is_dynamic))
    };
    assert_eq!(shared(31, 0, 0), Ok(()));
    assert_eq!(shared(49, 50, 1), Ok(()));
    let message = shared(50, 50, 1).unwrap_err();
    assert!(
        message.contains("offset 50 of the memory at") && message.contains("which has 50 bytes"),
        "{message}"
    );
    shared(0, 0, 1).unwrap_err();
    assert_eq!(run(&gpu, "read_literal", 0, &KernelArgs::new().with(3u32)), Ok(()));
}

#[test]
fn work_of_a_stream_that_goes_past_the_end_is_refused() {
    let gpu = Platform::Sim.gpu(0).unwrap();
    let (stream, buffer) = (gpu.stream().unwrap(), gpu.allocate(100).unwrap());
    let (other, mut own) = (gpu.allocate(200).unwrap(), [0u8; 200]);
    let own = DevicePtr::from_ptr(own.as_mut_ptr());
    // SAFETY: accesses past the end are refused; the rest outlives the work, which is waited for.
    let refused = unsafe {
        [
            stream.copy(buffer.ptr(), other.ptr(), 101),
            stream.copy(other.ptr(), buffer.ptr().add(1), 100),
            stream.copy(own, buffer.ptr().add(100), 1),
            stream.fill(buffer.ptr().add(4096), 8, 1),
            stream.write_u64(buffer.ptr().add(96), 1),
        ]
    };
    for result in refused {
        assert!(matches!(result, Err(Error::OutOfBounds(OutOfBounds { size: 100, .. }))), "{result:?}");
    }
    // SAFETY: the same as above.
    unsafe {
        stream.copy(own, other.ptr(), 200).unwrap();
        stream.copy(buffer.ptr(), own, 100).unwrap();
        stream.fill(buffer.ptr().add(99), 1, 1).unwrap();
    }
    stream.synchronize().unwrap();
}

/// This is for plain accesses, which are not compared.
#[test]
fn behind_the_last_page_there_is_nobodys_memory() {
    let gpu = Platform::Sim.gpu(0).unwrap();
    let buffers: Vec<DeviceBuffer> = [100, 4096, 5000].map(|bytes| gpu.allocate(bytes).unwrap()).into();
    let pinned = gpu.allocate_pinned(64).unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let permissions = |address: u64| {
        maps.lines().find_map(|line| {
            let (range, rest) = line.split_once(' ')?;
            let (begin, end) = range.split_once('-')?;
            let [begin, end] = [begin, end].map(|text| u64::from_str_radix(text, 16).expect("a number"));
            (begin..end).contains(&address).then(|| rest[..3].to_owned())
        })
    };
    let memories = buffers.iter().map(|buffer| (buffer.ptr().0, buffer.len()));
    for (begin, bytes) in memories.chain([(pinned.ptr().0, 64)]) {
        let end = (begin + bytes).next_multiple_of(rustix::param::page_size() as u64);
        assert_eq!(permissions(end - 1).as_deref(), Some("rw-"));
        for behind in [end, end + 65535, end + (bytes - 1)] {
            assert_eq!(permissions(behind).as_deref(), Some("---"), "{behind:#x} behind {begin:#x}");
        }
    }
}
