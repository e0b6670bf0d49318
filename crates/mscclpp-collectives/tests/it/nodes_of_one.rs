//! Collectives of nodes of one rank each: the way of devices that do not reach each other's memory.

use crate::support::{builder, one_message, ranks, slice, three_at_once, zeros};
use mscclpp::{Communicator, Gpu, Transport};
use mscclpp_collectives::{Collectives, ReduceOp, Transfer};

/// Ranks that leave before the others have seen all that was sent are a failure for these.
fn leave(comm: &Communicator) {
    comm.bootstrap().barrier().expect("all ranks");
}

/// Scratch is little, so messages are many chunks.
fn connected(comm: &Communicator, gpu: &Gpu) -> Collectives {
    let node = format!("n{}", comm.bootstrap().rank());
    let apart = builder(comm, gpu).node(node).between_nodes(Transport::ETHERNET);
    apart.scratch(512 << 10).connect().expect("collectives")
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
        one_message(gpu, &collectives, &stream);
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
        let data = [(); 3].map(|()| slice(gpu, &[1u32 + rank as u32; 7000]));
        let registered = all.register(data[0].buffer()).expect("a registration");
        let found = three_at_once(gpu, [&all, &direct], pair.as_ref(), &data, 3);
        assert_eq!(found, [3, 1, [16, 2, 16][rank]]);
        all.deregister(registered).expect("it is registered");
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
