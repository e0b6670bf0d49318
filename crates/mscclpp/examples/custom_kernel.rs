//! A kernel of one's own, given as a string: compiled at run time against the device API's headers, then launched on
//! two devices, which exchange data and signals.
//!
//! On CUDA it needs NVRTC (`MSCCLPP_NVRTC_SO`, a CUDA toolkit, or on the loader's path). With one GPU both sides run on
//! it; with none, its host twin runs on simulated devices.

use std::{
    error::Error,
    process::ExitCode,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use mscclpp::{
    BaseMemoryChannelHandle, Kernel, Stream,
    host::{HostBlock, HostKernel},
    kernels, nvrtc,
    prelude::*,
};

const USAGE: &str =
    "usage: custom_kernel [GPU GPU]    two device numbers, which may be equal [default: the first two]";

// ANCHOR: source
/// Each thread writes one word into the peer's buffer; one thread signals that they are all there, and waits for the
/// peer's. Then each thread doubles the word that came.
const SOURCE: &str = r#"
#include "mscclpp/memory_channel_device.hpp"

extern "C" __global__ void swap_words(mscclpp::BaseMemoryChannelDeviceHandle channel, uint64_t* mine,
                                      uint64_t* theirs, uint64_t value, unsigned int* failed) {
  theirs[threadIdx.x] = value + threadIdx.x;
  __syncthreads();  // every thread's word is written before the one signal that publishes them all
  __shared__ int signalled;
  if (threadIdx.x == 0) {
    channel.signal();
    signalled = channel.wait();
    if (!signalled) *failed = 1;
  }
  __syncthreads();
  if (signalled) mine[threadIdx.x] *= 2;
}
"#;
// ANCHOR_END: source

const THREADS: u32 = 64;
const BYTES: u64 = 8 * THREADS as u64;
const LIMIT: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let chosen = match arguments.as_slice() {
        [] => None,
        [option] if option == "-h" || option == "--help" => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        [a, b] => match (a.parse(), b.parse()) {
            (Ok(a), Ok(b)) => Some([a, b]),
            _ => return usage(),
        },
        _ => return usage(),
    };
    match run(chosen) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Failed: {}", mscclpp::with_causes(&*error));
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

fn run(chosen: Option<[usize; 2]>) -> Result<(), Box<dyn Error>> {
    mscclpp::log::init()?;
    let platform = Platform::detect_or_host()?;
    let ids = match chosen {
        Some(ids) => ids,
        None => [0, 1 % platform.device_count()?.max(1)],
    };
    println!("Platform: {platform}, {} device(s)", platform.device_count()?);

    let ptx = match platform {
        Platform::Host => {
            println!("There is no GPU to compile for: running the kernel's host twin");
            String::new()
        }
        _ => compile(platform, ids)?,
    };

    let context = Context::on(platform);
    let endpoints = [open(&context, ids[0])?, open(&context, ids[1])?];
    let connections =
        [context.connect(&endpoints[0], &endpoints[1])?, context.connect(&endpoints[1], &endpoints[0])?];
    let stubs = [SemaphoreStub::new(&connections[0])?, SemaphoreStub::new(&connections[1])?];
    let channels = [
        BaseMemoryChannel::new(&Semaphore::new(&stubs[0], &stubs[1])?)?,
        BaseMemoryChannel::new(&Semaphore::new(&stubs[1], &stubs[0])?)?,
    ];
    // What each side registers of its memory and the other reaches through its connection.
    let buffers = [context.gpu(ids[0])?.allocate(BYTES)?, context.gpu(ids[1])?.allocate(BYTES)?];
    let memories = [
        context.register_buffer(&buffers[0], Transport::CUDA_IPC)?,
        context.register_buffer(&buffers[1], Transport::CUDA_IPC)?,
    ];
    let sides = [Side::new(&context, ids[0], &ptx)?, Side::new(&context, ids[1], &ptx)?];

    let outcome = play(&sides, &channels, |i| {
        let theirs = connections[i].peer_ptr(&memories[1 - i])?;
        let theirs = theirs.ok_or("this transport does not let kernels reach the peer's memory")?;
        // ANCHOR: arguments
        Ok(KernelArgs::new()
            .with(channels[i].device_handle())
            .with(buffers[i].ptr())
            .with(theirs)
            .with(value(i))
            .with(sides[i].failed.ptr()))
        // ANCHOR_END: arguments
    });
    if outcome.is_err() {
        channels.iter().for_each(|channel| channel.semaphore().abort("one side failed"));
        sides.iter().try_for_each(|side| side.stream.synchronize_timeout(LIMIT))?;
    }
    outcome?;

    for (i, buffer) in buffers.iter().enumerate() {
        let mut bytes = vec![0; BYTES as usize];
        buffer.read(0, &mut bytes)?;
        let words: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        let expected: Vec<u64> = (0..u64::from(THREADS)).map(|thread| 2 * (value(1 - i) + thread)).collect();
        if words != expected {
            return Err(format!("GPU {} has {words:?} where {expected:?} was due", ids[i]).into());
        }
        println!(
            "GPU {}: got {THREADS} words of GPU {} and doubled them: {} ...",
            ids[i],
            ids[1 - i],
            words[0]
        );
    }
    println!("Succeed!");
    Ok(())
}

/// Launches both sides and waits for both.
fn play(
    sides: &[Side; 2],
    channels: &[BaseMemoryChannel; 2],
    arguments: impl Fn(usize) -> Result<KernelArgs, Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let arguments = [arguments(0)?, arguments(1)?];
    for (side, arguments) in sides.iter().zip(&arguments) {
        // SAFETY: these are the kernel's arguments, and `run` keeps what they point to until both streams are done.
        unsafe { side.kernel.launch(&side.stream, LaunchConfig::linear(1, THREADS), arguments)? };
    }
    for (side, channel) in sides.iter().zip(channels) {
        side.stream.synchronize_timeout(LIMIT)?;
        let mut failed = [0; 4];
        side.failed.read(0, &mut failed)?;
        if failed != [0; 4] {
            channel.semaphore().check()?;
            return Err("a wait failed".into());
        }
    }
    Ok(())
}

/// The first word that side `i` writes.
fn value(i: usize) -> u64 {
    1000 * (i as u64 + 1)
}

fn open(context: &Context, id: usize) -> mscclpp::Result<Endpoint> {
    Ok(context.create_endpoint(EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(id)))?)
}

/// For the older of the two devices; newer ones run its code too.
fn compile(platform: Platform, ids: [usize; 2]) -> Result<String, Box<dyn Error>> {
    let mut oldest: Option<(u32, u32)> = None;
    for id in ids {
        let gpu = platform.gpu(id)?;
        println!("GPU {id}: {}", gpu.properties().name);
        oldest = oldest.into_iter().chain(gpu.properties().compute_capability).min();
    }
    let (major, minor) = oldest.ok_or("the devices do not say what they can run")?;
    // ANCHOR: compile
    let architecture = format!("--gpu-architecture=compute_{major}{minor}");
    println!("Compiling swap_words for compute_{major}{minor} ...");
    Ok(nvrtc::compile("swap_words.cu", SOURCE, kernels::HEADERS, &[&architecture, "--std=c++17"])?)
    // ANCHOR_END: compile
}

struct Side {
    kernel: Kernel,
    stream: Stream,
    /// Device memory: not 0 if a wait failed.
    failed: DeviceBuffer,
}

impl Side {
    fn new(context: &Context, id: usize, ptx: &str) -> mscclpp::Result<Self> {
        // ANCHOR: load
        let gpu = context.gpu(id)?;
        let twins = &[HostKernel { name: "swap_words", run: swap_words }];
        let module = Module::load(&gpu, &ModuleSource { ptx, host_kernels: twins, host_symbols: &[] })?;
        Ok(Self { kernel: module.kernel("swap_words")?, stream: gpu.stream()?, failed: gpu.allocate(4)? })
        // ANCHOR_END: load
    }
}

// ANCHOR: twin
/// The twin of the kernel.
///
/// # Safety
/// As for the kernel.
unsafe fn swap_words(block: &HostBlock<'_>) {
    // SAFETY: the arguments that `run` pushes.
    let (channel, mine, theirs, value, failed) = unsafe {
        (
            block.arg::<BaseMemoryChannelHandle>(0),
            block.arg::<DevicePtr>(1),
            block.arg::<DevicePtr>(2),
            block.arg::<u64>(3),
            block.arg::<DevicePtr>(4),
        )
    };
    // SAFETY: both buffers have a word for each thread.
    let word = |of: DevicePtr, thread: u32| unsafe {
        AtomicU64::from_ptr(of.add(8 * u64::from(thread)).as_mut_ptr())
    };
    for thread in block.threads() {
        word(theirs, thread).store(value + u64::from(thread), Ordering::Relaxed);
    }
    // SAFETY: a live handle, and a word of device memory that only this thread writes.
    let signalled = unsafe {
        channel.signal();
        let signalled = channel.wait(-1);
        if !signalled {
            failed.as_mut_ptr::<u32>().write(1);
        }
        signalled
    };
    for thread in block.threads().filter(|_| signalled) {
        let word = word(mine, thread);
        word.store(2 * word.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}
// ANCHOR_END: twin
