//! An `all_reduce` of all devices of this machine: one rank, a thread, for each GPU, or for four simulated devices.

use std::{error::Error, sync::Arc, thread, time::Instant};

use mscclpp::prelude::*;
use mscclpp_collectives::{Collectives, DeviceSlice, MAX_RANKS, ReduceOp};

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

fn rank(bootstrap: LocalBootstrap, platform: Platform, count: usize) -> Outcome {
    let (rank, ranks) = (bootstrap.rank(), bootstrap.n_ranks());
    let comm = Communicator::with_context(Arc::new(bootstrap), Context::on(platform));
    let gpu = comm.context().gpu(rank)?;
    let collectives = Collectives::new(&comm, &gpu)?;

    let numbers = DeviceSlice::<f32>::new(&gpu.allocate(4 * count as u64)?)?;
    numbers.write(&vec![1.0 + rank as f32; count])?;
    let stream = gpu.stream()?;
    collectives.all_reduce(&numbers, &numbers, ReduceOp::Sum, &stream)?; // in place
    collectives.synchronize(&stream)?;

    let sum = (ranks * (ranks + 1) / 2) as f32; // 1 + 2 + ... + ranks
    assert!(numbers.read()?.iter().all(|number| *number == sum));

    // What was launched once is loaded; now for the time.
    const ROUNDS: u32 = 20;
    collectives.barrier(&stream)?;
    stream.synchronize()?;
    let begin = Instant::now();
    for _ in 0..ROUNDS {
        collectives.all_reduce(&numbers, &numbers, ReduceOp::Max, &stream)?;
    }
    collectives.synchronize(&stream)?;
    if rank == 0 {
        let time = begin.elapsed() / ROUNDS;
        println!("{ranks} ranks on {platform}, {} bytes: {time:.1?} a call", 4 * count);
    }
    comm.bootstrap().barrier()?; // before this rank's memory goes
    Ok(())
}

fn main() -> Outcome {
    let platform = Platform::detect_or_sim()?;
    let (ranks, count) = match platform {
        Platform::Sim => (4, 100_000),
        _ => (platform.device_count()?.min(MAX_RANKS), 10_000_000),
    };
    let threads: Vec<_> = LocalBootstrap::group(ranks)
        .into_iter()
        .map(|bootstrap| thread::spawn(move || rank(bootstrap, platform, count)))
        .collect();
    for thread in threads {
        thread.join().expect("a rank panicked")?;
    }
    println!("Succeed!");
    Ok(())
}
