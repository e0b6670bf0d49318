//! Ranks in a ring gather slices: each has one, and passes on the slices that come from the previous rank until all ranks
//! have all. The kernel, `ring_all_gather.cu` beside this file, is written as for the C++ library.

use std::{error::Error, sync::Arc, thread, time::Duration};

use mscclpp::{errors::BootstrapError, prelude::*};

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

/// No multiple of 16, so that slices begin and end anywhere.
const SLICE: u64 = (100 << 10) + 7;
const LIMIT: Duration = Duration::from_secs(60);
// ANCHOR: source
const KERNEL: KernelSource<'static> =
    KernelSource::new("ring_all_gather.cu", include_str!("ring_all_gather.cu"));
// ANCHOR_END: source

/// The bytes of a rank's slice.
fn slice_of(rank: usize) -> Vec<u8> {
    (0..SLICE).map(|i| (i * 7 + i / 256 + 31 * (rank as u64 + 1)) as u8).collect()
}

// ANCHOR: host
fn rank(bootstrap: impl Bootstrap + 'static, platform: Platform) -> Outcome {
    let (rank, n_ranks) = (bootstrap.rank(), bootstrap.n_ranks());
    let comm = Communicator::with_context(Arc::new(bootstrap), Context::on(platform));
    let gpu = comm.context().gpu(rank % platform.device_count()?)?;
    let buffer = gpu.allocate(n_ranks as u64 * SLICE)?;
    let ours = comm.register_buffer(&buffer, Transport::CUDA_IPC)?;
    buffer.write(rank as u64 * SLICE, &slice_of(rank))?;

    // The next rank and the previous one, which are one and the same if there are two.
    let mut neighbours = vec![(rank + 1) % n_ranks, (rank + n_ranks - 1) % n_ranks];
    neighbours.dedup();
    let config = EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(gpu.id()));
    let mesh = comm.mesh(config).peers(neighbours).memory(&ours).connect()?;
    let channels = mesh.memory_channels(&ours, None)?;
    let (to_next, from_previous) = (&channels[0], channels.last().expect("a neighbour").base());

    let kernel = Module::load(&gpu, &KERNEL)?.kernel("ring_all_gather")?;
    let stream = gpu.stream()?;
    let args = KernelArgs::new().with(to_next).with(from_previous);
    let args = args.with(rank as i32).with(n_ranks as i32).with(SLICE);
    // Every kernel is loaded, and every buffer ready, before a rank waits for another or puts into its buffer.
    comm.bootstrap().barrier()?;
    // SAFETY: these are the kernel's parameters.
    unsafe { kernel.launch(&stream, LaunchConfig::linear(2, 64), &args)? };
    stream.synchronize_or_abort(LIMIT, &channels)?;
    // ANCHOR_END: host
    let mut slice = vec![0; SLICE as usize];
    for owner in 0..n_ranks {
        buffer.read(owner as u64 * SLICE, &mut slice)?;
        assert!(slice == slice_of(owner), "the slice of rank {owner} is wrong at rank {rank}");
    }
    println!("rank {rank} on {gpu} has the slices of all {n_ranks} ranks");
    Ok(comm.bootstrap().barrier()?) // nobody frees memory that others still put into
}

fn main() -> Outcome {
    let platform = Platform::detect_or_sim()?;
    match Rendezvous::from_env() {
        // The program was started by hand: four ranks as threads.
        Err(BootstrapError::NotLaunched) => thread::scope(|scope| {
            let start = |bootstrap| scope.spawn(move || rank(bootstrap, platform));
            let ranks: Vec<_> = LocalBootstrap::group(4).into_iter().map(start).collect();
            ranks.into_iter().try_for_each(|rank| rank.join().expect("a rank panicked"))
        }),
        // The program was started by mpirun, torchrun or srun: one rank in each process.
        rendezvous => rank(rendezvous?.connect(LIMIT)?, platform),
    }
}
