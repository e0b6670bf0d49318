//! A kernel of the C++ library, unchanged, and its host side in Rust: `ring_all_gather.cu` beside this file hands slices of
//! a buffer on around a ring of ranks, until everybody has all of them. The page "Coming from C++ MSCCL++" of the book
//! follows it.
//!
//! Three ranks or more, each a process, on as many devices as there are; simulated ones if there is no GPU.

mod devices;
mod ranks;

use std::{error::Error, process::ExitCode, sync::Arc, time::Duration};

use mscclpp::prelude::*;
use ranks::{BadArguments, Program, Rank};

const PROGRAM: Program = Program {
    usage: "\
usage: ring_all_gather [ADDRESS]                    run all ranks, each in a process of its own
       ring_all_gather ADDRESS RANK GPU N_RANKS     run one of them; start the others in other terminals
ADDRESS is ip:port or interface:ip:port [default: lo:127.0.0.1:15505], RANK is below N_RANKS, which is 2 to 64,
GPU is a device number",
    devices: |count| (0..count.clamp(3, 8)).map(|rank| rank % count).collect(),
    more: |n_ranks| vec![n_ranks.to_string()],
    run,
};

const MAX_RANKS: usize = 64;
/// No multiple of 16, so that slices begin and end anywhere.
const SLICE: u64 = (100 << 10) + 7;
const LIMIT: Duration = Duration::from_secs(60);

// ANCHOR: source
const KERNEL: KernelSource<'static> =
    KernelSource::new("ring_all_gather.cu", include_str!("ring_all_gather.cu"));
// ANCHOR_END: source

fn main() -> ExitCode {
    PROGRAM.main()
}

fn run(this: &Rank) -> Result<(), Box<dyn Error>> {
    let n_ranks = match this.more.as_slice() {
        [n] => {
            n.parse().ok().filter(|n| (2..=MAX_RANKS).contains(n) && this.rank < *n).ok_or(BadArguments)?
        }
        _ => return Err(BadArguments.into()),
    };
    let rank = this.rank;
    let bootstrap = Arc::new(this.bootstrap(n_ranks)?);
    // ANCHOR: host
    let comm = Communicator::with_context(bootstrap.clone(), Context::on(this.platform));
    let gpu = comm.context().gpu(this.gpu)?;
    let buffer = gpu.allocate(n_ranks as u64 * SLICE)?;
    let ours = comm.register_buffer(&buffer, Transport::CUDA_IPC)?;

    // A connection for each edge of the ring. Its tag is the rank at its beginning: two ranks have two edges.
    let (next, previous) = ((rank + 1) % n_ranks, (rank + n_ranks - 1) % n_ranks);
    let (edge, edge_before) = (rank as u32, previous as u32);
    let config = EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(this.gpu));
    let to_next = comm.connect(config.clone(), next, edge)?;
    let from_previous = comm.connect(config, previous, edge_before)?;
    comm.send_memory(&ours, previous, edge_before)?;
    let theirs = comm.recv_memory(next, edge)?;
    let to_next = comm.build_semaphore(&to_next.wait()?)?;
    let from_previous = comm.build_semaphore(&from_previous.wait()?)?;

    let to_next = MemoryChannel::new(&to_next.wait()?, &theirs.wait()?, &ours, None)?;
    let from_previous = BaseMemoryChannel::new(&from_previous.wait()?)?;

    let kernel = Module::load(&gpu, &KERNEL)?.kernel("ring_all_gather")?;
    let stream = gpu.stream()?;
    let args = KernelArgs::new()
        .with(&to_next)
        .with(&from_previous)
        .with(rank as i32)
        .with(n_ranks as i32)
        .with(SLICE);
    buffer.write(rank as u64 * SLICE, &slice_of(rank))?;
    // Every kernel is loaded, and every buffer ready, before a rank waits for another or puts into its buffer.
    bootstrap.barrier()?;
    // SAFETY: these are the kernel's arguments, which keep the channels and with these the buffers.
    unsafe { kernel.launch(&stream, grid(this.platform), &args)? };
    // When time runs out, it ends the kernel's waits. The kernel has no results of its waits to look at: this does.
    stream.synchronize_or_abort(LIMIT, &[to_next.semaphore(), from_previous.semaphore()])?;
    // ANCHOR_END: host

    for owner in 0..n_ranks {
        let mut slice = vec![0; SLICE as usize];
        buffer.read(owner as u64 * SLICE, &mut slice)?;
        if slice != slice_of(owner) {
            return Err(format!("the slice of rank {owner} is wrong at rank {rank}").into());
        }
    }
    println!("GPU {}: has the slices of all {n_ranks} ranks ...", this.gpu);
    // Nobody takes its memory away while the other may still use it.
    bootstrap.barrier()?;
    if rank == 0 {
        println!("Succeed!");
    }
    Ok(())
}

fn grid(platform: Platform) -> LaunchConfig {
    match platform {
        Platform::Host => LaunchConfig::linear(2, 32),
        _ => LaunchConfig::linear(8, 512),
    }
}

/// Other bytes for each rank, and none like those beside them.
fn slice_of(rank: usize) -> Vec<u8> {
    (0..SLICE).map(|i| (i * 7 + i / 256 + 31 * (rank as u64 + 1)) as u8).collect()
}
