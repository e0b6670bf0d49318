//! Collectives of ranks on several nodes, which are threads that give their nodes names: bit for bit what a reduction on the
//! host gives, for even and uneven nodes, and nothing else is touched.

use std::{
    thread,
    time::{Duration, Instant},
};

use mscclpp::{ErrorKind, KernelArgs, KernelSource, Module};
use mscclpp_collectives::{DataType, Kind, NodesModel, ReduceOp, Request, Rows, Transfer};
use mscclpp_test_support::{LIMIT, Random};

use crate::support::by_nodes::{check, check_by, check_with, connected, on};
use crate::support::{abort_ends_waits, ranks, slice, zeros};

#[test]
fn two_nodes_of_one() {
    check(&[0, 1], 30, 40_000);
}

#[test]
fn two_nodes_of_two() {
    check(&[0, 0, 1, 1], 40, 30_000);
}

/// Ranks are not numbered node by node.
#[test]
fn two_nodes_of_two_that_alternate() {
    check(&[0, 1, 0, 1], 30, 30_000);
}

#[test]
fn uneven_nodes() {
    check(&[0, 1, 1, 1], 30, 20_000);
    check(&[0, 0, 1, 2, 2, 2], 30, 9_000);
}

#[test]
fn three_and_four_nodes() {
    check(&[0, 1, 2], 30, 20_000);
    check(&[0, 0, 1, 1, 2, 2], 20, 9_000);
    check(&[0, 1, 2, 3], 20, 9_000);
}

/// Where messages take long, fewer are sent: the bits are the same.
#[test]
fn four_nodes_that_double_what_they_have() {
    let model = NodesModel { message: 500.0, latency: 1.0, ..NodesModel::ETHERNET };
    check_with(model, &[0, 1, 2, 3], 20, 9_000);
    check_with(model, &[0, 1, 2, 3, 0, 1, 2, 3], 20, 9_000);
}

/// Where messages take long, those of a node for another one are sent together.
#[test]
fn messages_of_a_node_that_are_combined() {
    let model = NodesModel { message: 50.0, ..NodesModel::ETHERNET };
    check_with(model, &[0, 0, 1, 1, 2, 2], 20, 9_000);
    check_with(model, &[1, 1, 1, 0, 0, 0], 20, 9_000);
}

#[test]
fn several_connections_of_two_ranks() {
    check_by(2, NodesModel::ETHERNET, &[0, 1], 30, 40_000);
    check_by(3, NodesModel::ETHERNET, &[0, 0, 1], 20, 20_000);
}

/// Where the network is slow, each rank reduces a share, also of small messages.
#[test]
fn three_nodes_that_share() {
    let model = NodesModel { bandwidth: 0.0001, ..NodesModel::ETHERNET };
    check_with(model, &[0, 1, 2], 30, 20_000);
    check_with(model, &[0, 0, 1, 2, 1, 2], 20, 9_000);
}

#[test]
fn four_nodes_of_three() {
    check(&[0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3], 10, 3_000);
}

#[test]
#[ignore = "takes minutes: ci/run.sh collectives"]
fn any_nodes() {
    let mut random = Random::new();
    for _ in 0..30 {
        let nodes: Vec<_> = (0..random.of(2..=8)).map(|_| random.below(4) as u8).collect();
        check(&nodes, 100, 20_000);
    }
}

#[test]
fn replays_and_eager_calls_take_turns() {
    replays_between(&[0, 0, 1, 1]);
    replays_between(&[0, 1, 2]);
}

fn replays_between(nodes: &[u8]) {
    const LEN: usize = 40_000;
    let (seed, n) = (Random::new().word(), nodes.len());
    ranks(n, |comm, gpu| {
        let collectives = connected(nodes, comm, gpu);
        let (stream, rank) = (gpu.stream().expect("a stream"), collectives.rank());
        let numbers = zeros::<u64>(gpu, LEN);
        let before = (rank + n - 1) % n;
        let (sent, got) = (slice(gpu, &[rank as u64]), zeros::<u64>(gpu, 1));
        stream.begin_capture().unwrap();
        collectives.all_reduce(&numbers, &numbers, ReduceOp::Sum, &stream).unwrap();
        collectives.broadcast(&numbers, n - 1, &stream).unwrap();
        let transfers = [
            Transfer::Send { numbers: &sent, peer: (rank + 1) % n },
            Transfer::Recv { numbers: &got, peer: before },
        ];
        collectives.exchange(&transfers, &stream).unwrap();
        collectives.all_reduce(&numbers, &numbers, ReduceOp::Max, &stream).unwrap();
        let graph = stream.end_capture().unwrap();
        let (mut random, mut own) = (Random::with_seed(seed), Random::with_seed(seed ^ 1 ^ rank as u64));
        for round in 0..10 {
            let values: Vec<u64> = (0..n).map(|_| random.of(0..=1000)).collect();
            numbers.write(&vec![values[rank]; LEN]).unwrap();
            // A slow node slows the others and breaks nothing.
            thread::sleep(Duration::from_micros(own.of(0..=20_000)));
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
        comm.bootstrap().barrier().unwrap();
        assert!([0, before as u64].contains(&got.read().unwrap()[0]));
    });
}

/// A large all_reduce by portions, whose steps overlap.
#[test]
fn large_messages_between_nodes() {
    const LEN: usize = 1_300_003;
    ranks(5, |comm, gpu| {
        let collectives = on(&[0, 0, 1, 1, 1], comm, gpu).scratch(16 << 20).connect().expect("collectives");
        let (stream, rank) = (gpu.stream().expect("a stream"), collectives.rank() as u64);
        let of = |rank: u64| (0..LEN as u64).map(move |i| i.wrapping_mul(rank + 7) ^ rank << 60);
        let numbers = slice(gpu, &of(rank).collect::<Vec<_>>());
        let sums = zeros::<u64>(gpu, LEN);
        for _ in 0..2 {
            collectives.all_reduce(&numbers, &sums, ReduceOp::Sum, &stream).unwrap();
        }
        collectives.synchronize(&stream).unwrap();
        let mut all = (0..5).map(of).collect::<Vec<_>>();
        for (i, found) in sums.read().unwrap().into_iter().enumerate() {
            let sum = all.iter_mut().fold(0u64, |sum, of| sum.wrapping_add(of.next().expect("as many")));
            assert_eq!(found, sum, "number {i}");
        }
        comm.bootstrap().barrier().unwrap();
    });
}

/// A rank sends within its node and to another one in one call, and two that are asked for one after the other, of which each
/// needs that both are under way at once.
#[test]
fn messages_within_a_node_do_not_hold_up_those_to_others() {
    const LEN: usize = 150_000;
    ranks(3, |comm, gpu| {
        let collectives = connected(&[0, 0, 1], comm, gpu);
        let (stream, rank) = (gpu.stream().expect("a stream"), collectives.rank());
        let (sent, got) = (slice(gpu, &vec![10 + rank as u32; LEN]), zeros::<u32>(gpu, LEN));
        for _ in 0..3 {
            match rank {
                1 => {
                    let transfers = [
                        Transfer::Recv { numbers: &got, peer: 0 },
                        Transfer::Send { numbers: &sent, peer: 2 },
                    ];
                    collectives.exchange(&transfers, &stream).unwrap();
                }
                2 => {
                    collectives.recv(&got, 1, &stream).unwrap();
                    collectives.send(&sent, 0, &stream).unwrap();
                }
                _ => {
                    collectives.recv(&got, 2, &stream).unwrap();
                    collectives.send(&sent, 1, &stream).unwrap();
                }
            }
            collectives.barrier(&stream).unwrap();
            collectives.synchronize(&stream).unwrap();
            let from = [12, 10, 11][rank];
            assert!(got.read().unwrap().iter().all(|number| *number == from));
        }
        comm.bootstrap().barrier().unwrap();
    });
}

/// Groups across nodes and within one, beside each other.
#[test]
fn groups_and_communicators_do_not_disturb_each_other() {
    ranks(4, |comm, gpu| {
        let all = connected(&[0, 0, 1, 1], comm, gpu);
        let rank = all.rank();
        let likes = all.split(Some(rank as u32 % 2), 0).unwrap().expect("a group");
        let node = all.split(Some(rank as u32 / 2), 0).unwrap().expect("a group");
        let streams = [(); 3].map(|()| gpu.stream().unwrap());
        let data = [(); 3].map(|()| slice(gpu, &[1u32 << rank; 7000]));
        let registered = all.register(data[0].buffer()).expect("a registration");
        for _ in 0..3 {
            all.all_reduce(&data[0], &data[0], ReduceOp::Max, &streams[0]).unwrap();
            likes.all_reduce(&data[1], &data[1], ReduceOp::Max, &streams[1]).unwrap();
            node.all_reduce(&data[2], &data[2], ReduceOp::Max, &streams[2]).unwrap();
        }
        streams.iter().for_each(|stream| all.synchronize(stream).unwrap());
        let found = data.each_ref().map(|slice| slice.read().unwrap()[6999]);
        assert_eq!(found, [8, [4, 8][rank % 2], [2, 8][rank / 2]]);
        all.deregister(registered).expect("it is registered");
    });
}

#[test]
fn what_needs_one_node_is_refused() {
    ranks(2, |comm, gpu| {
        let refused = |error: mscclpp_collectives::Error, text: &str| {
            assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error:?}");
            assert!(error.to_string().contains(text), "{error}");
        };
        let nodes = [0, 1];
        let small = on(&nodes, comm, gpu).scratch(1 << 10).connect();
        refused(small.expect_err("it cannot be"), "too few for 1 ranks on other nodes");
        let collectives = connected(&nodes, comm, gpu);
        let stream = gpu.stream().expect("a stream");
        let numbers = zeros::<f32>(gpu, 64);
        let source = KernelSource::new("none.cu", r#"extern "C" __global__ void none() {}"#);
        let kernel = Module::load(gpu, &source).and_then(|module| module.kernel("none")).expect("a kernel");
        let rows = Rows::new(&numbers, 64).unwrap();
        // SAFETY: it is refused.
        let rows = unsafe { collectives.all_reduce_rows(&rows, &kernel, KernelArgs::new(), &stream) };
        refused(rows.expect_err("it cannot be"), "all_reduce_rows does not work between nodes");
        // All of it left no trace.
        collectives.all_reduce(&numbers, &numbers, ReduceOp::Sum, &stream).unwrap();
        collectives.synchronize(&stream).unwrap();
        let request = |kind| Request {
            kind,
            send: numbers.ptr(),
            recv: numbers.ptr(),
            count: 64,
            data_type: DataType::F32,
        };
        refused(
            collectives.selection(&request(Kind::Broadcast { root: 2 })).expect_err("it cannot be"),
            "from 2 of 2 ranks",
        );
        assert_eq!(collectives.selection(&request(Kind::AllGather)).unwrap(), None);
        comm.bootstrap().barrier().unwrap();
    });
}

#[test]
fn an_abort_ends_waits() {
    ranks(2, |comm, gpu| {
        let collectives = connected(&[0, 1], comm, gpu);
        abort_ends_waits(comm, gpu, &collectives);
    });
}

/// A rank gives up a call for which another of its node has not come. Nobody takes what it had so far for a result.
#[test]
fn a_call_that_is_given_up_gives_nobody_a_result() {
    for len in [10, 100_000] {
        ranks(4, |comm, gpu| {
            let collectives = connected(&[0, 0, 1, 1], comm, gpu);
            let stream = gpu.stream().expect("a stream");
            let numbers = zeros::<u32>(gpu, len);
            if collectives.rank() == 1 {
                return comm.bootstrap().barrier().unwrap();
            }
            collectives.all_reduce(&numbers, &numbers, ReduceOp::Sum, &stream).unwrap();
            let limit = Duration::from_millis(if collectives.rank() == 0 { 100 } else { 600 });
            let outcome = stream.synchronize_or_abort(limit, &collectives);
            outcome.expect_err("rank 1 has given nothing");
            comm.bootstrap().barrier().unwrap();
        });
    }
}

/// A rank leaves while others wait for it. All of them end, also those that wait for one that has ended.
#[test]
fn a_rank_that_leaves_ends_the_calls_of_all() {
    for leaver in 0..4 {
        ranks(4, |comm, gpu| {
            let collectives = connected(&[0, 0, 1, 1], comm, gpu);
            let stream = gpu.stream().expect("a stream");
            let numbers = zeros::<u32>(gpu, 10);
            if collectives.rank() == leaver {
                thread::sleep(Duration::from_millis(50));
                drop(collectives);
            } else {
                let begun = Instant::now();
                let call = || {
                    collectives.all_reduce(&numbers, &numbers, ReduceOp::Sum, &stream)?;
                    stream.synchronize_or_abort(LIMIT, &collectives)
                };
                call().expect_err("one rank has given nothing");
                assert!(begun.elapsed() < LIMIT, "rank {} waited until its time was up", collectives.rank());
            }
            comm.bootstrap().barrier().unwrap();
        });
    }
}
