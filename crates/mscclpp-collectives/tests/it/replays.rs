//! Calls one after the other: replays of graphs, calls on several streams, and memory that is dropped meanwhile.

use std::time::Duration;

use crate::support::{Told, builder, builder_with_lanes, ranks, slice, zeros};
use mscclpp::gpu::Graph;
use mscclpp_collectives::{Protocol, ReduceOp, Selection};
use mscclpp_test_support::Random;

/// Graphs are replayed in any order with eager calls of other sizes and protocols, with fresh data each time.
#[test]
fn replays_and_eager_calls_take_turns() {
    take_turns(150);
}

#[test]
#[ignore = "takes minutes: ci/run.sh collectives"]
fn a_hundred_thousand_replays() {
    take_turns(200_000);
}

/// Half of the rounds are replays, on ranks that come late at random.
fn take_turns(rounds: u64) {
    let seed = Random::new().word();
    ranks(2, |comm, gpu| {
        let told =
            Told::new(Selection { protocol: Protocol::Ll16, two_steps: false, blocks: 1, threads: 32 });
        let builder = builder_with_lanes(comm, gpu).selector(told.clone());
        let collectives = builder.connect().expect("collectives");
        let (stream, rank) = (gpu.stream().expect("a stream"), collectives.rank());
        let mut random = Random::with_seed(seed);
        let mut own = Random::with_seed(seed ^ 1 ^ rank as u64);
        // An all_reduce goes by Simple instead of directly, a broadcast does not.
        let selections = [
            (Protocol::Ll16, 3),
            (Protocol::Ll128, 1),
            (Protocol::Simple, 2),
            (Protocol::SimpleByBulk, 1),
            (Protocol::Bulk, 3),
            (Protocol::Direct, 2),
        ];
        let buffers: Vec<_> = (0..6).map(|i| zeros::<f32>(gpu, 300 << i)).collect();
        let _registered = collectives.register(buffers[5].buffer()).expect("a registration");
        let graphs: Vec<Graph> = selections
            .iter()
            .zip(&buffers)
            .map(|((protocol, blocks), buffer)| {
                told.tell(Selection { protocol: *protocol, two_steps: false, blocks: *blocks, threads: 64 });
                stream.begin_capture().unwrap();
                for _ in 0..3 {
                    collectives.all_reduce(buffer, buffer, ReduceOp::Sum, &stream).unwrap();
                }
                collectives.broadcast(buffer, 1, &stream).unwrap();
                stream.end_capture().unwrap()
            })
            .collect();
        for round in 0..rounds {
            let which = random.of(0..=5) as usize;
            let buffer = &buffers[which];
            let values = [random.of(0..=100) as f32, random.of(0..=100) as f32];
            buffer.write(&vec![values[rank]; buffer.len()]).unwrap();
            if own.of(0..=3) == 0 {
                std::thread::sleep(Duration::from_micros(own.of(0..=2000)));
            }
            let times = if random.of(0..=1) == 0 {
                // SAFETY: what was captured keeps its memory.
                unsafe { graphs[which].launch(&stream).unwrap() };
                4.0
            } else {
                let (protocol, blocks) = selections[random.of(0..=5) as usize];
                told.tell(Selection { protocol, two_steps: false, blocks, threads: 32 });
                collectives.all_reduce(buffer, buffer, ReduceOp::Sum, &stream).unwrap();
                1.0
            };
            collectives.synchronize(&stream).unwrap();
            let sum = (values[0] + values[1]) * times;
            let found = buffer.read().unwrap();
            let wrong = found.iter().position(|value| *value != sum);
            assert_eq!(wrong, None, "round {round}: {:?} instead of {sum}", wrong.map(|at| found[at]));
        }
    });
}

#[test]
fn calls_of_two_streams_are_done_in_their_order() {
    ranks(2, |comm, gpu| {
        let collectives = builder(comm, gpu).connect().expect("collectives");
        let streams = [gpu.stream().unwrap(), gpu.stream().unwrap()];
        let numbers = slice(gpu, &[1u64; 5000]);
        for i in 0..20 {
            collectives.all_reduce(&numbers, &numbers, ReduceOp::Sum, &streams[i % 2]).unwrap();
        }
        streams.iter().for_each(|stream| collectives.synchronize(stream).unwrap());
        assert!(numbers.read().unwrap().iter().all(|number| *number == 1 << 20));
    });
}

/// The memory of a call lives until the call is complete: memory that is dropped at once is not given to others before.
#[test]
fn memory_may_be_dropped_while_calls_are_under_way() {
    ranks(2, |comm, gpu| {
        let collectives = builder(comm, gpu).connect().expect("collectives");
        let (stream, rank) = (gpu.stream().expect("a stream"), collectives.rank());
        let mut results = Vec::new();
        for i in 0..40u32 {
            let len = 1000 + 100 * (i as usize % 5);
            let send = slice(gpu, &vec![i + rank as u32; len]);
            let recv = zeros::<u32>(gpu, len);
            collectives.all_reduce(&send, &recv, ReduceOp::Sum, &stream).unwrap();
            // Other memory, perhaps at the same place, filled while the call may still be waiting.
            drop(send);
            let other = slice(gpu, &vec![u32::MAX; len]);
            drop(other);
            results.push((i, recv));
        }
        collectives.synchronize(&stream).unwrap();
        for (i, recv) in results {
            assert!(recv.read().unwrap().iter().all(|sum| *sum == 2 * i + 1), "call {i}");
        }
    });
}
