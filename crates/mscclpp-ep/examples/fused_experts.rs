//! A layer with a mixture of experts whose kernels do more than to send and to sum: dispatch quantises tokens in a way of its
//! own, and combine adds the residual.
//!
//!     cargo run -p mscclpp-ep --example fused_experts
//!
//! The ranks are threads, on simulated devices where there are no GPUs.

use std::{error::Error, sync::Arc, thread};

use mscclpp::{DeviceBuffer, KernelArgs, LaunchConfig, Module, prelude::*};
use mscclpp_ep::{Combine, Dispatch, Experts, Layout, NumberType};

const RANKS: usize = 4;
const EXPERTS: usize = 8;
const TOP_K: usize = 2;
const HIDDEN: usize = 64;
/// The tokens of a rank.
const TOKENS: usize = 6;

const KERNELS: KernelSource<'static> = KernelSource::new(
    "fused_experts.cu",
    // ANCHOR: kernels
    r#"
    #include "mscclpp/ep_device.hpp"
    using namespace mscclpp;

    // Tokens travel as whole numbers of 8 bits (tensor 0), with one scale each (tensor 1).
    struct Int8Rows : EpMadeRows {
      const float* x;
      uint32_t hidden;
      float scale;

      __device__ Int8Rows(const float* x, uint32_t hidden) : x(x), hidden(hidden), scale(0) {}

      __device__ void begin(uint32_t token) {
        float most = 0;
        for (uint32_t i = threadIdx.x % 32; i < hidden; i += 32) most = fmaxf(most, fabsf(x[token * hidden + i]));
        for (int distance = 16; distance > 0; distance /= 2) {
          most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, distance));
        }
        scale = most / 127;
      }

      __device__ Bytes16 vector(uint32_t token, uint32_t tensor, uint32_t i) const {
        if (tensor == 1) return Bytes16{detail::bitsAs<uint32_t>(scale), 0};
        uint64_t words[2] = {0, 0};
        for (uint32_t j = 0; j < 16 && i * 16 + j < hidden; ++j) {
          const float number = scale == 0 ? 0 : rintf(x[token * hidden + i * 16 + j] / scale);
          words[j / 8] |= static_cast<uint64_t>(static_cast<uint8_t>(static_cast<int8_t>(number))) << (j % 8 * 8);
        }
        return Bytes16{words[0], words[1]};
      }
    };

    extern "C" __global__ void __launch_bounds__(1024)
        quantise_and_dispatch(const float* x, uint32_t hidden, const MSCCLPP_GRID_CONSTANT EpHandle ep,
                              const MSCCLPP_GRID_CONSTANT EpDispatch call) {
      waitForEarlierLaunches();
      __shared__ EpDispatchShared shared;
      extern __shared__ uint32_t counts[];
      dispatchRows(ep, call, shared, counts, Int8Rows(x, hidden));
    }

    // The sum of a token's experts is added to the token.
    struct AddResidual {
      const float* x;
      uint32_t hidden;

      template <uint32_t Count>
      __device__ void finish(uint32_t token, uint32_t first, float (&numbers)[Count]) const {
        for (uint32_t j = 0; j < Count; ++j) numbers[j] += x[token * hidden + first + j];
      }
    };

    extern "C" __global__ void __launch_bounds__(1024)
        combine_and_add(const float* x, uint32_t hidden, const MSCCLPP_GRID_CONSTANT EpHandle ep,
                        const MSCCLPP_GRID_CONSTANT EpCombine call) {
      waitForEarlierLaunches();
      __shared__ EpCombineShared shared;
      combineRows<ReduceF32>(ep, call, shared, AddResidual{x, hidden});
    }

    // Block e does the work of local expert e, which multiplies by its number.
    extern "C" __global__ void experts(const int8_t* rows, const float* scales, float* made, const uint32_t* counts,
                                       uint32_t most, uint32_t hidden, uint32_t first) {
      for (uint32_t n = 0; n < counts[blockIdx.x]; ++n) {
        const uint32_t row = blockIdx.x * most + n;
        const float factor = scales[row] * static_cast<float>(first + blockIdx.x + 1);
        made[row * hidden + threadIdx.x] = rows[row * hidden + threadIdx.x] * factor;
      }
    }
    "#,
    // ANCHOR_END: kernels
);

fn main() -> Result<(), Box<dyn Error>> {
    let platform = Platform::detect_or_sim()?;
    println!("on {platform}");
    thread::scope(|scope| {
        let ranks: Vec<_> = LocalBootstrap::group(RANKS)
            .into_iter()
            .map(|bootstrap| {
                scope.spawn(move || {
                    let comm = Communicator::with_context(Arc::new(bootstrap), Context::on(platform));
                    rank(&comm).unwrap_or_else(|error| panic!("{error}"));
                    // Ranks leave together.
                    comm.bootstrap().barrier().expect("all ranks are done");
                })
            })
            .collect();
        ranks.into_iter().for_each(|rank| rank.join().expect("a rank"));
    });
    println!(
        "{RANKS} ranks with {TOKENS} tokens each: quantised by dispatch, and the residual added by combine"
    );
    Ok(())
}

fn rank(comm: &Communicator) -> Result<(), Box<dyn Error>> {
    let rank = comm.bootstrap().rank();
    let gpu = comm.context().gpu(rank % comm.context().platform()?.device_count()?)?;
    let stream = gpu.stream()?;
    let floats = |numbers: &[f32]| -> Result<DeviceBuffer, mscclpp::errors::GpuError> {
        let buffer = gpu.allocate(4 * numbers.len() as u64)?;
        buffer.write_params(0, numbers)?;
        Ok(buffer)
    };

    // Kernels are loaded before any of them waits for another rank.
    let module = Module::load(&gpu, &KERNELS)?;
    let numbers: Vec<f32> =
        (0..TOKENS * HIDDEN).map(|i| ((i * 37 + rank * 11) % 255) as f32 - 127.0).collect();
    let ids: Vec<i32> =
        (0..TOKENS).flat_map(|t| [(t + rank) % EXPERTS, (3 * t + 1) % EXPERTS]).map(|e| e as i32).collect();
    let weights = [0.5f32, 0.25].repeat(TOKENS);
    let topk_ids = gpu.allocate(4 * ids.len() as u64)?;
    topk_ids.write_params(0, &ids)?;
    let x = floats(&numbers)?;

    // ANCHOR: calls
    // Rows of 8 bits a number travel, and a scale of 4 bytes; combine sums rows of HIDDEN floats.
    let experts = Experts::builder(comm, &gpu)
        .experts(EXPERTS)
        .top_k(TOP_K)
        .hidden(HIDDEN)
        .number_type(NumberType::F32)
        .row_bytes(HIDDEN)
        .also(4)
        .capacity(TOKENS)
        .connect()?;
    let most = RANKS * TOKENS * experts.n_local();
    let (rows, scales) = (gpu.allocate((most * HIDDEN) as u64)?, gpu.allocate((most * 4) as u64)?);
    let dispatch = Dispatch::of_kernel(TOKENS, &topk_ids)
        .weights(&floats(&weights)?)
        .into(Layout::Expert, &rows)
        .and(&scales);
    let own = || KernelArgs::new().with(&x).with(HIDDEN as u32);
    // SAFETY: the kernel's own parameters are the tokens and their size.
    let routed =
        unsafe { experts.dispatch_by(&module.kernel("quantise_and_dispatch")?, own(), &dispatch, &stream)? };
    // ANCHOR_END: calls

    let made = gpu.allocate((4 * most * HIDDEN) as u64)?;
    let args =
        KernelArgs::new().with(&rows).with(&scales).with(&made).with(routed.rows_of_experts_on_device());
    let args = args.with((RANKS * TOKENS) as u32).with(HIDDEN as u32).with((rank * experts.n_local()) as u32);
    let config = LaunchConfig::linear(experts.n_local() as u32, HIDDEN as u32);
    // SAFETY: these are the kernel's parameters, and it stays within the memory.
    unsafe { module.kernel("experts")?.launch(&stream, config, &args)? };

    // ANCHOR: combine
    let sums = gpu.allocate((4 * TOKENS * HIDDEN) as u64)?;
    let combine = Combine::new(&routed, &made, &sums);
    // SAFETY: as above.
    unsafe { experts.combine_by(&module.kernel("combine_and_add")?, own(), &combine, &stream)? };
    experts.synchronize(&stream)?;
    // ANCHOR_END: combine

    let mut out = vec![0f32; TOKENS * HIDDEN];
    sums.read_params(0, &mut out)?;
    for (token, row) in numbers.chunks(HIDDEN).enumerate() {
        let scale = row.iter().fold(0f32, |most, number| most.max(number.abs())) / 127.0;
        for (i, number) in row.iter().enumerate() {
            let there = (number / scale).round_ties_even() * scale;
            let factor: f32 =
                (0..TOP_K).map(|k| weights[token * TOP_K + k] * (ids[token * TOP_K + k] + 1) as f32).sum();
            let (got, expected) = (out[token * HIDDEN + i], number + factor * there);
            assert!((got - expected).abs() <= 1e-4 * expected.abs().max(1.0), "{got} for {expected}");
        }
    }
    Ok(())
}
