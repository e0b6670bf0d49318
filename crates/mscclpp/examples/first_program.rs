//! Two ranks whose kernels exchange bytes: the program of the page "A first program" of the book.

// ANCHOR: imports
use std::{sync::Arc, thread, time::Duration};

use mscclpp::prelude::*;

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

const BYTES: u64 = 1 << 20;
// ANCHOR_END: imports

// ANCHOR: kernel
/// Runs on each device: puts this rank's bytes into the peer's memory, says so, and waits for the peer's bytes.
const KERNEL: KernelSource<'static> = KernelSource::new(
    "exchange.cu",
    r#"
    #include <mscclpp/memory_channel_device.hpp>

    extern "C" __global__ void exchange(mscclpp::MemoryChannelDeviceHandle channel, uint64_t bytes) {
      channel.put(0, 0, bytes, threadIdx.x, blockDim.x);
      __syncthreads();  // all threads have put
      if (threadIdx.x == 0) {
        channel.signal();
        channel.wait();  // nothing follows that uses the data; if this fails, the host is told
      }
    }
    "#,
);
// ANCHOR_END: kernel

fn rank(bootstrap: impl Bootstrap + 'static, platform: Platform) -> Outcome {
    // ANCHOR: objects
    let (me, peer) = (bootstrap.rank(), 1 - bootstrap.rank());
    let comm = Communicator::with_context(Arc::new(bootstrap), Context::on(platform));
    let gpu = comm.context().gpu(me % platform.device_count()?)?;
    // ANCHOR_END: objects

    // ANCHOR: memory
    // Device memory: what this rank sends, and where the peer's bytes arrive. The peer may write to the latter.
    let (outbox, inbox) = (gpu.allocate(BYTES)?, gpu.allocate(BYTES)?);
    outbox.fill(0, BYTES, 10 + me as u8)?;
    let source = comm.register_buffer(&outbox, Transport::CUDA_IPC)?;
    let target = comm.register_buffer(&inbox, Transport::CUDA_IPC)?;
    // ANCHOR_END: memory

    // ANCHOR: mesh
    // A connection with every other rank, the memories exchanged, and a channel that kernels use.
    let config = EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(gpu.id()));
    let mesh = comm.mesh(config).memory(&target).connect()?;
    let channel = &mesh.memory_channels(&source, None)?[0];
    // ANCHOR_END: mesh

    // ANCHOR: launch
    let kernel = Module::load(&gpu, &KERNEL)?.kernel("exchange")?;
    let stream = gpu.stream()?;
    comm.bootstrap().barrier()?; // both have loaded their kernel before one waits
    let args = KernelArgs::new().with(channel).with(BYTES);
    // SAFETY: these are the kernel's parameters.
    unsafe { kernel.launch(&stream, LaunchConfig::linear(1, 256), &args)? };
    stream.synchronize_or_abort(Duration::from_secs(30), channel.semaphore())?;
    // ANCHOR_END: launch

    // ANCHOR: check
    let mut received = vec![0; BYTES as usize];
    inbox.read(0, &mut received)?;
    assert!(received.iter().all(|byte| *byte == 10 + peer as u8), "not the bytes of rank {peer}");
    println!("rank {me} on {gpu}: {BYTES} bytes of rank {peer} have arrived");
    Ok(comm.bootstrap().barrier()?) // nobody frees memory that the other still uses
    // ANCHOR_END: check
}

// ANCHOR: main
fn main() -> Outcome {
    // GPUs, if there are some; else devices simulated on the CPU.
    let platform = Platform::detect_or_sim()?;
    // Two ranks, here as threads. A process that mpirun, torchrun or srun started has its own rank's:
    // Rendezvous::from_env()?.connect(Duration::from_secs(30))?
    let ranks = LocalBootstrap::group(2)
        .into_iter()
        .map(|bootstrap| thread::spawn(move || rank(bootstrap, platform)));
    ranks.collect::<Vec<_>>().into_iter().try_for_each(|rank| rank.join().expect("a rank panicked"))
}
// ANCHOR_END: main
