//! An `all_reduce` between two ranks: the first program of the README.

// ANCHOR: program
use std::{error::Error, sync::Arc, thread};

use mscclpp::prelude::*;
use mscclpp_collectives::{Collectives, DeviceSlice, ReduceOp};

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

/// Rank 0 gives 1024 ones, rank 1 gives 1024 twos, and both get 1024 threes.
fn rank(bootstrap: LocalBootstrap, platform: Platform) -> Outcome {
    let rank = bootstrap.rank();
    let comm = Communicator::with_context(Arc::new(bootstrap), Context::on(platform));
    let gpu = comm.context().gpu(rank % platform.device_count()?)?;
    let collectives = Collectives::new(&comm, &gpu)?;
    let numbers = DeviceSlice::<f32>::new(&gpu.allocate(4 * 1024)?)?;
    numbers.write(&[1.0 + rank as f32; 1024])?;
    let stream = gpu.stream()?;
    collectives.all_reduce(&numbers, &numbers, ReduceOp::Sum, &stream)?; // in place
    collectives.synchronize(&stream)?;
    println!("rank {rank} on {gpu}: every sum is {}", numbers.read()?[0]);
    Ok(comm.bootstrap().barrier()?) // no rank ends before the other has its sums
}

fn main() -> Outcome {
    let platform = Platform::detect_or_sim()?; // GPUs, or devices simulated on the CPU
    let start = |bootstrap| thread::spawn(move || rank(bootstrap, platform));
    let ranks: Vec<_> = LocalBootstrap::group(2).into_iter().map(start).collect();
    ranks.into_iter().try_for_each(|rank| rank.join().expect("a rank panicked"))
}
// ANCHOR_END: program
