//! A kernel with a race, for the race detector of simulated devices:
//!
//!     MSCCLPP_SIM_RACES=1 cargo run -p mscclpp --example race

// ANCHOR: program
use std::time::Duration;

use mscclpp::prelude::*;

/// Reverses 64 numbers. A thread may read its word of `copy` before the other thread has written it.
const REVERSE: KernelSource<'static> = KernelSource::new(
    "reverse.cu",
    r#"
    extern "C" __global__ void reverse(unsigned int* numbers) {
      __shared__ unsigned int copy[64];
      copy[threadIdx.x] = numbers[threadIdx.x];
      // Here __syncthreads() is missing.
      numbers[threadIdx.x] = copy[63 - threadIdx.x];
    }
    "#,
);

fn main() -> mscclpp::Result<()> {
    let gpu = Platform::Sim.gpu(0)?;
    let (stream, numbers) = (gpu.stream()?, gpu.allocate(256)?);
    let kernel = Module::load(&gpu, &REVERSE)?.kernel("reverse")?;
    // SAFETY: this is the kernel's parameter.
    unsafe { kernel.launch(&stream, LaunchConfig::linear(1, 64), &KernelArgs::new().with(&numbers))? };
    stream.synchronize_timeout(Duration::from_secs(30))?;
    println!("no race was found");
    Ok(())
}
// ANCHOR_END: program
