//! Calls of random routings.

use std::time::Duration;

use mscclpp::DevicePtr;
use mscclpp_ep::{Dispatch, Experts, Layout, Memory};
use mscclpp_test_support::Random;

use crate::{
    checked::{
        Options, check_dispatch, check_sums, combine, connect, dispatch, put, to_combine, tokens_of_all,
    },
    rounds::{any, any_of, run, without_the_host},
    support::{memory, ranks},
};

#[test]
fn random_routings_have_the_rows_and_the_bits_of_the_oracle() {
    let mut random = Random::new();
    for _ in 0..12 {
        let (model, options) = any(&mut random);
        run(&model, &options, 4, random.word());
    }
}

#[test]
fn there_may_be_sixteen_ranks() {
    let mut random = Random::new();
    for ranks in [5 + random.below(11), 16] {
        let (model, options) = any_of(ranks, &mut random);
        run(&model, &options, 2, random.word());
    }
}

/// A backward pass goes through the layers in the other order.
#[test]
fn a_routing_is_used_when_many_others_have_come() {
    let mut random = Random::new();
    let (model, options) = any(&mut random);
    let options = Options { layouts: vec![Layout::Token; model.ranks], exact: false, ..options };
    let seed = random.word();
    ranks(model.ranks, |comm, gpu| {
        let experts = connect(&model, &options, comm, gpu);
        let (stream, rank, mut random) =
            (gpu.stream().expect("a stream"), experts.rank(), Random::with_seed(seed));
        let layers: Vec<_> = (0..60)
            .map(|_| {
                let all = tokens_of_all(&model, &options, &mut random);
                let (routed, call) =
                    dispatch(&experts, &model, &options, &all[rank], (gpu, &stream), (0, false));
                routed.release(&stream).expect("a release");
                (all, routed, call)
            })
            .collect();
        for (all, routed, call) in layers.into_iter().rev() {
            let out: Vec<Memory> = call.out.iter().map(Memory::from).collect();
            experts.dispatch_again(&routed, &call.parts, &out, &stream).expect("a dispatch");
            let rows = model.rows(&all, rank);
            let (memories, sums) = to_combine(&model, &options, &all[rank], &call, &rows, rank, gpu);
            put(&experts, &options, &combine(&routed, &options, &memories, &sums), &stream);
            experts.synchronize(&stream).expect("the calls");
            check_dispatch(&model, &routed, &call, &[], &rows, rank);
            check_sums(&model, &options, &all[rank], (&memories, &sums), rank, "again");
        }
    });
}

#[test]
fn what_came_is_counted_on_the_device() {
    let mut random = Random::new();
    let (model, options) = any_of(3, &mut random);
    let layouts = vec![Layout::Flat { alignment: 4 }; model.ranks];
    let options = Options { layouts, row_weights: false, ..options };
    let seed = random.word();
    ranks(model.ranks, |comm, gpu| {
        let experts = connect(&model, &options, comm, gpu);
        let (stream, rank) = (gpu.stream().expect("a stream"), experts.rank());
        let mut random = Random::with_seed(seed);
        let all = tokens_of_all(&model, &options, &mut random);
        let (routed, _) = dispatch(&experts, &model, &options, &all[rank], (gpu, &stream), (0, false));
        let local = experts.n_local();
        let on_device = |from: DevicePtr, count: usize| {
            let copy = gpu.allocate(4 * count as u64 + 4).expect("memory");
            // SAFETY: both have so many numbers, and live until the stream is waited for.
            unsafe { stream.copy(copy.ptr(), from, 4 * count as u64) }.expect("a copy");
            experts.synchronize(&stream).expect("the dispatch");
            let mut numbers = vec![0u32; count];
            copy.read_params(0, &mut numbers).expect("numbers");
            numbers
        };
        let of_experts = on_device(routed.rows_of_experts_on_device(), local);
        assert_eq!(of_experts, routed.rows_of_experts().expect("counts"));
        let of_ranks = on_device(routed.rows_of_ranks_on_device(), model.ranks);
        assert_eq!(of_ranks, routed.rows_of_ranks().expect("counts"));
        let offsets = on_device(routed.offsets_on_device(), local + 1);
        assert_eq!(offsets[0], 0);
        for (expert, rows) in of_experts.iter().enumerate() {
            let next = offsets[expert] + rows.next_multiple_of(4);
            assert_eq!(offsets[expert + 1], next, "{offsets:?}, {of_experts:?}");
        }
    });
}

#[test]
fn rows_may_be_short_or_long_and_choices_many() {
    let mut random = Random::new();
    for (hidden, top_k, experts, capacity) in [
        (8, 1, 2, 3),
        (16384, 2, 4, 2),
        (32, 64, 70, 5),
        (12, 8, 256, 140),
        (7168, 8, 32, 3),
        (16, 2, 4, 700),
    ] {
        let (mut model, options) = any(&mut random);
        (model.hidden, model.top_k, model.experts, model.capacity) = (hidden, top_k, experts, capacity);
        model.map = (0..experts).map(|expert| expert * model.ranks / experts).collect();
        run(&model, &options, 2, random.word());
    }
}

/// Ranks with 512 tokens or more, whose rows GPUs copy while others come, beside ranks with fewer.
#[test]
fn many_tokens_and_few_are_dispatched_together() {
    let mut random = Random::new();
    for _ in 0..4 {
        let (mut model, options) = loop {
            let (model, options) = any(&mut random);
            if model.quantisation.is_none() && !options.layouts.contains(&Layout::Rank) {
                break (model, options);
            }
        };
        (model.capacity, model.hidden) = (512 + random.below(200), 4 * (1 + random.below(200)));
        run(&model, &options, 3, random.word());
    }
}

#[test]
fn calls_follow_each_other_without_the_host() {
    let mut random = Random::new();
    for i in 0..8 {
        let (model, options) = any(&mut random);
        without_the_host(&model, &options, 5, random.word(), i % 2 == 0);
    }
}

/// Rank 0 waits for rank 1, which begins when rank 0 has waited for a while.
#[test]
fn waits_are_counted_for_the_rank_that_is_late() {
    ranks(2, |comm, gpu| {
        let experts =
            Experts::builder(comm, gpu).experts(2).hidden(8).capacity(4).connect().expect("experts");
        let stream = gpu.stream().expect("a stream");
        let waits = memory(gpu, &[0; 16]);
        let none = gpu.allocate(16).expect("memory");
        // A machine that is busy may start the kernel of rank 0 late.
        let was_seen = (0..50).any(|_| {
            let call = || {
                let dispatch = Dispatch::new(0, &none, &none).add_waits_to(&waits);
                let routed = experts.dispatch(&dispatch, &stream).expect("a dispatch");
                routed.release(&stream).expect("a release");
            };
            if experts.rank() == 0 {
                call();
                std::thread::sleep(Duration::from_millis(50));
            }
            comm.bootstrap().barrier().expect("both");
            if experts.rank() == 1 {
                call();
            }
            experts.synchronize(&stream).expect("the dispatch");
            let mut counted = [0u64; 2];
            waits.read_params(0, &mut counted).expect("numbers");
            let seen = counted[1] > 1_000_000 && counted[1] > counted[0];
            let seen = comm.bootstrap().all_gather(&[u8::from(seen)]).expect("both");
            seen[0][0] == 1
        });
        assert!(was_seen, "rank {}", experts.rank());
    });
}
