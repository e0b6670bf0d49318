//! A program that calls all entry points of the runtime that the platform uses.

use std::{sync::Arc, time::Duration};

use mscclpp_gpu::{
    DeviceBuffer, Error, ExportHandle, Gpu, KernelArgs, KernelSource, LaunchConfig, Module, PinnedBuffer,
    Platform, Result, RetiredBuffers, Stream,
};
use mscclpp_test_support::{
    Child,
    child::{await_end, say},
    hex, unhex, until,
};

use crate::fake::Existing;

pub(crate) const WORDS: u64 = 512;
pub(crate) const BYTES: u64 = WORDS * 8;

pub(crate) const SOURCE: KernelSource<'_> = KernelSource::new(
    "scenario.cu",
    r#"
    #include <assert.h>
    #include <mscclpp/atomic_device.hpp>

    __constant__ unsigned long long offset;

    extern "C" __global__ void add(unsigned long long* words, unsigned long long value) {
      assert(blockDim.x == 64);
      words[blockIdx.x * blockDim.x + threadIdx.x] += value + offset;
    }
    "#,
);

/// Another process that has exported memory.
pub(crate) struct Exporter {
    _process: Child,
    handle: [u8; 64],
}

impl Exporter {
    pub(crate) fn start() -> Self {
        let process = Child::start(&["export"]);
        let handle = unhex(&process.next_line()).try_into().expect("64 bytes");
        Self { _process: process, handle }
    }
}

/// Plays the other process.
pub(crate) fn export() {
    let gpu = Platform::Hip.gpu(0).expect("a device");
    let buffer = gpu.allocate(BYTES).expect("memory");
    buffer.fill(0, BYTES, 0x11).expect("a fill");
    // SAFETY: the buffer lives.
    let export = unsafe { gpu.export(buffer.ptr(), BYTES) }.expect("an export");
    let ExportHandle::IpcHandle(bytes) = export.handle else { panic!("{export:?}") };
    say(&hex(&bytes));
    await_end();
}

/// Opens device 1, which is not the thread's current one, and device 0.
pub(crate) fn open() -> Result<[Gpu; 2]> {
    Platform::Hip.device_count()?;
    Ok([Platform::Hip.gpu(1)?, Platform::Hip.current_gpu()?])
}

/// Returns the objects that exist when everything was dropped: each device has a stream of its own.
pub(crate) fn at_the_end(devices: &[Gpu]) -> Existing {
    // The module is the one that was loaded last.
    Existing::default().with(devices.len() as u64, "hipStreamDestroy").with(1, "hipModuleUnload")
}

pub(crate) fn run(devices: &[Gpu; 2], theirs: &Exporter) -> Result<()> {
    let [gpu, other] = devices;
    ask(gpu, other)?;
    memory(gpu, other, theirs)?;
    let stream = gpu.stream()?;
    events(gpu, &stream)?;
    kernels(gpu, &stream)?;
    crate::others::captured(gpu, KernelArgs::new().with(&gpu.allocate(BYTES)?).with(1u64), |_, _| Ok(()))?;
    // An allocation releases the objects that the graph kept, the module among them.
    gpu.allocate(BYTES)?;
    // Loading unloads the module of `kernels`.
    Module::load(gpu, &SOURCE)?;
    gpu.synchronize()
}

fn ask(gpu: &Gpu, other: &Gpu) -> Result<()> {
    assert!(gpu.memory_info()?.total > 0);
    assert!(gpu.peer_access(other)?.native_atomics);
    assert_eq!(Platform::Hip.find(&gpu.properties().uuid)?, Some(1));
    assert!(!gpu.gpu_direct()?.dma_buf, "the fake does not know the attribute");
    assert!(gpu.properties().export_kinds.ipc_handle && gpu.properties().name.contains("fake"));
    Ok(())
}

fn memory(gpu: &Gpu, other: &Gpu, theirs: &Exporter) -> Result<()> {
    let buffer = gpu.allocate(BYTES)?;
    let mut back = vec![0xff; BYTES as usize];
    buffer.read(0, &mut back)?;
    assert!(back.iter().all(|byte| *byte == 0), "memory starts as zeros");
    let pinned: PinnedBuffer = gpu.allocate_pinned(64)?;
    assert_eq!(pinned.word(8)?.load(std::sync::atomic::Ordering::Relaxed), 0);
    let owner = Platform::Hip.owner_of(buffer.ptr().add(BYTES - 1))?;
    assert_eq!(owner.map(|owner| owner.id()), Some(1));
    // SAFETY: the buffer lives.
    unsafe {
        other.enable_access(gpu, buffer.ptr(), BYTES)?;
        // One call is enough, and two are no error.
        other.enable_access(gpu, buffer.ptr(), BYTES)?;
        let export = gpu.export(buffer.ptr().add(8), 16)?;
        assert_eq!((export.allocation_size, export.offset), (BYTES, 8));
        assert!(matches!(gpu.export_dma_buf(buffer.ptr(), 16), Err(Error::NotExportable { .. })));
    }
    let handle = ExportHandle::IpcHandle(theirs.handle);
    let imported = gpu.import(&handle, BYTES)?;
    let stream = gpu.stream()?;
    // SAFETY: both have that many bytes, and live until the stream has been waited for.
    unsafe { stream.copy(buffer.ptr(), imported.ptr(), BYTES)? };
    stream.synchronize()?;
    buffer.read(0, &mut back)?;
    assert!(back.iter().all(|byte| *byte == 0x11), "the other process's bytes");
    drop(imported);
    assert!(matches!(gpu.import(&handle, BYTES * 2), Err(Error::OutOfBounds { .. })), "more than there is");
    // SAFETY: the buffer lives.
    let own = unsafe { gpu.export(buffer.ptr(), BYTES)? };
    assert!(gpu.import(&own.handle, BYTES).is_err(), "a process cannot open its own memory");
    Ok(())
}

fn events(gpu: &Gpu, stream: &Stream) -> Result<()> {
    let (start, end) = (gpu.event(true)?, gpu.event(true)?);
    let buffer = gpu.allocate(8)?;
    stream.record(&start)?;
    // SAFETY: the buffer lives until the stream has been waited for.
    unsafe { stream.write_u64(buffer.ptr(), 7)? };
    stream.record(&end)?;
    gpu.stream()?.wait_event(&end)?;
    stream.synchronize_timeout(Duration::from_secs(60))?;
    end.synchronize_timeout(Duration::from_secs(60))?;
    assert!(end.elapsed_ms(&start)? >= 0.0);
    let mut back = [0; 8];
    buffer.read(0, &mut back)?;
    assert_eq!(u64::from_ne_bytes(back), 7);
    // SAFETY: the stream lives.
    let same = unsafe { Stream::from_raw(gpu, stream.raw())? };
    assert!(same.query()?);
    Ok(())
}

fn kernels(gpu: &Gpu, stream: &Stream) -> Result<()> {
    let module = Module::load(gpu, &SOURCE)?;
    module.set_symbol("offset", &[10u64])?;
    let kernel = module.kernel("add")?;
    assert!(matches!(module.kernel("subtract"), Err(Error::NoSuchSymbol { .. })));
    assert!(matches!(module.symbol("scale"), Err(Error::NoSuchSymbol { .. })));
    let words = gpu.allocate(BYTES)?;
    let args = KernelArgs::new().with(&words).with(1u64);
    let config = LaunchConfig::linear((WORDS / 64) as u32, 64);
    stream.begin_capture()?;
    // SAFETY: the kernel's arguments, one thread for each word.
    let captured = unsafe { kernel.launch(stream, config, &args) };
    // The capture ends in any case.
    let graph = stream.end_capture()?;
    captured?;
    // SAFETY: as above.
    unsafe {
        kernel.launch(stream, config, &args)?;
        kernel.launch_cooperative(stream, config, &args)?;
    }
    for _ in 0..2 {
        // SAFETY: as above.
        unsafe { graph.launch(stream)? };
    }
    stream.synchronize()?;
    let mut back = vec![0; BYTES as usize];
    words.read(0, &mut back)?;
    let expected = (4 * 11u64).to_ne_bytes();
    assert!(back.chunks(8).all(|word| word == expected), "four launches add 11 each");
    Ok(())
}

/// Checks that objects kept for launches, on the default stream and on streams that were dropped, are released when
/// the launches are seen to be complete.
pub(crate) fn lets_go_of_what_was_launched() -> Result<()> {
    let gpu = Platform::Hip.gpu(0)?;
    let kernel = Module::load(&gpu, &SOURCE)?.kernel("add")?;
    let (words, sentinel) = (gpu.allocate(BYTES)?, Arc::new(()));
    let launch = |stream: &Stream| {
        let args = KernelArgs::new().with(&words).with(1u64).keeping(sentinel.clone());
        // SAFETY: the kernel's arguments, one thread for each word.
        unsafe { kernel.launch(stream, LaunchConfig::linear((WORDS / 64) as u32, 64), &args) }
    };
    let kept = || Arc::strong_count(&sentinel) - 1;

    launch(&gpu.default_stream()?)?;
    gpu.default_stream()?.synchronize()?;
    assert_eq!(kept(), 0, "whoever waits for the default stream lets go of what others launched");
    launch(&gpu.default_stream()?)?;
    gpu.synchronize()?;
    assert_eq!(kept(), 0, "so does who waits for the device");

    launch(&gpu.default_stream()?)?;
    // SAFETY: the handle is that of the default stream.
    unsafe { Stream::from_raw(&gpu, gpu.default_stream()?.raw())? }.synchronize()?;
    assert_eq!(kept(), 0, "by its handle it is the same stream");

    launch(&gpu.default_stream()?)?;
    until("an allocation that finds the default stream idle", || {
        gpu.allocate(8).expect("memory");
        kept() == 0
    });

    let stream = gpu.stream()?;
    launch(&stream)?;
    // The work goes on, or not: the stream is gone in both cases.
    drop(stream);
    gpu.synchronize()?;
    gpu.default_stream()?.synchronize()?;
    assert_eq!(kept(), 0, "what a stream left behind");

    /// A buffer that is retired when no launch needs it any more.
    struct RetireOnDrop(DeviceBuffer);
    static RETIRED: RetiredBuffers = RetiredBuffers::new();
    impl Drop for RetireOnDrop {
        fn drop(&mut self) {
            RETIRED.retire(self.0.clone());
        }
    }
    RETIRED.retire(gpu.allocate(8)?);
    let args = KernelArgs::new().with(&words).with(1u64).keeping(RetireOnDrop(gpu.allocate(8)?));
    // SAFETY: the kernel's arguments, one thread for each word.
    unsafe { kernel.launch(&gpu.default_stream()?, LaunchConfig::linear((WORDS / 64) as u32, 64), &args)? };
    drop(args);
    until("the buffer of a launch, which the first look retires", || {
        RETIRED.free();
        RETIRED.is_empty()
    });
    Ok(())
}
