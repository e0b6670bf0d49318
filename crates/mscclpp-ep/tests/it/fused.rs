//! Kernels of the program in dispatch and combine: rows that they copy, and sums that they scale, are those of the library's own
//! kernels.

use mscclpp::{Kernel, KernelArgs, KernelSource, Module, prelude::*};
use mscclpp_ep::{Combine, Dispatch, Experts, Layout, NumberType};
use mscclpp_test_support::Random;

use crate::{
    oracle::{Model, Tokens},
    support::{bytes, memory, ranks, read, unwritten},
};

const KERNELS: KernelSource<'static> = KernelSource::new(
    "fused.cu",
    r#"
    #include "mscclpp/ep_device.hpp"
    using namespace mscclpp;

    struct Copied : EpMadeRows {
      const uint8_t* first;
      const uint8_t* second;
      uint32_t sizes[2];
      uint32_t begun;

      __device__ Copied(const uint8_t* first, const uint8_t* second, uint32_t size, uint32_t other)
          : first(first), second(second), sizes{size, other}, begun(~0u) {}
      __device__ void begin(uint32_t token) { begun = token; }
      __device__ Bytes16 vector(uint32_t token, uint32_t tensor, uint32_t i) const {
        uint64_t words[2] = {~uint64_t{0}, ~uint64_t{0}};
        const uint32_t size = sizes[tensor];
        const uint8_t* const row = (tensor == 0 ? first : second) + uint64_t{token} * size;
        for (uint32_t j = 0; j < 16 && i * 16 + j < size && begun == token; ++j) {
          words[j / 8] &= ~(uint64_t{0xff} << (j % 8 * 8));
          words[j / 8] |= uint64_t{row[i * 16 + j]} << (j % 8 * 8);
        }
        return Bytes16{words[0], words[1]};
      }
    };
    extern "C" __global__ void __launch_bounds__(1024)
        copied(const uint8_t* first, const uint8_t* second, uint32_t size, uint32_t other, const MSCCLPP_GRID_CONSTANT EpHandle ep,
               const MSCCLPP_GRID_CONSTANT EpDispatch call) {
      __shared__ EpDispatchShared shared;
      extern __shared__ uint32_t counts[];
      dispatchRows(ep, call, shared, counts, Copied(first, second, size, other));
    }

    struct Scaled {
      const float* factors;
      uint32_t hidden;
      template <uint32_t Count>
      __device__ void finish(uint32_t token, uint32_t first, float (&numbers)[Count]) const {
        for (uint32_t j = 0; j < Count; ++j) numbers[j] *= factors[token * hidden + first + j];
      }
    };
    extern "C" __global__ void __launch_bounds__(1024)
        scaled(const float* factors, uint32_t hidden, const MSCCLPP_GRID_CONSTANT EpHandle ep,
               const MSCCLPP_GRID_CONSTANT EpCombine call) {
      __shared__ EpCombineShared shared;
      combineRows<ReduceF32>(ep, call, shared, Scaled{factors, hidden});
    }
    "#,
);

/// The second tensor, in bytes.
const OTHER: usize = 20;

fn own(tokens: &Tokens, model: &Model, gpu: &Gpu) -> KernelArgs {
    let rows = |part: usize| memory(gpu, &tokens.parts[part]);
    KernelArgs::new().with(&rows(0)).with(&rows(1)).with((4 * model.hidden) as u32).with(OTHER as u32)
}

fn kernel(gpu: &Gpu, name: &str) -> Kernel {
    Module::load(gpu, &KERNELS).and_then(|module| module.kernel(name)).expect("a kernel")
}

#[test]
fn rows_that_a_kernel_copies_and_sums_that_it_scales_are_those_of_the_oracle() {
    let mut random = Random::new();
    for round in 0..6 {
        let n = 1 + random.below(4);
        let experts = n + random.below(4);
        let model = Model {
            ranks: n,
            experts,
            top_k: 1 + random.below(4),
            hidden: 4 * (1 + random.below(150)),
            capacity: 1 + random.below(9),
            number_type: NumberType::F32,
            quantisation: None,
            map: (0..experts).map(|_| random.below(n)).collect(),
        };
        let all: Vec<Tokens> = (0..n)
            .map(|_| {
                let count = random.below(model.capacity + 1);
                let choices = count * model.top_k;
                Tokens {
                    count,
                    ids: (0..choices).map(|_| random.below(experts + 1) as i64 - 1).collect(),
                    weights: (0..choices).map(|_| random.below(9) as f32).collect(),
                    parts: vec![random.bytes(count * model.hidden * 4), random.bytes(count * OTHER)],
                    biases: Vec::new(),
                }
            })
            .collect();
        println!("{model:?}, round {round}");
        ranks(n, |comm, gpu| one_rank(&model, &all, comm, gpu));
    }
}

fn one_rank(model: &Model, all: &[Tokens], comm: &Communicator, gpu: &Gpu) {
    let (copied, scaled) = (kernel(gpu, "copied"), kernel(gpu, "scaled"));
    let builder = Experts::builder(comm, gpu).experts(model.experts).expert_map(model.map.clone());
    let builder = builder.top_k(model.top_k).hidden(model.hidden).number_type(NumberType::F32);
    let experts = builder.also(OTHER).capacity(model.capacity).connect().expect("experts");
    let stream = gpu.stream().expect("a stream");
    let (rank, own_tokens) = (experts.rank(), &all[experts.rank()]);
    let rows = model.rows(all, rank);
    let most = model.ranks * model.capacity;
    let out = [4 * model.hidden, OTHER].map(|size| unwritten(gpu, (most * size) as u64));
    let ids = memory(gpu, &bytes(&own_tokens.ids, |id: i64| (id as i32).to_le_bytes()));
    let dispatch = Dispatch::of_kernel(own_tokens.count, &ids)
        .weights(&memory(gpu, &bytes(&own_tokens.weights, f32::to_le_bytes)))
        .into(Layout::Token, &out[0])
        .and(&out[1]);
    experts.dispatch(&dispatch, &stream).expect_err("the kernel is missing");
    // SAFETY: the kernel's own parameters are the tensors, which the arguments keep, and their sizes.
    let routed = unsafe { experts.dispatch_by(&copied, own(own_tokens, model, gpu), &dispatch, &stream) };
    let routed = routed.expect("a dispatch");
    experts.synchronize(&stream).expect("the dispatch");
    for (part, size) in [4 * model.hidden, OTHER].into_iter().enumerate() {
        let there = read(&out[part], 0, (rows.len() * size) as u64);
        let expected: Vec<u8> = rows.iter().flat_map(|row| row.parts[part].clone()).collect();
        assert!(there == expected, "rank {rank}, tensor {part}");
    }
    // Each rank gives back what is its own, as in the layouts with one row for all choices.
    let made: Vec<u8> = rows.iter().flat_map(|row| model.made_by_rank(row.source, row.token, rank)).collect();
    let mut made_rows = vec![0; most * model.result_bytes()];
    made_rows[..made.len()].copy_from_slice(&made);
    let sums = unwritten(gpu, (own_tokens.count * model.result_bytes()) as u64);
    let factors: Vec<f32> = (0..own_tokens.count * model.hidden).map(|i| (i % 7) as f32 - 3.0).collect();
    let given = memory(gpu, &bytes(&factors, f32::to_le_bytes));
    let combine = Combine::new(&routed, &memory(gpu, &made_rows), &sums);
    let args = KernelArgs::new().with(&given).with(model.hidden as u32);
    // SAFETY: as above.
    unsafe { experts.combine_by(&scaled, args, &combine, &stream) }.expect("a combine");
    experts.synchronize(&stream).expect("the combine");
    let unscaled = model.sums(own_tokens, rank, &vec![true; model.ranks], false);
    let expected: Vec<f32> = unscaled
        .chunks(4)
        .zip(&factors)
        .map(|(sum, factor)| f32::from_le_bytes(sum.try_into().expect("4 bytes")) * factor)
        .collect();
    assert!(read(&sums, 0, unscaled.len() as u64) == bytes(&expected, f32::to_le_bytes), "rank {rank}");
}
