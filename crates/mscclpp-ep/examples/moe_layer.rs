//! A mixture-of-experts layer of eight experts by four ranks, and by one: all bits are the same.
//!
//!     cargo run -p mscclpp-ep --example moe_layer
//!
//! The ranks are threads, on simulated devices where there are no GPUs. Each token goes to two experts, each of which multiplies
//! it by a matrix of its own; the token's rank sums what comes back with the weights of the router.

use std::{error::Error, sync::Arc, thread};

use mscclpp::{DeviceBuffer, KernelArgs, LaunchConfig, Module, prelude::*};
use mscclpp_ep::{Combine, Dispatch, Experts, Layout, NumberType};

const EXPERTS: usize = 8;
const TOP_K: usize = 2;
const HIDDEN: usize = 32;
/// The tokens of the whole layer.
const TOKENS: usize = 48;

// ANCHOR: kernel
/// Block `e` does the work of local expert `e`: it multiplies each of the expert's rows by the expert's matrix.
const KERNEL: KernelSource<'static> = KernelSource::new(
    "experts.cu",
    r#"
    extern "C" __global__ void experts(const float* rows, float* made, const float* matrices, const unsigned* counts,
                                       unsigned most, unsigned hidden) {
      const float* const matrix = matrices + blockIdx.x * hidden * hidden;
      for (unsigned row = blockIdx.x * most; row < blockIdx.x * most + counts[blockIdx.x]; ++row) {
        float sum = 0;
        for (unsigned i = 0; i < hidden; ++i) sum += rows[row * hidden + i] * matrix[i * hidden + threadIdx.x];
        made[row * hidden + threadIdx.x] = sum;
      }
    }
    "#,
);
// ANCHOR_END: kernel

fn main() -> Result<(), Box<dyn Error>> {
    let platform = Platform::detect_or_sim()?;
    println!("on {platform}");
    let by_four = layer(platform, 4);
    let by_one = layer(platform, 1);
    assert!(by_four.iter().zip(&by_one).all(|(four, one)| four.to_bits() == one.to_bits()));
    println!("{TOKENS} tokens through {EXPERTS} experts: four ranks have the bits of one");
    Ok(())
}

/// Runs the layer by so many ranks, each a thread. Returns all tokens' numbers.
fn layer(platform: Platform, n_ranks: usize) -> Vec<f32> {
    thread::scope(|scope| {
        let ranks: Vec<_> = LocalBootstrap::group(n_ranks)
            .into_iter()
            .map(|bootstrap| {
                scope.spawn(move || {
                    let comm = Communicator::with_context(Arc::new(bootstrap), Context::on(platform));
                    let out = rank(&comm).unwrap_or_else(|error| panic!("{error}"));
                    // Ranks leave together.
                    comm.bootstrap().barrier().expect("all ranks are done");
                    out
                })
            })
            .collect();
        ranks.into_iter().flat_map(|rank| rank.join().expect("a rank")).collect()
    })
}

/// One rank: its share of the tokens, and its share of the experts.
fn rank(comm: &Communicator) -> Result<Vec<f32>, Box<dyn Error>> {
    let (rank, n_ranks) = (comm.bootstrap().rank(), comm.bootstrap().n_ranks());
    let devices = comm.context().platform()?.device_count()?;
    let gpu = comm.context().gpu(rank % devices)?;
    let stream = gpu.stream()?;
    let floats = |numbers: &[f32]| -> Result<DeviceBuffer, mscclpp::errors::GpuError> {
        let buffer = gpu.allocate(4 * numbers.len() as u64)?;
        buffer.write_params(0, numbers)?;
        Ok(buffer)
    };

    // Kernels are loaded before any of them waits for another rank.
    let kernel = Module::load(&gpu, &KERNEL)?.kernel("experts")?;

    // ANCHOR: layer
    let capacity = TOKENS / n_ranks;
    let experts = Experts::builder(comm, &gpu)
        .experts(EXPERTS)
        .top_k(TOP_K)
        .hidden(HIDDEN)
        .number_type(NumberType::F32)
        .capacity(capacity)
        .exact(true)
        .connect()?;

    // This rank's tokens, and the router's choice for each: two experts and their weights.
    let tokens = rank * capacity..(rank + 1) * capacity;
    let numbers: Vec<f32> =
        tokens.clone().flat_map(|t| (0..HIDDEN).map(move |i| noise(t * HIDDEN + i))).collect();
    let ids: Vec<i32> =
        tokens.clone().flat_map(|t| [t * 5 % 8, t * 3 % 8]).map(|expert| expert as i32).collect();
    let weights: Vec<f32> = tokens.flat_map(|t| [0.5 + noise(t) / 4.0, 0.5 - noise(t) / 4.0]).collect();
    let topk_ids = gpu.allocate(4 * ids.len() as u64)?;
    topk_ids.write_params(0, &ids)?;

    // Every token goes to the ranks of its experts. Each expert gets its rows side by side.
    let most = n_ranks * capacity;
    let bytes = (4 * experts.n_local() * most * HIDDEN) as u64;
    let (rows, made) = (gpu.allocate(bytes)?, gpu.allocate(bytes)?);
    let dispatch = Dispatch::new(capacity, &topk_ids, &floats(&numbers)?)
        .weights(&floats(&weights)?)
        .into(Layout::Expert, &rows);
    let routed = experts.dispatch(&dispatch, &stream)?;

    // The experts work. The number of rows is on the device: nothing waits for the host.
    let first = rank * experts.n_local();
    let of_expert = |e: usize| (0..HIDDEN * HIDDEN).map(move |i| noise(1000 * (first + e + 1) + i));
    let matrices: Vec<f32> = (0..experts.n_local()).flat_map(of_expert).collect();
    let matrices = floats(&matrices)?;
    let args =
        KernelArgs::new().with(&rows).with(&made).with(&matrices).with(routed.rows_of_experts_on_device());
    let args = args.with(most as u32).with(HIDDEN as u32);
    let config = LaunchConfig::linear(experts.n_local() as u32, HIDDEN as u32);
    // SAFETY: these are the kernel's parameters, and it stays within the memory: no expert has more than `most` rows.
    unsafe { kernel.launch(&stream, config, &args)? };

    // The rows come back, and each token is their sum.
    let sums = gpu.allocate(4 * (capacity * HIDDEN) as u64)?;
    experts.combine(&Combine::new(&routed, &made, &sums).exact(), &stream)?;
    experts.synchronize(&stream)?;
    // ANCHOR_END: layer
    let mut out = vec![0f32; capacity * HIDDEN];
    sums.read_params(0, &mut out)?;
    Ok(out)
}

/// Numbers from -1 to 1 that look random.
fn noise(seed: usize) -> f32 {
    let mixed = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 40) as f32 / (1 << 23) as f32 - 1.0
}
