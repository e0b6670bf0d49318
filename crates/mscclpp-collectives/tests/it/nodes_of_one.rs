//! Collectives of nodes of one rank each: the way of devices that do not reach each other's memory.

use std::{thread, time::Duration};

use crate::support::{abort_ends_waits, builder, ranks, slice, zeros};
use mscclpp::{Communicator, ErrorKind, Gpu, KernelArgs, KernelSource, Module, Transport};
use mscclpp_collectives::{Collectives, CollectivesBuilder, ReduceOp, Rows, Transfer};
use mscclpp_test_support::Random;

/// Ranks that leave before the others have seen all that was sent are a failure for these.
fn leave(comm: &Communicator) {
    comm.bootstrap().barrier().expect("all ranks");
}

/// Messages are many chunks.
fn apart(comm: &Communicator, gpu: &Gpu) -> CollectivesBuilder {
    let node = format!("n{}", comm.bootstrap().rank());
    builder(comm, gpu).node(node).between_nodes(Transport::ETHERNET).scratch(512 << 10)
}

fn connected(comm: &Communicator, gpu: &Gpu) -> Collectives {
    apart(comm, gpu).connect().expect("collectives")
}

#[test]
fn replays_and_eager_calls_take_turns() {
    const LEN: usize = 40_000;
    let seed = Random::new().word();
    ranks(3, |comm, gpu| {
        let collectives = connected(comm, gpu);
        let (stream, rank) = (gpu.stream().expect("a stream"), collectives.rank());
        let numbers = zeros::<u64>(gpu, LEN);
        stream.begin_capture().unwrap();
        collectives.all_reduce(&numbers, &numbers, ReduceOp::Sum, &stream).unwrap();
        collectives.broadcast(&numbers, 1, &stream).unwrap();
        collectives.all_reduce(&numbers, &numbers, ReduceOp::Max, &stream).unwrap();
        let graph = stream.end_capture().unwrap();
        let (mut random, mut own) = (Random::with_seed(seed), Random::with_seed(seed ^ 1 ^ rank as u64));
        for round in 0..12 {
            let values = [random.of(0..=1000), random.of(0..=1000), random.of(0..=1000)];
            numbers.write(&vec![values[rank]; LEN]).unwrap();
            thread::sleep(Duration::from_micros(own.of(0..=2000)));
            if random.of(0..=1) == 0 {
                // SAFETY: what was captured keeps its memory.
                unsafe { graph.launch(&stream).unwrap() };
            } else {
                collectives.all_reduce(&numbers, &numbers, ReduceOp::Sum, &stream).unwrap();
            }
            collectives.synchronize(&stream).unwrap();
            let sum: u64 = values.iter().sum();
            assert!(numbers.read().unwrap().iter().all(|number| *number == sum), "round {round}");
        }
        leave(comm);
    });
}

/// Messages of single ranks in both directions at once, with a call of all before and behind.
#[test]
fn messages_and_barriers() {
    ranks(3, |comm, gpu| {
        let collectives = connected(comm, gpu);
        let (stream, rank) = (gpu.stream().expect("a stream"), collectives.rank());
        let (next, before) = ((rank + 1) % 3, (rank + 2) % 3);
        for (round, len) in [1, 30_000, 3, 100_000].into_iter().enumerate() {
            let message = |from: usize| vec![(10 * from + round) as u32; len];
            let (sent, got) = (slice(gpu, &message(rank)), zeros::<u32>(gpu, len));
            collectives.barrier(&stream).unwrap();
            let transfers = [
                Transfer::Send { numbers: &sent, peer: next },
                Transfer::Recv { numbers: &got, peer: before },
            ];
            collectives.exchange(&transfers, &stream).unwrap();
            collectives.synchronize(&stream).unwrap();
            assert!(got.read().unwrap() == message(before), "round {round}");
        }
        // Only two ranks call.
        let word = slice(gpu, &[rank as u64]);
        match rank {
            0 => collectives.send(&word, 2, &stream).unwrap(),
            2 => collectives.recv(&word, 0, &stream).unwrap(),
            _ => {}
        }
        collectives.synchronize(&stream).unwrap();
        assert_eq!(word.read().unwrap(), [[0, 1, 0][rank]]);
        leave(comm);
    });
}

/// A rank alone decides to put aside what would overwrite what it sends, and then its messages are several launches.
#[test]
fn one_rank_gives_memory_in_place_and_the_others_do_not() {
    const PART: usize = 30_000;
    ranks(3, |comm, gpu| {
        let collectives = connected(comm, gpu);
        let (stream, rank) = (gpu.stream().expect("a stream"), collectives.rank());
        let parts = |from: [usize; 3], to: [usize; 3]| -> Vec<u32> {
            let part = |p: usize| (0..PART).map(move |i| (i | from[p] << 20 | to[p] << 24) as u32);
            (0..3).flat_map(part).collect()
        };
        for in_place in 0..3 {
            let send = slice(gpu, &parts([rank; 3], [0, 1, 2]));
            let recv = if rank == in_place { send.clone() } else { zeros(gpu, 3 * PART) };
            collectives.all_to_all(&send, &recv, &stream).unwrap();
            collectives.synchronize(&stream).unwrap();
            assert!(recv.read().unwrap() == parts([0, 1, 2], [rank; 3]), "rank {rank}, {in_place} in place");
        }
        leave(comm);
    });
}

/// A group is of nodes, too; two communicators do not disturb each other; and what is registered changes nothing.
#[test]
fn groups_and_communicators_do_not_disturb_each_other() {
    ranks(3, |comm, gpu| {
        let all = connected(comm, gpu);
        let direct = builder(comm, gpu).tag(7).connect().expect("collectives");
        let rank = all.rank();
        let pair = all.split((rank != 1).then_some(5), 0).expect("a group");
        let streams = [(); 3].map(|()| gpu.stream().unwrap());
        let data = [(); 3].map(|()| slice(gpu, &[1u32 + rank as u32; 7000]));
        let registered = all.register(data[0].buffer()).expect("a registration");
        for _ in 0..3 {
            all.all_reduce(&data[0], &data[0], ReduceOp::Max, &streams[0]).unwrap();
            direct.all_reduce(&data[1], &data[1], ReduceOp::Min, &streams[1]).unwrap();
            if let Some(pair) = &pair {
                pair.all_reduce(&data[2], &data[2], ReduceOp::Sum, &streams[2]).unwrap();
            }
        }
        streams.iter().for_each(|stream| all.synchronize(stream).unwrap());
        let found = data.each_ref().map(|slice| slice.read().unwrap()[6999]);
        assert_eq!(found, [3, 1, [16, 2, 16][rank]]);
        all.deregister(registered).expect("it is registered");
    });
}

#[test]
fn what_needs_the_others_memory_is_refused() {
    ranks(2, |comm, gpu| {
        let refused = |error: mscclpp_collectives::Error, text: &str| {
            assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error:?}");
            assert!(error.to_string().contains(text), "{error}");
        };
        let checked = apart(comm, gpu).check_calls(true).connect();
        refused(checked.expect_err("it cannot be"), "check_calls(true) with ranks on several nodes");
        let small = apart(comm, gpu).scratch(1 << 10).connect();
        refused(small.expect_err("it cannot be"), "too few for 1 ranks on other nodes");
        let collectives = connected(comm, gpu);
        let stream = gpu.stream().expect("a stream");
        let numbers = zeros::<f32>(gpu, 64);
        let source = KernelSource::new("none.cu", r#"extern "C" __global__ void none() {}"#);
        let kernel = Module::load(gpu, &source).and_then(|module| module.kernel("none")).expect("a kernel");
        let rows = Rows::new(&numbers, 64).unwrap();
        // SAFETY: it is refused.
        let rows = unsafe { collectives.all_reduce_rows(&rows, &kernel, KernelArgs::new(), &stream) };
        refused(rows.expect_err("it cannot be"), "all_reduce_rows between nodes");
        // All of it left no trace.
        collectives.all_reduce(&numbers, &numbers, ReduceOp::Sum, &stream).unwrap();
        collectives.synchronize(&stream).unwrap();
        leave(comm);
    });
}

#[test]
fn an_abort_ends_waits() {
    ranks(2, |comm, gpu| {
        let collectives = connected(comm, gpu);
        abort_ends_waits(comm, gpu, &collectives);
    });
}

/// The service of the port channels lives as long as the graphs.
#[test]
fn graphs_outlive_their_collectives() {
    ranks(2, |comm, gpu| {
        let collectives = connected(comm, gpu);
        let stream = gpu.stream().expect("a stream");
        let numbers = slice(gpu, &[3u32; 50_000]);
        stream.begin_capture().unwrap();
        collectives.all_reduce(&numbers, &numbers, ReduceOp::Sum, &stream).unwrap();
        let graph = stream.end_capture().unwrap();
        drop(collectives);
        // SAFETY: what was captured keeps its memory.
        unsafe { graph.launch(&stream).unwrap() };
        stream.synchronize().unwrap();
        assert!(numbers.read().unwrap().iter().all(|number| *number == 6));
        leave(comm);
    });
}
