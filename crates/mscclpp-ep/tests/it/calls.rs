//! Dispatches and combines of random routings, compared with the oracle to the last bit.

use mscclpp::{DeviceBuffer, prelude::*};
use mscclpp_ep::{Combine, Dispatch, Experts, IdType, Layout, Memory, NumberType, Quantisation, Routed};
use mscclpp_test_support::{LIMIT, Random};

use crate::{
    oracle::{Model, Row, Tokens},
    support::{memory, narrow, ranks, read, unwritten},
};

/// How the calls of a test are made.
#[derive(Debug, Clone)]
struct Way {
    packets: usize,
    exact: bool,
    /// Whether only the token's rank has the weights.
    late_weights: bool,
    id_type: IdType,
    /// The bytes of a second tensor, or 0.
    also: usize,
    layouts: Vec<Layout>,
}

fn connect(model: &Model, way: &Way, comm: &Communicator, gpu: &Gpu) -> Experts {
    let mut builder = Experts::builder(comm, gpu)
        .experts(model.experts)
        .expert_map(model.map.clone())
        .top_k(model.top_k)
        .hidden(model.hidden)
        .number_type(model.number_type)
        .capacity(model.capacity)
        .micro_batches(2)
        .exact(way.exact)
        .packets_up_to(way.packets)
        .timeout(std::time::Duration::from_secs(15));
    if let Some(quantisation) = model.quantisation {
        builder = builder.quantise(quantisation);
    }
    if way.also > 0 {
        builder = builder.also(way.also);
    }
    let bytes = builder.scratch_bytes(model.ranks).expect("settings");
    let experts = builder.connect().expect("experts");
    assert_eq!((experts.device_bytes(), experts.n_local()), (bytes, model.n_local(experts.rank())));
    experts
}

/// Tokens whose routing is one of several kinds.
fn tokens(model: &Model, way: &Way, random: &mut Random) -> Tokens {
    let count = match random.below(5) {
        0 => 0,
        1 => model.capacity,
        2 => random.below(way.packets.min(model.capacity) + 1),
        _ => random.below(model.capacity + 1),
    };
    let (kind, favourite) = (random.below(4), random.below(model.experts) as i64);
    let id = |random: &mut Random| match kind {
        0 => random.below(model.experts) as i64,
        1 => favourite,
        2 => random.below(model.experts + 1) as i64 - 1,
        _ => -1,
    };
    let ids = (0..count * model.top_k).map(|_| id(random)).collect();
    let weights = (0..count * model.top_k).map(|_| random.below(1000) as f32 / 500.0 - 1.0).collect();
    let numbers = |random: &mut Random| -> Vec<u8> {
        let number = |random: &mut Random| (random.below(8001) as f32 - 4000.0) / 37.0;
        (0..count * model.hidden).flat_map(|_| narrow(model.number_type, number(random))).collect()
    };
    let mut parts = vec![numbers(random)];
    if way.also > 0 {
        parts.push(random.bytes(count * way.also));
    }
    let bias = (random.below(2) == 0).then(|| numbers(random));
    Tokens { count, ids, weights, parts, bias }
}

/// What a rank gives to its dispatch, and where it wants what comes.
struct Call {
    layout: Layout,
    parts: Vec<DeviceBuffer>,
    out: Vec<DeviceBuffer>,
    part_bytes: Vec<usize>,
    rows: usize,
    zero: bool,
}

/// The sizes of the tensors' rows as they travel.
fn travelling(model: &Model, way: &Way) -> Vec<usize> {
    let groups = model.hidden.div_ceil(128);
    let mut bytes = match model.quantisation {
        None => vec![model.result_bytes()],
        Some(Quantisation::E4m3) => vec![model.hidden, 4 * groups],
        Some(_) => vec![model.hidden, groups.next_multiple_of(4)],
    };
    if way.also > 0 {
        bytes.push(way.also);
    }
    bytes
}

fn dispatch(
    experts: &Experts,
    model: &Model,
    way: &Way,
    own: &Tokens,
    (gpu, stream): (&Gpu, &Stream),
    (micro_batch, zero): (usize, bool),
) -> (Routed, Call) {
    let rank = experts.rank();
    let layout = way.layouts[rank];
    let part_bytes = travelling(model, way);
    let most = model.ranks * model.capacity;
    let local = model.n_local(rank);
    let rows = match layout {
        Layout::Rank | Layout::Token => most,
        Layout::Expert => local * most,
        Layout::Flat { alignment } => most * model.top_k.min(local) + local * (alignment as usize - 1),
        _ => unreachable!("four layouts"),
    };
    let ids: Vec<u8> = match way.id_type {
        IdType::I64 => own.ids.iter().flat_map(|id| id.to_le_bytes()).collect(),
        _ => own.ids.iter().flat_map(|id| (*id as i32).to_le_bytes()).collect(),
    };
    let weights: Vec<u8> = own.weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
    let parts: Vec<_> = own.parts.iter().map(|part| memory(gpu, part)).collect();
    let out: Vec<_> = part_bytes.iter().map(|bytes| unwritten(gpu, (rows * bytes) as u64)).collect();
    let mut call = Dispatch::new(own.count, &memory(gpu, &ids), &parts[0]).ids_of(way.id_type);
    if !way.late_weights {
        call = call.weights(&memory(gpu, &weights));
    }
    call = parts[1..].iter().fold(call, |call, part| call.with(part));
    if layout != Layout::Rank {
        let slice = |i: usize| Memory::slice(&out[i], 0..(rows * part_bytes[i]) as u64).expect("a part");
        call = call.into(layout, slice(0));
        call = (1..out.len()).fold(call, |call, i| call.and(slice(i)));
    }
    let routed =
        experts.dispatch(&call.micro_batch(micro_batch).zero_rest(zero), stream).expect("a dispatch");
    (routed, Call { layout, parts, out, part_bytes, rows, zero })
}

/// Compares what came with the oracle.
fn check_dispatch(model: &Model, routed: &Routed, call: &Call, rows: &[Row], rank: usize, gpu: &Gpu) {
    let (places, per_expert) = model.places(rows, rank, call.layout);
    let mut of_ranks = vec![0; model.ranks];
    rows.iter().for_each(|row| of_ranks[row.source] += 1);
    assert_eq!(routed.rows_of_ranks().expect("counts"), of_ranks);
    let per_expert: Vec<u32> = per_expert.iter().map(|rows| *rows as u32).collect();
    assert_eq!(routed.rows_of_experts().expect("counts"), per_expert);
    for row in rows {
        let came = routed.row(row.source, row.number).expect("a row");
        assert_eq!((came.0 as usize, &came.1), (row.token, &row.local), "rank {rank}, row {row:?}");
    }
    for (part, bytes) in call.part_bytes.iter().enumerate() {
        let there = match call.layout {
            Layout::Rank => received(model, routed, part, gpu),
            _ => read(&call.out[part], 0, (call.rows * bytes) as u64),
        };
        let mut expected: Vec<Option<&[u8]>> = vec![None; call.rows];
        for (row, places) in rows.iter().zip(&places) {
            for place in places.iter().flatten() {
                expected[*place] = Some(&row.parts[part]);
            }
        }
        for (number, (there, expected)) in there.chunks(*bytes).zip(expected).enumerate() {
            match expected {
                Some(expected) => assert_eq!(there, expected, "rank {rank}, tensor {part}, row {number}"),
                None if call.layout == Layout::Rank => {}
                None => {
                    let rest = if call.zero { 0 } else { 0xee };
                    assert!(
                        there.iter().all(|byte| *byte == rest),
                        "rank {rank}, tensor {part}, row {number}"
                    );
                }
            }
        }
    }
}

/// The rows of the layout `Rank`, side by side.
fn received(model: &Model, routed: &Routed, part: usize, gpu: &Gpu) -> Vec<u8> {
    let view = routed.received(part).expect("the layout is Rank");
    let copy = unwritten(gpu, view.rank_stride * model.ranks as u64);
    let stream = gpu.stream().expect("a stream");
    // SAFETY: both have so many bytes, and the copy is waited for.
    unsafe { stream.copy(copy.ptr(), view.ptr, view.rank_stride * model.ranks as u64) }.expect("a copy");
    stream.synchronize().expect("the copy");
    let row = |i: u64| {
        let at = i / model.capacity as u64 * view.rank_stride + i % model.capacity as u64 * view.row_stride;
        read(&copy, at, view.row_bytes)
    };
    (0..(model.ranks * model.capacity) as u64).flat_map(row).collect()
}

/// What the experts of a rank make of what came.
fn made(model: &Model, call: &Call, rows: &[Row], rank: usize) -> Vec<u8> {
    let bytes = model.result_bytes();
    let (places, _) = model.places(rows, rank, call.layout);
    // What nobody made is NaN, or nearly: it must not be summed.
    let mut made = vec![0xff; call.rows * bytes];
    let experts: Vec<usize> = (0..model.experts).filter(|expert| model.map[*expert] == rank).collect();
    for (row, places) in rows.iter().zip(&places) {
        for (place, local) in places.iter().zip(&row.local) {
            let Some(place) = place else { continue };
            let numbers = match call.layout {
                Layout::Rank | Layout::Token => model.made_by_rank(row.source, row.token, rank),
                _ => model.made(row.source, row.token, experts[*local as usize]),
            };
            made[place * bytes..][..bytes].copy_from_slice(&numbers);
        }
    }
    made
}

/// One dispatch and its combine on each rank, of `rounds` random routings; then the same routing with other rows.
fn run(model: &Model, way: &Way, rounds: usize, seed: u64) {
    println!("{model:?} {way:?}");
    ranks(model.ranks, |comm, gpu| {
        let experts = connect(model, way, comm, gpu);
        let stream = gpu.stream().expect("a stream");
        let mut random = Random::with_seed(seed);
        for round in 0..rounds {
            let all: Vec<Tokens> = (0..model.ranks).map(|_| tokens(model, way, &mut random)).collect();
            let (micro_batch, zero) = (round % 2, round % 3 == 0);
            let rank = experts.rank();
            let own = &all[rank];
            let rows = model.rows(&all, rank);
            let (routed, call) = dispatch(&experts, model, way, own, (gpu, &stream), (micro_batch, zero));
            experts.synchronize(&stream).expect("the dispatch");
            check_dispatch(model, &routed, &call, &rows, rank, gpu);
            let made = memory(gpu, &made(model, &call, &rows, rank));
            let sums = unwritten(gpu, (own.count * model.result_bytes()) as u64);
            let bias = own.bias.as_ref().map(|bias| memory(gpu, bias));
            let weights: Vec<u8> = own.weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
            let mut combine = Combine::new(&routed, &made, &sums);
            if let Some(bias) = &bias {
                combine = combine.bias(bias);
            }
            if way.late_weights {
                combine = combine.weights(&memory(gpu, &weights));
            }
            if way.exact {
                combine = combine.exact();
            }
            // A routing may be used again: the second time all is the same.
            for time in 0..2 {
                experts.combine(&combine, &stream).expect("a combine");
                experts.synchronize(&stream).expect("the combine");
                let one_row: Vec<bool> =
                    way.layouts.iter().map(|layout| matches!(layout, Layout::Rank | Layout::Token)).collect();
                let expected = model.sums(own, rank, &one_row, way.exact);
                let came = read(&sums, 0, expected.len() as u64);
                assert_eq!(came, expected, "rank {rank}, round {round}, time {time}");
            }
            let memories =
                |buffers: &[DeviceBuffer]| -> Vec<Memory> { buffers.iter().map(Memory::from).collect() };
            let out: &[DeviceBuffer] = if call.layout == Layout::Rank { &[] } else { &call.out };
            out.iter().for_each(|out| out.fill(0, out.len(), 0xee).expect("bytes"));
            experts
                .dispatch_again(&routed, &memories(&call.parts), &memories(out), &stream)
                .expect("a dispatch");
            experts.release(&routed, &stream).expect("a release");
            experts.synchronize(&stream).expect("the dispatch");
            check_dispatch(model, &routed, &Call { zero: false, ..call }, &rows, rank, gpu);
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

#[test]
fn random_routings_have_the_rows_and_the_bits_of_the_oracle() {
    let mut random = Random::new();
    for _ in 0..12 {
        let ranks = 1 + random.below(4);
        let experts = ranks + random.below(8);
        let quantisation = [None, Some(Quantisation::E4m3), Some(Quantisation::E4m3Ue8m0)][random.below(3)];
        let types = [NumberType::Bf16, NumberType::F16, NumberType::F32];
        let exact = random.below(3) == 0;
        let hidden = 4 * (1 + random.below(70));
        let model = Model {
            ranks,
            experts,
            top_k: 1 + random.below(5),
            hidden,
            capacity: 1 + random.below(12),
            number_type: types[random.below(if quantisation.is_some() { 2 } else { 3 })],
            quantisation,
            map: (0..experts).map(|_| random.below(ranks)).collect(),
        };
        let layouts = (0..ranks).map(|_| {
            loop {
                let layout = layout(&mut random);
                if !exact || matches!(layout, Layout::Expert | Layout::Flat { .. }) {
                    break layout;
                }
            }
        });
        let layouts = layouts.collect();
        let way = Way {
            packets: random.below(8),
            exact,
            late_weights: random.below(2) == 0,
            id_type: [IdType::I32, IdType::I64][random.below(2)],
            also: 4 * random.below(5),
            layouts,
        };
        run(&model, &way, 4, random.word());
    }
}
