//! Chunks: blocks that put beside blocks that take, or two ranks' lanes, in place on some ranks and not on others, by calls of
//! different numbers of blocks one after the other, and late on one of them. Rings of four chunks are smaller than the messages.

use std::{thread, time::Duration};

use crate::support::{Told, platform, ranks, slice, zeros};
use mscclpp::Platform;
use mscclpp_collectives::{Collectives, CollectivesBuilder, Protocol, ReduceOp, Selection};
use mscclpp_test_support::Random;

#[test]
fn chunks_go_by_any_number_of_blocks() {
    for n in [3, 4, 5] {
        chunks_of(n, Protocol::Simple, |builder| builder.max_blocks(7).scratch(n as u64 * (768 << 10)));
    }
}

#[test]
fn chunks_go_by_lanes_of_a_block() {
    chunks_of(2, Protocol::SimpleByBulk, |builder| builder.max_blocks(12).overlap(true).scratch(2 << 20));
}

/// The number of blocks is not given, so it is what there is room for.
#[test]
fn chunks_go_by_the_blocks_that_have_room() {
    chunks_of(4, Protocol::Simple, |builder| builder.scratch(1 << 20));
}

fn chunks_of(n: usize, protocol: Protocol, with: impl Fn(CollectivesBuilder) -> CollectivesBuilder + Sync) {
    let seed = Random::new().word();
    ranks(n, |comm, gpu| {
        let chunks = Selection { protocol, two_steps: false, blocks: 1, threads: 32 };
        let told = Told::new(chunks);
        let builder = with(Collectives::builder(comm, gpu)).selector(told.clone());
        let collectives = builder.connect().expect("collectives");
        let (stream, rank) = (gpu.stream().expect("a stream"), collectives.rank());
        // The same on all ranks.
        let mut random = Random::with_seed(seed);
        for round in 0..if platform() == Platform::Sim { 4 } else { 8u32 } {
            let part = random.of(1..=120_000) as usize;
            let (blocks, two_steps) = (random.of(1..=7) as u32, random.of(0..=1) == 1);
            let in_place = random.of(0..=15) >> rank & 1 == 1;
            let threads = 32 << random.of(0..=1);
            let said = format!(
                "seed {seed}, round {round}, rank {rank}: {part} x {n}, {blocks} blocks, {two_steps} {in_place}"
            );
            let late = random.of(0..=n as u64) as usize;
            told.tell(Selection { two_steps, blocks, threads, ..chunks });

            let number =
                |from: usize, i: usize| (i as u32).wrapping_mul(0x9e37_79b9) ^ (round << 8 | from as u32);
            let given = || slice(gpu, &(0..part * n).map(|i| number(rank, i)).collect::<Vec<_>>());
            let result = |send| if in_place { send } else { zeros(gpu, part * n) };
            let sum = |i: usize| (0..n).fold(0u32, |sum, from| sum.wrapping_add(number(from, i)));

            let send = given();
            let sums = result(send.clone());
            if late == rank {
                thread::sleep(Duration::from_millis(3));
            }
            collectives.all_reduce(&send, &sums, ReduceOp::Sum, &stream).unwrap();
            let send = given();
            let moved = result(send.clone());
            collectives.all_to_all(&send, &moved, &stream).unwrap();
            let (send, scattered) = (given(), zeros::<u32>(gpu, part));
            collectives.reduce_scatter(&send, &scattered, ReduceOp::Sum, &stream).unwrap();
            let gathered = zeros::<u32>(gpu, part * n);
            collectives.all_gather(&scattered, &gathered, &stream).unwrap();
            let root = round as usize % n;
            let told_to_all = given();
            collectives.broadcast(&told_to_all, root, &stream).unwrap();
            collectives.synchronize(&stream).unwrap();

            let all_sums: Vec<u32> = (0..part * n).map(sum).collect();
            assert!(sums.read().unwrap() == all_sums, "all_reduce, {said}");
            assert!(gathered.read().unwrap() == all_sums, "reduce_scatter and all_gather, {said}");
            let from = |from| (0..part).map(move |i| number(from, rank * part + i));
            assert!(moved.read().unwrap() == (0..n).flat_map(from).collect::<Vec<_>>(), "all_to_all, {said}");
            let roots: Vec<u32> = (0..part * n).map(|i| number(root, i)).collect();
            assert!(told_to_all.read().unwrap() == roots, "broadcast, {said}");
        }
    });
}
