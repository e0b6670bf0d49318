//! A kernel of your own: `swap_words.cu` beside this file, launched on two devices, which exchange data and signals.
//!
//! It is compiled when the program runs: for GPUs by NVRTC (found through `MSCCLPP_NVRTC_SO`, in a CUDA toolkit, or on the
//! loader's path), for simulated devices by a C++ compiler. With one GPU both sides run on it.

mod two_devices;

use std::{error::Error, process::ExitCode, time::Duration};

use mscclpp::{Kernel, Stream, prelude::*};

// ANCHOR: source
const SWAP_WORDS: KernelSource<'static> = KernelSource::new("swap_words.cu", include_str!("swap_words.cu"));
// ANCHOR_END: source

const THREADS: u32 = 64;
const BYTES: u64 = 8 * THREADS as u64;
const LIMIT: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    two_devices::main("custom_kernel", run)
}

fn run(chosen: Option<[usize; 2]>) -> Result<(), Box<dyn Error>> {
    let platform = Platform::detect_or_sim()?;
    let ids = two_devices::numbers(chosen, platform)?;
    println!("Platform: {platform}, {} device(s)", platform.device_count()?);

    let context = Context::on(platform);
    let endpoints = [open(&context, ids[0])?, open(&context, ids[1])?];
    let connections =
        [context.connect(&endpoints[0], &endpoints[1])?, context.connect(&endpoints[1], &endpoints[0])?];
    let stubs = [SemaphoreStub::new(&connections[0])?, SemaphoreStub::new(&connections[1])?];
    let channels = [
        BaseMemoryChannel::new(&Semaphore::new(&stubs[0], &stubs[1])?)?,
        BaseMemoryChannel::new(&Semaphore::new(&stubs[1], &stubs[0])?)?,
    ];
    // The memory that each side registers and the other reaches through its connection.
    let buffers = [context.gpu(ids[0])?.allocate(BYTES)?, context.gpu(ids[1])?.allocate(BYTES)?];
    let memories = [
        context.register_buffer(&buffers[0], Transport::CUDA_IPC)?,
        context.register_buffer(&buffers[1], Transport::CUDA_IPC)?,
    ];
    let sides = [Side::new(&context.gpu(ids[0])?)?, Side::new(&context.gpu(ids[1])?)?];

    play(&sides, &channels, |i| {
        let theirs = connections[i].peer_ptr(&memories[1 - i])?;
        let theirs = theirs.ok_or("this transport does not let kernels reach the peer's memory")?;
        // ANCHOR: arguments
        Ok(KernelArgs::new()
            .with(&channels[i])
            .with(&buffers[i])
            .with(theirs)
            .keeping(memories[1 - i].clone())
            .with(value(i))
            .with(&sides[i].failed))
        // ANCHOR_END: arguments
    })?;

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
        // SAFETY: these are the kernel's arguments, and they keep what they point to.
        unsafe { side.kernel.launch(&side.stream, LaunchConfig::linear(1, THREADS), arguments)? };
    }
    for side in sides {
        // ANCHOR: finish
        side.stream.synchronize_or_abort(LIMIT, channels)?;
        // ANCHOR_END: finish
        let mut failed = [0; 4];
        side.failed.read(0, &mut failed)?;
        if failed != [0; 4] {
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

// ANCHOR: load
struct Side {
    kernel: Kernel,
    stream: Stream,
    /// Device memory: not 0 if a wait failed.
    failed: DeviceBuffer,
}

impl Side {
    fn new(gpu: &Gpu) -> mscclpp::Result<Self> {
        let kernel = Module::load(gpu, &SWAP_WORDS)?.kernel("swap_words")?;
        Ok(Self { kernel, stream: gpu.stream()?, failed: gpu.allocate(4)? })
    }
}
// ANCHOR_END: load
