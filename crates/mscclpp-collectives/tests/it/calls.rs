//! Calls of collectives: typed ones, captured ones, on several streams, of groups of ranks; messages.

use std::{sync::Arc, time::Duration};

use crate::support::{builder, one_message, platform, ranks, slice, three_at_once, turn, zeros};
use mscclpp::prelude::*;
use mscclpp_collectives::{Collectives, ReduceOp, Transfer};
use mscclpp_test_support::Random;

#[test]
fn typed_calls_do_what_they_say() {
    ranks(3, |comm, gpu| {
        let collectives = builder(comm, gpu).connect().expect("collectives");
        let stream = gpu.stream().expect("a stream");
        let rank = collectives.rank();
        let r = rank as i32;
        let three = slice(gpu, &[r, 10 + r, 20 + r]);
        let (one, nine) = (slice(gpu, &[100 + r]), zeros::<i32>(gpu, 9));
        let sum = zeros::<i32>(gpu, 3);

        collectives.all_reduce(&three, &sum, ReduceOp::Sum, &stream).unwrap();
        collectives.all_gather(&three, &nine, &stream).unwrap();
        collectives.synchronize(&stream).unwrap();
        assert_eq!(sum.read().unwrap(), [3, 33, 63]);
        assert_eq!(nine.read().unwrap(), [0, 10, 20, 1, 11, 21, 2, 12, 22]);

        let part = zeros::<i32>(gpu, 1);
        collectives.reduce_scatter(&three, &part, ReduceOp::Max, &stream).unwrap();
        collectives.all_to_all(&three, &sum, &stream).unwrap();
        collectives.synchronize(&stream).unwrap();
        assert_eq!(part.read().unwrap(), [r * 10 + 2]);
        assert_eq!(sum.read().unwrap(), [r * 10, r * 10 + 1, r * 10 + 2]);

        collectives.broadcast(&one, 2, &stream).unwrap();
        collectives.barrier(&stream).unwrap();
        collectives.synchronize(&stream).unwrap();
        assert_eq!(one.read().unwrap(), [102]);

        let at_root = (rank == 1).then_some(&sum);
        collectives.reduce(&three, at_root, ReduceOp::Avg, 1, &stream).unwrap();
        collectives.synchronize(&stream).unwrap();
        if rank == 1 {
            assert_eq!(sum.read().unwrap(), [1, 11, 21]);
        }
        collectives.gather(&part, at_root, 1, &stream).unwrap();
        collectives.scatter(at_root, &one, 1, &stream).unwrap();
        collectives.synchronize(&stream).unwrap();
        assert_eq!(one.read().unwrap(), [r * 10 + 2]);

        // Rank r gives r numbers.
        let some = slice(gpu, &vec![r as u8; rank]);
        let all = zeros::<u8>(gpu, 3);
        collectives.all_gather_v(&some, &all, &[0, 1, 2], &stream).unwrap();
        collectives.synchronize(&stream).unwrap();
        assert_eq!(all.read().unwrap(), [1, 2, 2]);
    });
}

/// One thread sets up two ranks and makes their calls; and ends a set-up for which the other rank never comes.
#[test]
fn a_thread_sets_up_several_ranks() {
    let _turn = turn();
    let devices = platform().device_count().expect("devices");
    let comms: Vec<_> = LocalBootstrap::group(2)
        .into_iter()
        .map(|bootstrap| Communicator::with_context(Arc::new(bootstrap), Context::on(platform())))
        .collect();
    let gpus: Vec<_> = (0..2).map(|r| comms[r].context().gpu(r % devices).expect("a device")).collect();
    let of_both = || comms.iter().zip(&gpus);
    let pending: Vec<_> =
        of_both().map(|(comm, gpu)| builder(comm, gpu).start().expect("a thread")).collect();
    let both: Vec<_> = pending.into_iter().map(|rank| rank.wait().expect("collectives")).collect();
    let numbers: Vec<_> = gpus.iter().map(|gpu| slice(gpu, &[20u32, 22])).collect();
    let streams: Vec<_> = gpus.iter().map(|gpu| gpu.stream().expect("a stream")).collect();
    for r in 0..2 {
        both[r].all_reduce(&numbers[r], &numbers[r], ReduceOp::Sum, &streams[r]).unwrap();
    }
    for r in 0..2 {
        both[r].synchronize(&streams[r]).unwrap();
        assert_eq!(numbers[r].read().unwrap(), [40, 44]);
    }

    let alone = builder(&comms[0], &gpus[0]).tag(9).start().expect("a thread");
    std::thread::sleep(Duration::from_millis(20));
    assert!(!alone.poll());
    alone.abort("the other never comes");
    let error = alone.wait().expect_err("it was aborted").to_string();
    assert!(error.contains("the other never comes"), "{error}");
}

/// Counts that only pairs of ranks know, in chunks and rings that are much smaller than the messages.
#[test]
fn all_to_all_with_counts_of_any_kind() {
    let seed = Random::new().word();
    ranks(4, |comm, gpu| {
        let collectives = builder(comm, gpu).scratch(2 << 20).connect().expect("collectives");
        let stream = gpu.stream().expect("a stream");
        let (rank, mut random) = (collectives.rank(), Random::with_seed(seed));
        for _ in 0..10 {
            let counts: Vec<Vec<u64>> =
                (0..4).map(|_| (0..4).map(|_| random.of(0..=1) * random.of(0..=300_000)).collect()).collect();
            let byte = |from: usize, to: usize, i: u64| (i as u8) ^ (from * 16 + to) as u8;
            let bytes = |from: usize, to: usize| (0..counts[from][to]).map(move |i| byte(from, to, i));
            let sent: Vec<u8> = (0..4).flat_map(|to| bytes(rank, to)).collect();
            let received: Vec<u8> = (0..4).flat_map(|from| bytes(from, rank)).collect();
            let (send, recv) = (slice(gpu, &sent), zeros::<u8>(gpu, received.len()));
            let column: Vec<u64> = counts.iter().map(|row| row[rank]).collect();
            collectives.all_to_all_v(&send, &counts[rank], &recv, &column, &stream).unwrap();
            collectives.synchronize(&stream).unwrap();
            assert!(recv.read().unwrap() == received, "rank {rank}, {counts:?}");
        }
    });
}

/// Two communicators of the same ranks, on two streams, and groups that overlap.
#[test]
fn communicators_and_groups_do_not_disturb_each_other() {
    ranks(4, |comm, gpu| {
        let all = builder(comm, gpu).connect().expect("collectives");
        let again = builder(comm, gpu).tag(7).connect().expect("collectives");
        let rank = all.rank();
        // The odd ones, in the other order; rank 2 stays alone; rank 0 has none.
        let color = [None, Some(1), Some(0), Some(1)][rank];
        let odd = all.split(color, -(rank as i32)).expect("a group");
        assert_eq!(
            odd.as_ref().map(|group| (group.rank(), group.n_ranks())),
            [None, Some((1, 2)), Some((0, 1)), Some((0, 2))][rank]
        );
        let data = [(); 3].map(|()| slice(gpu, &[1u32 + rank as u32; 700]));
        let found = three_at_once(gpu, [&all, &again], odd.as_ref(), &data, 5);
        assert_eq!(found, [4, 1, [1, 6 * 16, 3, 6 * 16][rank]]);
    });
}

/// Rings, and more messages than fit into a launch, in both directions at once.
#[test]
fn messages_arrive_in_their_order() {
    let seed = Random::new().word();
    ranks(3, |comm, gpu| {
        let collectives = builder(comm, gpu).scratch(2 << 20).connect().expect("collectives");
        let stream = gpu.stream().expect("a stream");
        let (rank, mut random) = (collectives.rank(), Random::with_seed(seed));
        let (next, before) = ((rank + 1) % 3, (rank + 2) % 3);
        for round in 0..12u32 {
            let sizes: Vec<usize> = (0..random.of(1..=7))
                .map(|_| random.of(0..=1) as usize * random.of(0..=40_000) as usize)
                .collect();
            let message = |from: usize, i: usize, len: usize| -> Vec<u32> {
                (0..len as u32).map(|n| n ^ (round << 20) ^ ((from * 8 + i) as u32) << 24).collect()
            };
            let sent: Vec<_> =
                sizes.iter().enumerate().map(|(i, len)| slice(gpu, &message(rank, i, *len))).collect();
            let got: Vec<_> = sizes.iter().map(|len| zeros::<u32>(gpu, *len)).collect();
            let (own, copy) = (slice(gpu, &[round]), zeros::<u32>(gpu, 1));
            let mut transfers: Vec<_> =
                sent.iter().map(|numbers| Transfer::Send { numbers, peer: next }).collect();
            transfers.extend(got.iter().map(|numbers| Transfer::Recv { numbers, peer: before }));
            transfers.push(Transfer::Recv { numbers: &copy, peer: rank });
            transfers.push(Transfer::Send { numbers: &own, peer: rank });
            collectives.exchange(&transfers, &stream).unwrap();
            collectives.synchronize(&stream).unwrap();
            for (i, numbers) in got.iter().enumerate() {
                assert!(
                    numbers.read().unwrap() == message(before, i, numbers.len()),
                    "{round} {i} {sizes:?}"
                );
            }
            assert_eq!(copy.read().unwrap(), [round]);
        }
        one_message(gpu, &collectives, &stream);
    });
}

/// Calls on two streams of one capture come one after the other, as they were made. A side stream of theirs may still be in that
/// capture when a call is made outside of it. Simulated devices capture one stream alone.
#[test]
fn calls_in_two_streams_of_a_capture_have_an_order() {
    ranks(2, |comm, gpu| {
        if gpu.platform() == Platform::Sim {
            return;
        }
        let collectives = builder(comm, gpu).connect().expect("collectives");
        let rank = collectives.rank() as u32;
        let streams = [(); 2].map(|()| gpu.stream().expect("a stream"));
        let numbers = [(); 2].map(|()| zeros::<u32>(gpu, 20_000));
        let outside = slice(gpu, &[rank + 1; 100]);
        let events = [(); 2].map(|()| gpu.event(false).expect("an event"));

        streams[0].begin_capture().unwrap();
        streams[0].record(&events[0]).unwrap();
        streams[1].wait_event(&events[0]).unwrap();
        for _ in 0..4 {
            for (numbers, stream) in numbers.iter().zip(&streams) {
                collectives.all_reduce(numbers, numbers, ReduceOp::Sum, stream).unwrap();
            }
        }
        let third = gpu.stream().unwrap();
        collectives.all_reduce(&outside, &outside, ReduceOp::Sum, &third).unwrap();
        streams[1].record(&events[1]).unwrap();
        streams[0].wait_event(&events[1]).unwrap();
        let graph = streams[0].end_capture().unwrap();
        collectives.synchronize(&third).unwrap();
        assert_eq!(outside.read().unwrap(), [3; 100]);

        for round in 0..200 {
            let given = |n: u32, rank: u32| round * 10 + n + rank;
            for (n, numbers) in (0..).zip(&numbers) {
                numbers.write(&[given(n, rank); 20_000]).unwrap();
            }
            // SAFETY: what was captured keeps its memory.
            unsafe { graph.launch(&third).unwrap() };
            collectives.synchronize(&third).unwrap();
            for (n, numbers) in (0..).zip(&numbers) {
                let expected = 8 * (given(n, 0) + given(n, 1));
                assert!(numbers.read().unwrap().iter().all(|it| *it == expected), "round {round}");
            }
        }
        comm.bootstrap().barrier().unwrap();
    });
}

/// Two communicators on one stream, and the first of them on a stream of its own: each has one order on both ranks. A
/// call that waited for all that is in the stream of the call before it would wait for the other communicator, whose
/// turn comes later on rank 1.
#[test]
fn a_call_waits_for_the_call_before_it_and_for_nothing_behind_that() {
    ranks(2, |comm, gpu| {
        let limit = Duration::from_secs(60);
        let first = builder(comm, gpu).connect().expect("collectives");
        let second = builder(comm, gpu).connect().expect("collectives");
        let mut streams = vec![gpu.stream().expect("a stream")];
        // Ranks that share a device also share its default stream, in which one would be behind the other.
        if platform().device_count().expect("devices") > 1 {
            streams.push(gpu.default_stream().expect("a stream"));
        }
        for shared in streams {
            let own = gpu.stream().expect("a stream");
            let numbers = [0; 3].map(|_| slice(gpu, &[1u32; 3000]));
            let call = |collectives: &Collectives, n: usize, stream: &Stream| {
                collectives.all_reduce(&numbers[n], &numbers[n], ReduceOp::Sum, stream).unwrap();
            };
            call(&first, 0, &shared);
            if first.rank() == 0 {
                call(&second, 1, &shared);
            }
            call(&first, 2, &own);
            own.synchronize_timeout(limit).expect("it waits for no call of the other communicator");
            if first.rank() == 1 {
                call(&second, 1, &shared);
            }
            shared.synchronize_timeout(limit).unwrap();
            first.synchronize(&shared).unwrap();
            second.synchronize(&shared).unwrap();
            for numbers in &numbers {
                assert_eq!(numbers.read().unwrap(), [2; 3000]);
            }
        }
        comm.bootstrap().barrier().unwrap();
    });
}

/// Calls on two streams, of which the first is captured behind its call, which waits for the other rank.
#[test]
fn a_capture_behind_a_call_does_not_hide_it() {
    ranks(2, |comm, gpu| {
        let collectives = builder(comm, gpu).check_calls(true).connect().expect("collectives");
        let streams = [0, 1].map(|_| gpu.stream().expect("a stream"));
        let numbers = [0, 1].map(|_| slice(gpu, &[1u32; 3000]));
        if collectives.rank() == 1 {
            std::thread::sleep(Duration::from_millis(200));
        }
        collectives.all_reduce(&numbers[0], &numbers[0], ReduceOp::Sum, &streams[0]).unwrap();
        streams[0].begin_capture().unwrap();
        collectives.all_reduce(&numbers[1], &numbers[1], ReduceOp::Sum, &streams[1]).unwrap();
        drop(streams[0].end_capture().unwrap());
        for (stream, numbers) in streams.iter().zip(&numbers) {
            collectives.synchronize(stream).unwrap();
            assert_eq!(numbers.read().unwrap(), [2; 3000]);
        }
        comm.bootstrap().barrier().unwrap();
    });
}
