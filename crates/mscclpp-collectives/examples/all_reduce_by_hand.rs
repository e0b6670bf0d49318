//! An `all_reduce` built of channels, in two ways: what the crate does, as small as it can be. The book's page
//! "Collectives" leads through it.

use std::{error::Error, sync::Arc, thread};

use mscclpp::{
    channels::{LL16Packet, Packet},
    prelude::*,
};

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

const KERNELS: KernelSource<'static> =
    KernelSource::new("all_reduce_by_hand.cu", include_str!("all_reduce_by_hand.cu"));
const RANKS: usize = 4;
/// A multiple of 2 * RANKS.
const COUNT: usize = 4096;

fn rank(bootstrap: LocalBootstrap, platform: Platform) -> Outcome {
    let (rank, ranks) = (bootstrap.rank(), bootstrap.n_ranks());
    let comm = Communicator::with_context(Arc::new(bootstrap), Context::on(platform));
    let gpu = comm.context().gpu(rank % platform.device_count()?)?;
    let bytes = 4 * COUNT as u64;

    // ANCHOR: channels
    // A slot for each peer, in two halves.
    let packet_bytes = 2 * (ranks as u64 - 1) * LL16Packet::buffer_size(bytes);
    let (numbers, packets) = (gpu.allocate(bytes)?, gpu.allocate(packet_bytes)?);
    let our_numbers = comm.register_buffer(&numbers, Transport::CUDA_IPC)?;
    let our_packets = comm.register_buffer(&packets, Transport::CUDA_IPC)?;
    let config = EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(gpu.id()));
    let mesh = comm.mesh(config).memory(&our_numbers).memory(&our_packets).connect()?;
    let to_numbers = mesh.memory_channels(&our_numbers, None)?;
    let to_packets: Vec<MemoryChannel> = mesh
        .links()
        .iter()
        .map(|link| {
            MemoryChannel::new(&link.semaphores[0], &link.memories[1], &our_numbers, Some(&our_packets))
        })
        .collect::<Result<_, _>>()?;
    // ANCHOR_END: channels

    let module = Module::load(&gpu, &KERNELS)?;
    let (one_step, two_steps) = (module.kernel("one_step")?, module.kernel("two_steps")?);
    let stream = gpu.stream()?;
    let args = |channels: &[MemoryChannel]| {
        let args = KernelArgs::new().with_array(&gpu, channels).with(&numbers).with(COUNT as u64);
        args.with(rank as u32).with(ranks as u32)
    };
    // SAFETY: these are the kernels' parameters.
    let launch = |kernel: &Kernel, args: KernelArgs| unsafe {
        kernel.launch(&stream, LaunchConfig::linear(1, 64), &args)
    };
    for round in 1..=6u32 {
        numbers.write_params(0, &[round * (1 + rank as u32); COUNT])?;
        // Nobody reads numbers that are still the last round's.
        comm.bootstrap().barrier()?;
        match round % 2 {
            0 => launch(&two_steps, args(&to_numbers))?,
            _ => launch(&one_step, args(&to_packets).with(round))?,
        }
        stream.synchronize()?;
        let (mut sums, sum) = ([0u32; COUNT], round * (ranks * (ranks + 1) / 2) as u32);
        numbers.read_params(0, &mut sums)?;
        assert!(sums.iter().all(|found| *found == sum), "round {round}: {} instead of {sum}", sums[0]);
    }
    comm.bootstrap().barrier()?;
    Ok(())
}

fn main() -> Outcome {
    let platform = Platform::detect_or_sim()?;
    let ranks = LocalBootstrap::group(RANKS).into_iter();
    let threads = ranks.map(|bootstrap| thread::spawn(move || rank(bootstrap, platform)));
    threads.collect::<Vec<_>>().into_iter().try_for_each(|rank| rank.join().expect("a rank panicked"))?;
    println!("{RANKS} ranks on {platform}: Succeed!");
    Ok(())
}
