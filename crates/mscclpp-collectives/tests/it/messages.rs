//! Messages in groups, beside collectives, and as single calls, each rank as it likes. Ranks come late. No message waits for
//! another peer's, unless both are single calls of one rank.

use std::{thread::sleep, time::Duration};

use mscclpp::DeviceBuffer;
use mscclpp_collectives::{DataType, Kind, ReduceOp, Request};
use mscclpp_test_support::{LIMIT, Random};

use crate::support::{builder, ranks, rounds};

/// The numbers of each collective.
const COUNT: u64 = 100;

/// A message, in an order of all in which single calls are made.
#[derive(Debug, Clone, Copy)]
struct Sent {
    from: usize,
    to: usize,
    count: u64,
}

/// Up to seven in a row between the same ranks, of which few are larger than a ring has room for.
fn messages(random: &mut Random, n: usize) -> Vec<Sent> {
    let mut all = Vec::new();
    for _ in 0..random.of(2..=6) {
        let from = random.below(n);
        let to = (from + 1 + random.below(n - 1)) % n;
        for _ in 0..random.of(1..=7) {
            let count = if random.below(8) == 0 { random.of(0..=50_000) } else { random.of(0..=100) };
            all.push(Sent { from, to, count });
        }
    }
    all
}

fn numbers(seed: u64, count: u64) -> Vec<u8> {
    Random::with_seed(seed).bytes(count as usize * 4)
}

fn beside_each_other(n: usize, rounds: u64) {
    let seed = Random::new().word();
    ranks(n, |comm, gpu| {
        let builder = builder(comm, gpu).scratch((n as u64 - 1) << 20).timeout(LIMIT);
        let collectives = builder.connect().expect("collectives");
        let (stream, rank) = (gpu.stream().expect("a stream"), collectives.rank());
        let mut random = Random::with_seed(seed);
        let mut own = Random::with_seed(seed ^ (rank as u64 + 1));
        for round in 0..rounds {
            let all = messages(&mut random, n);
            let of_message = |i: usize| numbers(seed ^ round << 16 ^ i as u64, all[i].count);
            let mine: Vec<(usize, DeviceBuffer)> = (0..all.len())
                .filter(|i| all[*i].from == rank || all[*i].to == rank)
                .map(|i| {
                    let memory = gpu.allocate(all[i].count * 4 + 4).expect("memory");
                    if all[i].from == rank {
                        memory.write(0, &of_message(i)).expect("a write");
                    }
                    (i, memory)
                })
                .collect();
            let request =
                |kind, send, recv, count| Request { kind, send, recv, count, data_type: DataType::U32 };
            let requests = mine.iter().map(|(i, memory)| {
                let Sent { from, to, count } = all[*i];
                let kind = if from == rank { Kind::Send { peer: to } } else { Kind::Recv { peer: from } };
                request(kind, memory.ptr(), memory.ptr(), count)
            });
            let requests: Vec<_> = requests.collect();
            let words = gpu.allocate((n as u64 + 2) * COUNT * 4).expect("memory");
            let given = vec![(round + rank as u64) as u8; COUNT as usize * 4];
            words.write(0, &given).expect("a write");
            let at = |i: u64| words.ptr().add(i * COUNT * 4);
            let both = [
                request(Kind::AllGather, at(0), at(2), COUNT),
                request(Kind::AllReduce(ReduceOp::Max), at(0), at(1), COUNT),
            ];
            let how = own.below(3);
            let mut enqueue = |requests: &[Request<'_>]| {
                sleep(Duration::from_millis(if own.below(4) == 0 { own.of(0..=20) } else { 0 }));
                // SAFETY: the memory lives until the calls are complete, and is that of one call each.
                unsafe { collectives.enqueue(requests, &stream).expect("calls") };
            };
            match how {
                0 => enqueue(&[&both[..], &requests].concat()),
                1 => {
                    enqueue(&both);
                    enqueue(&requests);
                }
                _ => {
                    enqueue(&both);
                    requests.chunks(1).for_each(&mut enqueue);
                }
            }
            if let Err(error) = collectives.synchronize(&stream) {
                panic!("round {round}, rank {rank} of {n}: {error}, with {all:?}");
            }
            for (i, memory) in mine {
                let mut found = vec![0; all[i].count as usize * 4];
                memory.read(0, &mut found).expect("a read");
                assert!(found == of_message(i), "round {round}, rank {rank} of {n}, message {i} of {all:?}");
            }
            let mut found = vec![0; (n + 1) * COUNT as usize * 4];
            words.read(COUNT * 4, &mut found).expect("a read");
            let by_rank = (0..n).flat_map(|r| [(round + r as u64) as u8; COUNT as usize * 4]);
            let most = [(round + n as u64 - 1) as u8; COUNT as usize * 4];
            assert!(
                found.into_iter().eq(most.into_iter().chain(by_rank)),
                "round {round}, rank {rank} of {n}"
            );
        }
        comm.bootstrap().barrier().expect("all ranks");
    });
}

#[test]
fn of_two_ranks() {
    beside_each_other(2, rounds(12));
}

#[test]
fn of_three_ranks() {
    beside_each_other(3, rounds(12));
}

#[test]
fn of_four_ranks() {
    beside_each_other(4, rounds(8));
}
