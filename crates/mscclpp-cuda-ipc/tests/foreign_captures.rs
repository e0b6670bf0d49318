//! Other code in the process captures a stream in GLOBAL mode, as PyTorch does; then no thread may do what could break
//! a capture. Connections can still be made and used. They neither break the capture nor become part of it.

use std::{process::ExitCode, thread};

use libtest_mimic::{Arguments, Trial};
use mscclpp_conformance::{pair::received, semaphores::build};
use mscclpp_core::{
    Connection, Context, Device, EndpointConfig, HostToDeviceSemaphore, RegisteredMemory, Transport,
};
use mscclpp_cuda_ipc::CudaIpc;
use mscclpp_gpu::{DeviceBuffer, Gpu, Platform};
use mscclpp_gpu_sys::cuda::{CUstreamCaptureMode, CuResult, Driver};
use mscclpp_test_support::{
    LIMIT,
    child::{output_within, this_program},
    trial_that_needs,
};

const DEFAULT_STREAM: &str = "MSCCLPP_CUDAIPC_USE_DEFAULT_STREAM";

/// A function that makes connections and uses them in some way. Returns the memory that it has used.
type Part = fn() -> Vec<DeviceBuffer>;

fn main() -> ExitCode {
    let parts: [(&str, Part); 2] = [("writes", writes), ("semaphores", semaphores)];
    let mut trials = Vec::new();
    for (name, part) in parts {
        let here = format!("in_the_thread_that_captures::{name}");
        let there = format!("in_another_thread::{name}");
        for name in [&here, &there] {
            let named = name.clone();
            let with = move || with_the_default_stream(&named);
            trials.push(a_cuda_device(&format!("default_stream::{name}"), with));
        }
        trials.push(a_cuda_device(&here, move || beside_a_capture(part)));
        trials.push(a_cuda_device(&there, move || {
            beside_a_capture(|| thread::spawn(part).join().expect("the other thread"));
        }));
    }
    let mut arguments = Arguments::from_args();
    // Each trial would take part in the captures of the others.
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Makes a trial of `test`, which needs a CUDA device.
fn a_cuda_device(name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
    let platform = Platform::detect_or_sim().expect("a usable platform");
    let there = if platform == Platform::Cuda { platform.device_count().expect("its devices") } else { 0 };
    trial_that_needs("CUDA devices", 1, there, name, test)
}

/// Runs the trial of that name in a process whose connections copy on the default stream.
fn with_the_default_stream(name: &str) {
    let output = output_within(3 * LIMIT, this_program().args(["--exact", name]).env(DEFAULT_STREAM, "1"));
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{}\n{}", output.status, said.join("\n"));
}

/// Does `work` during a capture of a non-blocking stream. Afterwards the graph must hold the captured fill and
/// nothing else.
fn beside_a_capture(work: impl FnOnce() -> Vec<DeviceBuffer>) {
    let gpu = Platform::Cuda.gpu(0).expect("a device");
    let (captured, stream) = (gpu.allocate(8).expect("a buffer"), gpu.stream().expect("a stream"));
    gpu.make_current().expect("the primary context");
    let driver = Driver::load().expect("a driver");
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL as u32;
    // SAFETY: the stream lives, and a context is current.
    let begun = unsafe { (driver.common.stream_begin_capture.1)(stream.raw().cast(), mode) };
    assert_eq!(begun, CuResult::SUCCESS);
    // SAFETY: the buffer outlives every launch, which is waited for.
    unsafe { stream.fill(captured.ptr(), 8, 0x11).expect("captured") };
    let used = work();
    let graph = stream.end_capture().expect("a capture that nobody has broken");

    used.iter().for_each(|buffer| buffer.fill(0, buffer.len(), 0xcc).expect("a fill"));
    // SAFETY: the buffer lives, as above.
    unsafe { graph.launch(&stream).expect("a launch") };
    stream.synchronize_timeout(LIMIT).expect("the graph's end");
    assert_eq!(bytes_of(&captured), [0x11; 8]);
    for (index, buffer) in used.iter().enumerate() {
        assert!(
            bytes_of(buffer).iter().all(|byte| *byte == 0xcc),
            "the capture took in work on buffer {index}"
        );
    }
}

fn bytes_of(buffer: &DeviceBuffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len() as usize];
    buffer.read(0, &mut bytes).expect("read");
    bytes
}

/// One end of a connection.
struct End {
    context: Context,
    gpu: Gpu,
    connection: Connection,
}

/// Connects two ends, on two devices if there are two.
fn connect() -> [End; 2] {
    let devices = [0, 1 % Platform::Cuda.device_count().expect("devices")];
    let [here, there] = devices.map(|device| {
        let context = Context::builder().provider(CudaIpc::new()).platform(Platform::Cuda).build();
        let config = EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(device));
        let endpoint = context.create_endpoint(config).expect("an endpoint");
        let gpu = context.gpu(device).expect("a device");
        (context, gpu, endpoint)
    });
    [(&here, &there), (&there, &here)].map(|((context, gpu, endpoint), (_, _, remote))| {
        let connection = context.connect(endpoint, &received(remote)).expect("a connection");
        End { context: context.clone(), gpu: gpu.clone(), connection }
    })
}

fn writes() -> Vec<DeviceBuffer> {
    let [here, there] = connect();
    let data: Vec<u8> = (0..100_000u32).map(|i| (i * 31 + 7) as u8).collect();
    let [(source, from), (target, to)] = [&here, &there].map(|end| {
        let buffer = end.gpu.allocate(data.len() as u64).expect("a buffer");
        let memory = end.context.register_buffer(&buffer, Transport::CUDA_IPC).expect("registered");
        (buffer, memory)
    });
    let to = RegisteredMemory::deserialize(&to.serialize().expect("bytes")).expect("a memory");
    source.write(0, &data).expect("filled");
    here.connection.write(&to, 0, &from, 0, target.len()).expect("written");
    let mut counter = 0;
    here.connection.update_and_sync(&to, 0, &mut counter, 7).expect("updated");
    here.connection.flush(LIMIT).expect("flushed");
    let found = bytes_of(&target);
    assert!(found[..8] == 7u64.to_ne_bytes() && found[8..] == data[8..], "not what was written");
    vec![source, target]
}

fn semaphores() -> Vec<DeviceBuffer> {
    let ends = connect();
    let (a, b) = build(&ends[0].connection, &ends[1].connection);
    for (semaphore, end) in [a, b].iter().zip(&ends) {
        let host = HostToDeviceSemaphore::new(semaphore).expect("one that the host signals");
        host.signal().expect("a signal");
        end.connection.flush(LIMIT).expect("flushed");
        semaphore.check().expect("alive");
    }
    Vec::new()
}
