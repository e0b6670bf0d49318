//! Captures that other code in the process has begun in GLOBAL mode, as PyTorch does; then no thread may make calls that could
//! break a capture. The library's calls still work. They neither break the capture nor become part of it.

mod needs;

use std::{
    ffi::c_void,
    process::ExitCode,
    ptr,
    sync::{Arc, atomic::Ordering},
    thread,
    time::Duration,
};

use libtest_mimic::Arguments;
use mscclpp_gpu::{
    DeviceBuffer, Error, ExportHandle, Gpu, Graph, KernelArgs, KernelSource, LaunchConfig, Module, Platform,
    Stream,
};
use mscclpp_gpu_sys::cuda::{CUdeviceptr, CUstream_flags, CUstreamCaptureMode, CuResult, Driver};
use mscclpp_test_support::child::{as_child, output_within, role};
use mscclpp_test_support::until;

const LIMIT: Duration = Duration::from_secs(30);
const BLOCKING: u32 = CUstream_flags::CU_STREAM_DEFAULT as u32;
/// The flag of streams like PyTorch's.
const NON_BLOCKING: u32 = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;

/// `count(word)`: adds 1 to the 8-byte word.
const SOURCE: KernelSource<'_> = KernelSource::new(
    "count.cu",
    "extern \"C\" __global__ void count(unsigned long long* word) { *word += 1; }",
);

/// Does some of the work that a program may do at any time: all of it runs, and has the right results when this returns.
/// Returns the memory that it has used.
type Part = fn(&Gpu) -> Vec<DeviceBuffer>;

const PARTS: &[(&str, Part, &[u32])] = &[
    ("buffers", buffers, &[NON_BLOCKING, BLOCKING]),
    ("streams_and_events", streams_and_events, &[NON_BLOCKING, BLOCKING]),
    ("kernels", kernels, &[NON_BLOCKING, BLOCKING]),
    ("sharing", sharing, &[NON_BLOCKING, BLOCKING]),
    // The default stream may be used as long as no thread captures a stream that synchronises with it.
    ("the_default_stream", the_default_stream, &[NON_BLOCKING]),
];

fn main() -> ExitCode {
    if role().is_some() {
        opens_the_device();
        return ExitCode::SUCCESS;
    }
    let mut trials = needs::cuda_trials![
        1: adopted_threads_may_call_the_driver,
        1: what_cannot_be_done_says_when_it_can,
        1: a_device_is_opened_for_the_first_time,
        1: a_graph_of_others_keeps_what_its_launches_need,
    ];
    for &(name, part, flags) in PARTS {
        trials.push(needs::cuda_devices(1, &format!("in_the_thread_that_captures::{name}"), move || {
            flags.iter().for_each(|flags| beside_a_capture(*flags, part));
        }));
        trials.push(needs::cuda_devices(1, &format!("in_another_thread::{name}"), move || {
            flags.iter().for_each(|flags| beside_a_capture(*flags, |gpu| in_another_thread(|| part(gpu))));
        }));
    }
    let mut arguments = Arguments::from_args();
    // Each test would take part in the captures of the others.
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn in_another_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(work).join().expect("the other thread"))
}

/// A stream of other code, and its capture of that stream.
struct Capture {
    driver: &'static Driver,
    stream: Stream,
    raw: *mut c_void,
}

impl Capture {
    /// Begins the capture in the calling thread, in which it must end.
    fn begin(gpu: &Gpu, flags: u32) -> Self {
        gpu.make_current().unwrap();
        let driver = Driver::load().unwrap();
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is valid for the write, and a context is current.
        assert_eq!(unsafe { (driver.common.stream_create.1)(&raw mut raw, flags) }, CuResult::SUCCESS);
        // SAFETY: the stream was made in the primary context, and lives until this value is dropped.
        let stream = unsafe { Stream::from_raw(gpu, raw.cast()).unwrap() };
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL as u32;
        // SAFETY: the stream lives.
        assert_eq!(unsafe { (driver.common.stream_begin_capture.1)(raw, mode) }, CuResult::SUCCESS);
        Self { driver, stream, raw: raw.cast() }
    }

    /// Ends the capture. Returns an error if something has broken it.
    fn end(self) -> Result<Graph, Error> {
        self.stream.end_capture()
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let mut graph = ptr::null_mut();
        // SAFETY: the stream was made by `begin` and is destroyed once, and so is a graph that nobody has taken. A test that
        // failed has left its capture open for that; else this call is refused, which harms nothing.
        unsafe {
            let ended = (self.driver.common.stream_end_capture.1)(self.raw.cast(), &raw mut graph);
            if ended == CuResult::SUCCESS && !graph.is_null() {
                let _ = (self.driver.common.graph_destroy.1)(graph);
            }
            let _ = (self.driver.common.stream_destroy.1)(self.raw.cast());
        }
    }
}

/// Does `work` during a capture, which must then have the work that was captured and nothing else: anything more would
/// change the memory that `work` has used.
fn beside_a_capture(flags: u32, work: impl FnOnce(&Gpu) -> Vec<DeviceBuffer>) {
    let gpu = Platform::Cuda.gpu(0).unwrap();
    let captured = gpu.allocate(8).unwrap();
    let capture = Capture::begin(&gpu, flags);
    // SAFETY: so here and below: the buffer outlives every launch, and the work is waited for.
    unsafe { capture.stream.fill(captured.ptr(), 4, 0x11).unwrap() };
    let used = work(&gpu);
    // SAFETY: see above.
    unsafe { capture.stream.fill(captured.ptr().add(4), 4, 0x22).unwrap() };
    let graph = capture.end().unwrap_or_else(|error| panic!("stream flags {flags}: broken: {error}"));
    assert_eq!(bytes_of(&captured), [0; 8], "what is captured has run");

    used.iter().for_each(|buffer| buffer.fill(0, buffer.len(), 0xcc).unwrap());
    let stream = gpu.stream().unwrap();
    // SAFETY: see above.
    unsafe { graph.launch(&stream).unwrap() };
    stream.synchronize_timeout(LIMIT).unwrap();
    assert_eq!(bytes_of(&captured), [0x11, 0x11, 0x11, 0x11, 0x22, 0x22, 0x22, 0x22]);
    for (index, buffer) in used.iter().enumerate() {
        assert!(
            bytes_of(buffer).iter().all(|byte| *byte == 0xcc),
            "the capture took in work on buffer {index}"
        );
    }
}

fn bytes_of(buffer: &DeviceBuffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len() as usize];
    buffer.read(0, &mut bytes).unwrap();
    bytes
}

fn words_of(buffer: &DeviceBuffer) -> Vec<u64> {
    bytes_of(buffer).as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
}

fn buffers(gpu: &Gpu) -> Vec<DeviceBuffer> {
    let (buffer, dropped) = (gpu.allocate(64).unwrap(), gpu.allocate(64).unwrap());
    buffer.write(0, &[1; 8]).unwrap();
    buffer.fill(8, 8, 2).unwrap();
    assert_eq!(words_of(&buffer)[..3], [u64::from_ne_bytes([1; 8]), u64::from_ne_bytes([2; 8]), 0]);
    assert_eq!(words_of(&dropped), [0; 8]);
    assert!(gpu.memory_info().unwrap().total > 0);
    assert_eq!(Platform::Cuda.owner_of(buffer.ptr()).unwrap().map(|owner| owner.id()), Some(0));
    vec![buffer]
}

fn streams_and_events(gpu: &Gpu) -> Vec<DeviceBuffer> {
    let (buffer, copy) = (gpu.allocate(64).unwrap(), gpu.allocate(64).unwrap());
    let pinned = gpu.allocate_pinned(64).unwrap();
    pinned.word(0).unwrap().store(3, Ordering::Relaxed);
    let (stream, behind) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let (start, end) = (gpu.event(true).unwrap(), gpu.event(true).unwrap());
    stream.record(&start).unwrap();
    // SAFETY: all memory outlives the work, which is waited for.
    unsafe {
        stream.copy(buffer.ptr(), pinned.ptr(), 8).unwrap();
        stream.write_u64(buffer.ptr().add(8), 4).unwrap();
        stream.write_two_u64([(buffer.ptr().add(16), 5), (buffer.ptr().add(24), 6)]).unwrap();
        stream.fill(buffer.ptr().add(32), 8, 0).unwrap();
        stream.record(&end).unwrap();
        behind.wait_event(&end).unwrap();
        behind.copy(copy.ptr(), buffer.ptr(), 64).unwrap();
    }
    behind.synchronize_timeout(LIMIT).unwrap();
    end.synchronize_timeout(LIMIT).unwrap();
    stream.synchronize().unwrap();
    assert!(stream.query().unwrap());
    assert!(end.elapsed_ms(&start).unwrap() >= 0.0);
    assert_eq!(words_of(&copy), [3, 4, 5, 6, 0, 0, 0, 0]);
    vec![buffer, copy]
}

fn kernels(gpu: &Gpu) -> Vec<DeviceBuffer> {
    let (word, stream) = (gpu.allocate(8).unwrap(), gpu.stream().unwrap());
    let kernel = Module::load(gpu, &SOURCE).unwrap().kernel("count").unwrap();
    for _ in 0..3 {
        let args = KernelArgs::new().with(word.ptr());
        // SAFETY: the argument is that of the kernel; the word outlives the work, which is waited for.
        unsafe { kernel.launch(&stream, LaunchConfig::linear(1, 1), &args).unwrap() };
    }
    stream.synchronize_timeout(LIMIT).unwrap();
    assert_eq!(words_of(&word), [3]);
    vec![word]
}

fn sharing(gpu: &Gpu) -> Vec<DeviceBuffer> {
    let (word, stream) = (gpu.allocate(8).unwrap(), gpu.stream().unwrap());
    // SAFETY: the buffer is live.
    let export = unsafe { gpu.export(word.ptr(), 8).unwrap() };
    // A legacy handle cannot be opened by the process that made it.
    if !matches!(export.handle, ExportHandle::IpcHandle(_)) {
        let imported = gpu.import(&export.handle, export.allocation_size).unwrap();
        // SAFETY: inside what was imported, which outlives the work.
        unsafe { stream.write_u64(imported.ptr().add(export.offset), 9).unwrap() };
        stream.synchronize_timeout(LIMIT).unwrap();
        assert_eq!(words_of(&word), [9]);
    }
    vec![word]
}

fn the_default_stream(gpu: &Gpu) -> Vec<DeviceBuffer> {
    let (word, stream) = (gpu.allocate(8).unwrap(), gpu.default_stream().unwrap());
    // SAFETY: the word outlives the work, which is waited for.
    unsafe {
        stream.fill(word.ptr(), 8, 1).unwrap();
        stream.write_u64(word.ptr(), 5).unwrap();
    }
    stream.synchronize_timeout(LIMIT).unwrap();
    assert_eq!(words_of(&word), [5]);
    vec![word]
}

/// A thread that serves a device alone, such as a proxy's, does not take part in the captures of others.
fn adopted_threads_may_call_the_driver() {
    let gpu = Platform::Cuda.gpu(0).unwrap();
    let allocate = |gpu: &Gpu| {
        gpu.make_current().unwrap();
        let (driver, mut address): (_, CUdeviceptr) = (Driver::load().unwrap(), 0);
        // SAFETY: `address` is valid for the write; what was made is freed.
        unsafe {
            let result = (driver.mem_alloc)(&raw mut address, 4096);
            if result == CuResult::SUCCESS {
                assert_eq!((driver.mem_free)(address), CuResult::SUCCESS);
            }
            result
        }
    };
    // The calls of any other thread are refused, and may have ended the capture.
    let capture = Capture::begin(&gpu, NON_BLOCKING);
    assert_eq!(in_another_thread(|| allocate(&gpu)), CuResult::STREAM_CAPTURE_UNSUPPORTED);
    drop(capture);

    beside_a_capture(NON_BLOCKING, |gpu| {
        in_another_thread(|| {
            gpu.adopt_thread().unwrap();
            assert_eq!(allocate(gpu), CuResult::SUCCESS);
            streams_and_events(gpu)
        })
    });
}

/// The device is opened in a process in which the library has not been used yet.
fn a_device_is_opened_for_the_first_time() {
    let output = output_within(3 * LIMIT, &mut as_child(&["open"]));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Runs in a child: other code has made the context and captures, when this library is used for the first time.
fn opens_the_device() {
    let (driver, global) =
        (Driver::load().unwrap(), CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL as u32);
    let (mut device, mut context, mut stream, mut graph) =
        (0, ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    // SAFETY: each is valid for the write, and what is used was made before.
    unsafe {
        assert_eq!((driver.common.init.1)(0), CuResult::SUCCESS);
        assert_eq!((driver.device_get)(&raw mut device, 0), CuResult::SUCCESS);
        assert_eq!((driver.device_primary_ctx_retain)(&raw mut context, device), CuResult::SUCCESS);
        assert_eq!((driver.common.set_current.1)(context), CuResult::SUCCESS);
        assert_eq!((driver.common.stream_create.1)(&raw mut stream, NON_BLOCKING), CuResult::SUCCESS);
        assert_eq!((driver.common.stream_begin_capture.1)(stream, global), CuResult::SUCCESS);
    }
    let gpu = Platform::Cuda.gpu(0).unwrap();
    for (_, part, _) in PARTS {
        part(&gpu);
    }
    // SAFETY: the same as above.
    assert_eq!(unsafe { (driver.common.stream_end_capture.1)(stream, &raw mut graph) }, CuResult::SUCCESS);
}

fn what_cannot_be_done_says_when_it_can() {
    let gpu = Platform::Cuda.gpu(0).unwrap();
    let capture = Capture::begin(&gpu, NON_BLOCKING);
    for result in [capture.stream.synchronize(), gpu.synchronize()] {
        let error = result.expect_err("it was allowed").to_string();
        assert!(error.contains("capture"), "{error}");
    }
    drop(capture);
    let capture = Capture::begin(&gpu, BLOCKING);
    let word = gpu.allocate(8).unwrap();
    // SAFETY: it is refused.
    let result = unsafe { gpu.default_stream().unwrap().fill(word.ptr(), 8, 1) };
    let error = result.expect_err("it was allowed").to_string();
    assert!(error.contains("Gpu::stream"), "{error}");
    drop(capture);
    buffers(&gpu);
}

/// The executable graph and its launches keep the objects, too. Nothing is kept when they are gone.
fn a_graph_of_others_keeps_what_its_launches_need() {
    let gpu = Platform::Cuda.gpu(0).unwrap();
    let (word, sentinel) = (gpu.allocate(8).unwrap(), Arc::new(()));
    let kept = || Arc::strong_count(&sentinel) - 1;
    let kernel = Module::load(&gpu, &SOURCE).unwrap().kernel("count").unwrap();
    let capture = Capture::begin(&gpu, NON_BLOCKING);
    let (driver, mut graph, mut executable) = (capture.driver, ptr::null_mut(), ptr::null_mut());
    {
        let args = KernelArgs::new().with(&word).keeping(sentinel.clone());
        for _ in 0..3 {
            // SAFETY: the stream lives, and the argument is that of the kernel.
            unsafe {
                let stream = Stream::from_raw(&gpu, capture.raw).unwrap();
                kernel.launch(&stream, LaunchConfig::linear(1, 1), &args).unwrap();
            }
        }
    }
    drop(kernel);
    let address = word.ptr();
    drop(word);
    assert_eq!(kept(), 1, "the graph has it");
    // SAFETY: so here and below: the handles live, what is made is destroyed once, and the graph keeps what its kernels need.
    unsafe {
        assert_eq!(
            (driver.common.stream_end_capture.1)(capture.raw.cast(), &raw mut graph),
            CuResult::SUCCESS
        );
        let made = (driver.common.graph_instantiate.1)(&raw mut executable, graph, 0);
        assert_eq!(made, CuResult::SUCCESS);
        assert_eq!((driver.common.graph_destroy.1)(graph), CuResult::SUCCESS);
    }
    gpu.synchronize().unwrap();
    gpu.allocate(8).unwrap();
    assert_eq!(kept(), 1, "the executable has it");
    let (stream, pinned) = (gpu.stream().unwrap(), gpu.allocate_pinned(8).unwrap());
    // SAFETY: see above. What nobody needs any more is put aside, and freed by this thread's next allocation: behind the copy.
    unsafe {
        assert_eq!((driver.common.graph_launch.1)(executable, stream.raw().cast()), CuResult::SUCCESS);
        stream.copy(pinned.ptr(), address, 8).unwrap();
        assert_eq!((driver.common.graph_exec_destroy.1)(executable), CuResult::SUCCESS);
    }
    stream.synchronize_timeout(LIMIT).unwrap();
    assert_eq!(pinned.word(0).unwrap().load(Ordering::Relaxed), 3);
    // The driver reports the end at some time, and an allocation then frees the objects.
    until("the graph's end", || {
        gpu.allocate(8).unwrap();
        kept() == 0
    });
}
