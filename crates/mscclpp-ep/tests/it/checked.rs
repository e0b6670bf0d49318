//! A dispatch and a combine of one rank, with memory of their own, and what came compared with the oracle to the last bit.

#![allow(dead_code, reason = "the program of mutants uses a part of this")]

use std::time::Duration;

use mscclpp::{DeviceBuffer, DevicePtr, KernelSource, prelude::*};
use mscclpp_ep::{Combine, Dispatch, Experts, IdType, Layout, Memory, Payload, Quantisation, Routed};
use mscclpp_test_support::Random;

use crate::{
    oracle::{Model, Row, Tokens},
    support::{bytes, memory, memory_at, narrow, read, unwritten},
};

/// How the calls of a test are made.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) exact: bool,
    /// Whether only the token's rank has the weights.
    pub(crate) late_weights: bool,
    pub(crate) id_type: IdType,
    /// The bytes of the rows of other tensors.
    pub(crate) also: Vec<usize>,
    /// Whether all tokens that a rank may have choose expert 0.
    pub(crate) crowded: bool,
    /// Whether the second tensor comes column by column.
    pub(crate) column_major: bool,
    /// Whether the set-up is for larger rows than those that travel.
    pub(crate) other_payload: bool,
    /// Whether each rank makes its calls in two halves.
    pub(crate) halves: Vec<bool>,
    /// Whether weights of rows travel back.
    pub(crate) row_weights: bool,
    pub(crate) statistics: bool,
    /// Whether calls go on without a rank that is lost.
    pub(crate) survives: bool,
    /// How far behind a multiple of 16 bytes the rows lie that calls are given.
    pub(crate) offset: u64,
    pub(crate) max_blocks: u32,
    pub(crate) layouts: Vec<Layout>,
    /// Other kernels than those of the library.
    pub(crate) kernels: Option<KernelSource<'static>>,
    pub(crate) limit: Duration,
}

pub(crate) fn connect(model: &Model, options: &Options, comm: &Communicator, gpu: &Gpu) -> Experts {
    let mut builder = Experts::builder(comm, gpu)
        .experts(model.experts)
        .expert_map(model.map.clone())
        .top_k(model.top_k)
        .hidden(model.hidden)
        .number_type(model.number_type)
        .capacity(model.capacity)
        .micro_batches(2)
        .max_blocks(options.max_blocks)
        .exact(options.exact)
        .timeout(options.limit);
    let mut payload = Payload::new();
    if let Some(quantisation) = model.quantisation {
        payload = payload.quantise(quantisation);
    }
    payload = options.also.iter().fold(payload, |payload, bytes| payload.also(*bytes));
    if options.other_payload {
        let most = options.also.iter().max().map_or(4, |most| most + 4);
        builder =
            builder.row_bytes(2 * model.result_bytes() + 512).also(most).also(most).also(4 * model.hidden);
    } else {
        if let Some(quantisation) = model.quantisation {
            builder = builder.quantise(quantisation);
        }
        builder = options.also.iter().fold(builder, |builder, bytes| builder.also(*bytes));
    }
    if options.survives {
        builder = builder.survive_loss(options.limit);
    }
    if let Some(kernels) = options.kernels {
        builder = builder.kernels(kernels);
    }
    let bytes = builder.scratch_bytes(model.ranks).expect("settings");
    let experts = builder.connect().expect("experts");
    assert_eq!((experts.device_bytes(), experts.n_local()), (bytes, model.n_local(experts.rank())));
    if options.other_payload { experts.with_payload(&payload).expect("a payload") } else { experts }
}

/// Tokens whose routing is one of several kinds.
fn tokens(model: &Model, options: &Options, random: &mut Random) -> Tokens {
    let count = match random.below(5) {
        _ if options.crowded => model.capacity,
        0 => 0,
        1 => model.capacity,
        2 => random.below(model.capacity / 2 + 1),
        _ => random.below(model.capacity + 1),
    };
    let (kind, favourite) = (random.below(4), random.below(model.experts) as i64);
    let id = |random: &mut Random| match kind {
        _ if options.crowded => 0,
        0 => random.below(model.experts) as i64,
        1 => favourite,
        2 => random.below(model.experts + 1) as i64 - 1,
        _ => -1,
    };
    let ids = (0..count * model.top_k).map(|_| id(random)).collect();
    let weights = (0..count * model.top_k).map(|_| random.below(1000) as f32 / 500.0 - 1.0).collect();
    let number = |random: &mut Random| (random.below(8001) as f32 - 4000.0) / 37.0;
    let any = |random: &mut Random| match random.below(300) {
        0 => f32::NAN,
        1 => f32::INFINITY,
        2 => f32::NEG_INFINITY,
        _ => number(random),
    };
    let numbers = |random: &mut Random, of: &dyn Fn(&mut Random) -> f32| -> Vec<u8> {
        (0..count * model.hidden).flat_map(|_| narrow(model.number_type, of(random))).collect()
    };
    let mut parts = vec![numbers(random, &any)];
    parts.extend(options.also.iter().map(|bytes| random.bytes(count * bytes)));
    let biases = (0..random.below(3)).map(|_| numbers(random, &number)).collect();
    Tokens { count, ids, weights, parts, biases }
}

/// The tokens of all ranks.
pub(crate) fn tokens_of_all(model: &Model, options: &Options, random: &mut Random) -> Vec<Tokens> {
    (0..model.ranks).map(|_| tokens(model, options, random)).collect()
}

/// The memory that a rank gives to its dispatch, and that for what comes.
pub(crate) struct Call {
    pub(crate) layout: Layout,
    pub(crate) parts: Vec<Memory>,
    pub(crate) out: Vec<DeviceBuffer>,
    /// The memory for ids, weights and sources of the rows that come.
    pub(crate) along: [DeviceBuffer; 3],
    pub(crate) id_bytes: usize,
    /// Whether the weights did not travel: all are 1.
    pub(crate) late_weights: bool,
    pub(crate) part_bytes: Vec<usize>,
    pub(crate) rows: usize,
    pub(crate) zero: bool,
    /// Whether the call masks what goes along with rows.
    pub(crate) is_masked: bool,
    /// How many rows a column of the second tensor has, or 0.
    pub(crate) column_rows: usize,
    /// The memory for statistics.
    pub(crate) counts: Option<DeviceBuffer>,
}

/// The number that the memory for statistics has before a call.
const COUNTED: u32 = 7;

/// The sizes of the tensors' rows as they travel.
pub(crate) fn travelling(model: &Model, options: &Options) -> Vec<usize> {
    let groups = model.hidden.div_ceil(128);
    let mut bytes = match model.quantisation {
        None => vec![model.result_bytes()],
        Some(Quantisation::E4m3) => vec![model.hidden, 4 * groups],
        Some(_) => vec![model.hidden, groups.next_multiple_of(4)],
    };
    bytes.extend(&options.also);
    bytes
}

pub(crate) fn dispatch(
    experts: &Experts,
    model: &Model,
    options: &Options,
    own: &Tokens,
    (gpu, stream): (&Gpu, &Stream),
    (micro_batch, zero): (usize, bool),
) -> (Routed, Call) {
    let rank = experts.rank();
    let layout = options.layouts[rank];
    let part_bytes = travelling(model, options);
    let most = model.ranks * model.capacity;
    let local = model.n_local(rank);
    let rows = match layout {
        Layout::Rank | Layout::Token => most,
        Layout::Expert => local * most,
        Layout::Flat { alignment } => most * model.top_k.min(local) + local * (alignment as usize - 1),
        _ => unreachable!("four layouts"),
    };
    let ids: Vec<u8> = match options.id_type {
        IdType::I64 => own.ids.iter().flat_map(|id| id.to_le_bytes()).collect(),
        _ => own.ids.iter().flat_map(|id| (*id as i32).to_le_bytes()).collect(),
    };
    let weights: Vec<u8> = own.weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
    let parts: Vec<_> = own.parts.iter().map(|part| memory_at(gpu, options.offset, part)).collect();
    let out: Vec<_> = part_bytes.iter().map(|bytes| unwritten(gpu, (rows * bytes) as u64)).collect();
    let mut call = Dispatch::new(own.count, &memory(gpu, &ids), &parts[0]).ids_of(options.id_type);
    if !options.late_weights {
        call = call.weights(&memory(gpu, &weights));
    }
    call = parts[1..].iter().fold(call, Dispatch::with);
    if layout != Layout::Rank {
        let slice = |i: usize| Memory::slice(&out[i], 0..(rows * part_bytes[i]) as u64).expect("a part");
        call = call.into(layout, slice(0));
        call = (1..out.len()).fold(call, |call, i| call.and(slice(i)));
    }
    let id_bytes = if options.id_type == IdType::I64 { 8 } else { 4 };
    let along =
        [model.top_k * id_bytes, model.top_k * 4, 8].map(|bytes| unwritten(gpu, (rows * bytes) as u64));
    let call = call.ids_into(&along[0]).weights_into(&along[1]).sources_into(&along[2]);
    let column_major = options.column_major && layout != Layout::Rank && out.len() > 1;
    let counts =
        options.statistics.then(|| memory(gpu, &bytes(&vec![COUNTED; local.max(1)], u32::to_le_bytes)));
    let mut call = call.column_major(column_major).micro_batch(micro_batch).zero_rest(zero).mask_along(zero);
    if let Some(counts) = &counts {
        call = call.add_counts_to(counts).add_waits_to(&unwritten(gpu, 8 * model.ranks as u64));
    }
    let routed = if options.halves[rank] {
        let (routed, receive) = experts.dispatch_send(&call, stream).expect("the first half");
        experts.dispatch_send(&call, stream).expect_err("it has not received");
        receive.receive(stream).expect("the second half");
        routed
    } else {
        experts.dispatch(&call, stream).expect("a dispatch")
    };
    (
        routed,
        Call {
            layout,
            parts,
            out,
            along,
            id_bytes,
            late_weights: options.late_weights,
            part_bytes,
            rows,
            zero,
            is_masked: zero && layout != Layout::Rank,
            column_rows: match layout {
                _ if !column_major => 0,
                Layout::Expert => most,
                _ => rows,
            },
            counts,
        },
    )
}

/// Compares what came with the oracle.
pub(crate) fn check_dispatch(
    model: &Model,
    routed: &Routed,
    call: &Call,
    copies: &[DeviceBuffer],
    rows: &[Row],
    rank: usize,
) {
    let (places, per_expert) = model.places(rows, rank, call.layout);
    let mut of_ranks = vec![0; model.ranks];
    rows.iter().for_each(|row| of_ranks[row.source] += 1);
    assert_eq!(routed.rows_of_ranks().expect("counts"), of_ranks);
    let per_expert: Vec<u32> = per_expert.iter().map(|rows| *rows as u32).collect();
    assert_eq!(routed.rows_of_experts().expect("counts"), per_expert);
    if let Some(counts) = &call.counts {
        let expected: Vec<u32> = per_expert.iter().map(|rows| COUNTED + rows).collect();
        assert_eq!(read(counts, 0, 4 * expected.len() as u64), bytes(&expected, u32::to_le_bytes));
    }
    for row in rows {
        let came = routed.row(row.source, row.number).expect("a row");
        assert_eq!((came.0 as usize, &came.1), (row.token, &row.local), "rank {rank}, row {row:?}");
    }
    let along = |of: usize, bytes: usize| read(&call.along[of], 0, (call.rows * bytes) as u64);
    let (ids, weights, sources) =
        (along(0, model.top_k * call.id_bytes), along(1, 4 * model.top_k), along(2, 8));
    let mut is_sent = vec![false; call.rows];
    for (row, places) in rows.iter().zip(&places) {
        let id = |local: &i32| i64::from(*local).to_le_bytes()[..call.id_bytes].to_vec();
        let weight = |(weight, local): (&f32, &i32)| match local {
            -1 if call.is_masked => 0f32,
            _ if call.late_weights => 1.0,
            _ => *weight,
        };
        let expected = [
            row.local.iter().flat_map(id).collect::<Vec<u8>>(),
            row.weights.iter().zip(&row.local).flat_map(|each| weight(each).to_le_bytes()).collect(),
            [row.source as u32, row.token as u32].iter().flat_map(|number| number.to_le_bytes()).collect(),
        ];
        for place in places.iter().flatten() {
            is_sent[*place] = true;
            for (there, expected) in [&ids, &weights, &sources].into_iter().zip(&expected) {
                assert_eq!(
                    &there[place * expected.len()..][..expected.len()],
                    expected,
                    "rank {rank}, {row:?}"
                );
            }
        }
    }
    for (there, bytes, rest) in [(&ids, model.top_k * call.id_bytes, 0xff), (&weights, 4 * model.top_k, 0)] {
        let expected = if call.is_masked { rest } else { 0xee };
        for (number, (there, _)) in
            there.chunks(bytes).zip(&is_sent).enumerate().filter(|(_, (_, sent))| !**sent)
        {
            assert!(
                there.iter().all(|byte| *byte == expected),
                "rank {rank}, what goes along with row {number}"
            );
        }
    }
    for (part, bytes) in call.part_bytes.iter().enumerate() {
        let mut there = match call.layout {
            Layout::Rank => received(model, routed, part, &copies[part]),
            _ => read(&call.out[part], 0, (call.rows * bytes) as u64),
        };
        if part == 1 && call.column_rows > 0 {
            there = there
                .chunks(call.column_rows * bytes)
                .flat_map(|matrix| rows_of_columns(matrix, *bytes))
                .collect();
        }
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

/// Rows of so many bytes, of a matrix whose words lie column by column.
fn rows_of_columns(matrix: &[u8], bytes: usize) -> Vec<u8> {
    let rows = matrix.len() / bytes;
    let words = (0..rows).flat_map(|row| (0..bytes / 4).map(move |word| word * rows + row));
    words.flat_map(|word| matrix[4 * word..][..4].to_vec()).collect()
}

/// Copies what came in the layout `Rank`, behind the work in the stream.
pub(crate) fn copies(
    model: &Model,
    routed: &Routed,
    call: &Call,
    (gpu, stream): (&Gpu, &Stream),
) -> Vec<DeviceBuffer> {
    let parts = if call.layout == Layout::Rank { call.part_bytes.len() } else { 0 };
    let copy = |part| {
        let view = routed.received(part).expect("the layout is Rank");
        let copy = unwritten(gpu, view.rank_stride * model.ranks as u64);
        // SAFETY: both have so many bytes; the copy is kept until the stream is waited for.
        unsafe { stream.copy(copy.ptr(), view.ptr, copy.len()) }.expect("a copy");
        copy
    };
    (0..parts).map(copy).collect()
}

/// The rows of such a copy, side by side.
pub(crate) fn received(model: &Model, routed: &Routed, part: usize, copy: &DeviceBuffer) -> Vec<u8> {
    let view = routed.received(part).expect("the layout is Rank");
    let row = |i: u64| {
        let at = i / model.capacity as u64 * view.rank_stride + i % model.capacity as u64 * view.row_stride;
        read(copy, at, view.row_bytes)
    };
    (0..(model.ranks * model.capacity) as u64).flat_map(row).collect()
}

/// Returns the rows that the experts of a rank make of those that came.
pub(crate) fn made(model: &Model, call: &Call, rows: &[Row], rank: usize) -> Vec<u8> {
    let bytes = model.result_bytes();
    let (places, _) = model.places(rows, rank, call.layout);
    // Rows that no expert made are NaN, or nearly: they must not be summed.
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

/// The memory that a rank gives to its combine.
pub(crate) struct ToCombine {
    pub(crate) made: Memory,
    pub(crate) biases: Vec<DeviceBuffer>,
    pub(crate) weights: DeviceBuffer,
    /// The weights of rows, and the memory for those that come back.
    pub(crate) row_weights: Option<[DeviceBuffer; 2]>,
}

pub(crate) fn to_combine(
    model: &Model,
    options: &Options,
    own: &Tokens,
    call: &Call,
    rows: &[Row],
    rank: usize,
    gpu: &Gpu,
) -> (ToCombine, DeviceBuffer) {
    let weights: Vec<u8> = own.weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
    let memories = ToCombine {
        made: memory_at(gpu, options.offset, &made(model, call, rows, rank)),
        biases: own.biases.iter().map(|bias| memory(gpu, bias)).collect(),
        weights: memory(gpu, &weights),
        row_weights: options.row_weights.then(|| {
            let (places, _) = model.places(rows, rank, call.layout);
            let mut given = vec![f32::NAN; call.rows * model.top_k];
            for (row, places) in rows.iter().zip(&places) {
                let place = places.iter().flatten().next().expect("a place");
                given[place * model.top_k..][..model.top_k]
                    .copy_from_slice(&model.row_weights(row.source, row.token, rank));
            }
            [
                memory(gpu, &bytes(&given, f32::to_le_bytes)),
                unwritten(gpu, (own.count * model.top_k * 4) as u64),
            ]
        }),
    };
    (memories, unwritten(gpu, (own.count * model.result_bytes()) as u64))
}

pub(crate) fn combine<'a>(
    routed: &'a Routed,
    options: &Options,
    memories: &ToCombine,
    sums: &DeviceBuffer,
) -> Combine<'a> {
    let mut combine = Combine::new(routed, &memories.made, sums);
    for bias in &memories.biases {
        combine = combine.bias(bias);
    }
    if let Some([given, taken]) = &memories.row_weights {
        combine = combine.row_weights(given, taken);
    }
    if options.late_weights && routed.tokens() > 0 {
        combine = combine.weights(&memories.weights);
    } else if options.late_weights {
        // Tensors without elements may have no address.
        // SAFETY: there is nothing to access.
        combine = combine.weights(&unsafe { Memory::from_raw(DevicePtr::NULL, 0) });
    }
    if options.exact { combine.exact() } else { combine }
}

/// Puts a combine into the stream, in halves or whole.
pub(crate) fn put(experts: &Experts, options: &Options, combine: &Combine<'_>, stream: &Stream) {
    if options.halves[experts.rank()] {
        let receive = experts.combine_send(combine, stream).expect("the first half");
        receive.receive(stream).expect("the second half");
    } else {
        experts.combine(combine, stream).expect("a combine");
    }
}

pub(crate) fn check_sums(
    model: &Model,
    options: &Options,
    own: &Tokens,
    (memories, sums): (&ToCombine, &DeviceBuffer),
    rank: usize,
    when: &str,
) {
    let one_row: Vec<bool> =
        options.layouts.iter().map(|layout| matches!(layout, Layout::Rank | Layout::Token)).collect();
    let expected = model.sums(own, rank, &one_row, options.exact);
    assert_eq!(read(sums, 0, expected.len() as u64), expected, "rank {rank}, {when}");
    if let Some([_, taken]) = &memories.row_weights {
        let expected = bytes(&model.weights_back(own, rank), f32::to_le_bytes);
        assert_eq!(read(taken, 0, expected.len() as u64), expected, "weights of rank {rank}, {when}");
    }
}
