//! Rounds of dispatches and combines of all ranks.

#![allow(dead_code, reason = "the program of mutants uses a part of this")]

use std::{cell::RefCell, time::Duration};

use mscclpp::DeviceBuffer;
use mscclpp_ep::{IdType, Layout, Memory, NumberType, Quantisation, Routed};
use mscclpp_test_support::{LIMIT, Random};

use crate::{
    checked::{
        Call, Options, ToCombine, check_dispatch, check_sums, combine, connect, copies, dispatch, put,
        to_combine, tokens_of_all,
    },
    oracle::{Model, Tokens},
    support::ranks,
};

/// One dispatch and its combine on each rank, of `rounds` random routings; then the same routing with other rows.
pub(crate) fn run(model: &Model, options: &Options, rounds: usize, seed: u64) {
    let options = &Options { statistics: true, ..options.clone() };
    println!("{model:?} {options:?}");
    ranks(model.ranks, |comm, gpu| {
        let experts = connect(model, options, comm, gpu);
        let stream = gpu.stream().expect("a stream");
        let mut random = Random::with_seed(seed);
        for round in 0..rounds {
            let all = tokens_of_all(model, options, &mut random);
            let (micro_batch, zero) = (round % 2, round % 3 == 0);
            let rank = experts.rank();
            let own = &all[rank];
            let rows = model.rows(&all, rank);
            let (routed, call) = dispatch(&experts, model, options, own, (gpu, &stream), (micro_batch, zero));
            let copy = copies(model, &routed, &call, (gpu, &stream));
            experts.synchronize(&stream).expect("the dispatch");
            check_dispatch(model, &routed, &call, &copy, &rows, rank);
            let (combined, sums) = to_combine(model, options, own, &call, &rows, rank, gpu);
            let combine = combine(&routed, options, &combined, &sums);
            // A routing may be used again: the second time all is the same.
            for time in 0..2 {
                put(&experts, options, &combine, &stream);
                experts.synchronize(&stream).expect("the combine");
                check_sums(
                    model,
                    options,
                    own,
                    (&combined, &sums),
                    rank,
                    &format!("round {round}, time {time}"),
                );
            }
            let memories =
                |buffers: &[DeviceBuffer]| -> Vec<Memory> { buffers.iter().map(Memory::from).collect() };
            let out: &[DeviceBuffer] = if call.layout == Layout::Rank { &[] } else { &call.out };
            out.iter().for_each(|out| out.fill(0, out.len(), 0xee).expect("bytes"));
            experts.dispatch_again(&routed, &call.parts, &memories(out), &stream).expect("a dispatch");
            let copy = copies(model, &routed, &call, (gpu, &stream));
            routed.release(&stream).expect("a release");
            experts.synchronize(&stream).expect("the dispatch");
            check_dispatch(model, &routed, &Call { zero: false, counts: None, ..call }, &copy, &rows, rank);
        }
    });
}

fn layout(random: &mut Random) -> Layout {
    match random.below(4) {
        0 => Layout::Rank,
        1 => Layout::Token,
        2 => Layout::Expert,
        _ => Layout::Flat { alignment: 1 + random.below(9) as u32 },
    }
}

/// A set-up and calls of any kind, of up to four ranks.
pub(crate) fn any(random: &mut Random) -> (Model, Options) {
    any_of(1 + random.below(4), random)
}

/// A set-up and calls of any kind, of so many ranks.
pub(crate) fn any_of(ranks: usize, random: &mut Random) -> (Model, Options) {
    let experts = ranks + random.below(8);
    let quantisation = [None, Some(Quantisation::E4m3), Some(Quantisation::E4m3Ue8m0)][random.below(3)];
    let types = [NumberType::Bf16, NumberType::F16, NumberType::F32];
    let exact = random.below(3) == 0;
    // Weights of rows travel back only if no rank has a row for each choice.
    let all_one_row = !exact && random.below(3) == 0;
    let model = Model {
        ranks,
        experts,
        top_k: 1 + random.below(5),
        hidden: 4 * (1 + random.below(70)),
        capacity: 1 + random.below(12),
        number_type: types[random.below(if quantisation.is_some() { 2 } else { 3 })],
        quantisation,
        map: (0..experts).map(|_| random.below(ranks)).collect(),
    };
    let layouts = (0..ranks).map(|_| {
        loop {
            let layout = layout(random);
            let one_row = matches!(layout, Layout::Rank | Layout::Token);
            if if exact { !one_row } else { one_row || !all_one_row } {
                break layout;
            }
        }
    });
    let layouts: Vec<Layout> = layouts.collect();
    let halves = (0..ranks).map(|_| random.below(3) == 0).collect();
    let one_row = layouts.iter().all(|layout| matches!(layout, Layout::Rank | Layout::Token));
    let late_weights = random.below(2) == 0;
    let options = Options {
        exact,
        late_weights,
        column_major: random.below(2) == 0,
        other_payload: random.below(2) == 0,
        halves,
        row_weights: one_row && !late_weights && random.below(2) == 0,
        statistics: false,
        survives: random.below(5) == 0,
        offset: 8 * random.below(2) as u64,
        max_blocks: 1 + random.below(5) as u32,
        id_type: [IdType::I32, IdType::I64][random.below(2)],
        also: (0..random.below(3)).map(|_| 4 * (1 + random.below(4))).collect(),
        crowded: random.below(8) == 0,
        layouts,
        kernels: None,
        limit: LIMIT,
    };
    (model, options)
}

/// A round of calls that are in a stream: what a rank gave, and where what came will be.
struct Round {
    routed: Routed,
    call: Call,
    memories: ToCombine,
    sums: DeviceBuffer,
    /// Copies of what came in the layout `Rank`, made before the rows were given back.
    copies: Vec<DeviceBuffer>,
}

/// Calls one behind the other without the host: eager, and if `graphs`, in two graphs that are replayed in turns with eager
/// calls, and may have been captured before the first call. Each dispatch is followed by up to three combines. Ranks come late.
pub(crate) fn without_the_host(model: &Model, options: &Options, rounds: usize, seed: u64, graphs: bool) {
    println!("{model:?} {:?} {rounds} rounds of {seed:#x}", Options { kernels: None, ..options.clone() });
    ranks(model.ranks, |comm, gpu| {
        let experts = connect(model, options, comm, gpu);
        let stream = gpu.stream().expect("a stream");
        let (mut random, rank) = (Random::with_seed(seed), experts.rank());
        let late = Random::with_seed(seed + rank as u64);
        let all: Vec<Vec<Tokens>> = (0..rounds).map(|_| tokens_of_all(model, options, &mut random)).collect();
        let combines: Vec<usize> = (0..rounds).map(|_| random.below(4)).collect();
        // Two are under way at once: the combine of a round comes behind the dispatch of the next.
        let both = random.below(2) == 0;
        let is_captured_first = graphs && random.below(2) == 0;
        let late = RefCell::new(late);
        let pause = || std::thread::sleep(Duration::from_micros([0, 500, 5000][late.borrow_mut().below(3)]));
        let begin = |round: usize| {
            let (own, rows) = (&all[round][rank], model.rows(&all[round], rank));
            let micro_batch = if both { round % 2 } else { 0 };
            let (routed, call) =
                dispatch(&experts, model, options, own, (gpu, &stream), (micro_batch, false));
            let (memories, sums) = to_combine(model, options, own, &call, &rows, rank, gpu);
            pause();
            let copies = copies(model, &routed, &call, (gpu, &stream));
            Round { routed, call, memories, sums, copies }
        };
        let finish = |round: usize, of: &Round| {
            for _ in 0..combines[round] {
                pause();
                let combine = combine(&of.routed, options, &of.memories, &of.sums);
                put(&experts, options, &combine, &stream);
            }
            if combines[round] == 0 {
                of.routed.release(&stream).expect("a release");
            }
        };
        let put_all = || -> Vec<Round> {
            let mut put: Vec<Round> = Vec::new();
            for round in 0..rounds {
                put.push(begin(round));
                if !both {
                    finish(round, &put[round]);
                } else if round > 0 {
                    finish(round - 1, &put[round - 1]);
                }
            }
            if both {
                finish(rounds - 1, &put[rounds - 1]);
            }
            put
        };
        let check = |put: &[Round], when: &str| {
            experts.synchronize(&stream).unwrap_or_else(|error| panic!("rank {rank}, {when}: {error}"));
            for (round, (all, of)) in all.iter().zip(put).enumerate() {
                let rows = model.rows(all, rank);
                if combines[round] > 0 {
                    check_sums(
                        model,
                        options,
                        &all[rank],
                        (&of.memories, &of.sums),
                        rank,
                        &format!("{when}, round {round}"),
                    );
                }
                check_dispatch(model, &of.routed, &of.call, &of.copies, &rows, rank);
                of.sums.fill(0, of.sums.len(), 0xee).expect("bytes");
            }
        };
        if !is_captured_first {
            check(&put_all(), "eager");
        }
        let capture = |_| {
            stream.begin_capture().expect("a capture");
            let put = put_all();
            (stream.end_capture().expect("a graph"), put)
        };
        let graphs: Vec<_> = (0..if graphs { 2 } else { 0 }).map(capture).collect();
        for replay in 0..2 * graphs.len() {
            let (graph, put) = &graphs[replay % 2];
            // SAFETY: what was captured keeps its memory.
            unsafe { graph.launch(&stream) }.expect("a replay");
            check(put, &format!("replay {replay}"));
            if replay == 1 {
                check(&put_all(), "eager between replays");
            }
        }
    });
}
