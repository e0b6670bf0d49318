//! Random groups of calls of all kinds give bit for bit what the calls give one by one, and touch nothing else, and again in
//! graphs. Ranks come late.

use std::{thread::sleep, time::Duration};

use mscclpp::{DeviceBuffer, ErrorKind, gpu::Graph};
use mscclpp_collectives::{DataType, Kind, Protocol, ReduceOp, Request, Selection};
use mscclpp_test_support::Random;

use crate::support::{Counted, Told, builder, ranks, rounds};

/// The bytes of the memory that is given, and of that which is taken.
const ROOM: u64 = 2 << 20;
const OPS: [ReduceOp; 6] =
    [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min, ReduceOp::Avg, ReduceOp::PreMulSum(0.5)];
/// The protocols by which calls go together, and one by which they do not.
const PROTOCOLS: [Protocol; 4] = [Protocol::Ll16, Protocol::Ll128, Protocol::Simple, Protocol::Direct];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Which {
    AllGather,
    AllGatherV,
    AllToAll,
    Broadcast,
    Gather,
    Scatter,
    Reduce,
    AllReduce,
    ReduceScatter,
    AllToAllV,
    /// A message to the next rank, and one from the rank before.
    Ring,
    /// A message from the root to a rank, perhaps itself: the others have none.
    Message,
}

/// Those that move are first, then those that reduce.
const KINDS: [Which; 12] = [
    Which::AllGather,
    Which::AllGatherV,
    Which::AllToAll,
    Which::Broadcast,
    Which::Gather,
    Which::Scatter,
    Which::AllToAllV,
    Which::Reduce,
    Which::AllReduce,
    Which::ReduceScatter,
    Which::Ring,
    Which::Message,
];

/// One call of a group. Its memory is at the same place of that which is given and of that which is taken.
#[derive(Debug, Clone)]
struct Member {
    which: Which,
    data_type: DataType,
    op: ReduceOp,
    count: u64,
    /// The counts of each rank, or those from each rank to each.
    counts: Vec<Vec<u64>>,
    /// The counts that come to this rank.
    taken: Vec<u64>,
    root: usize,
    /// The rank that a message of the root's goes to.
    to: usize,
    in_place: bool,
    at: u64,
}

impl Member {
    fn bytes(&self) -> u64 {
        self.count * self.data_type.size()
    }

    fn requests(&self, rank: usize, n: usize, memory: &[DeviceBuffer; 2]) -> Vec<Request<'_>> {
        let [given, taken] = memory.each_ref().map(|memory| memory.ptr().add(self.at));
        let (op, root) = (self.op, self.root);
        let own = rank as u64 * self.bytes();
        let before: u64 = self.counts[0][..rank].iter().sum();
        let (send, recv) = match (self.in_place, self.which) {
            (true, Which::AllReduce | Which::Reduce | Which::Broadcast | Which::AllToAll) => (taken, taken),
            (true, Which::AllGather) => (taken.add(own), taken),
            (true, Which::AllGatherV) => (taken.add(before * self.data_type.size()), taken),
            (true, Which::Gather) if rank == root => (taken.add(own), taken),
            (true, Which::ReduceScatter) => (taken, taken.add(own)),
            (true, Which::Scatter) if rank == root => (taken, taken.add(own)),
            _ => (given, taken),
        };
        let kinds = match self.which {
            Which::AllGather => vec![Kind::AllGather],
            Which::AllGatherV => vec![Kind::AllGatherV(&self.counts[0])],
            Which::AllToAll => vec![Kind::AllToAll],
            Which::Broadcast => vec![Kind::Broadcast { root }],
            Which::Gather => vec![Kind::Gather { root }],
            Which::Scatter => vec![Kind::Scatter { root }],
            Which::Reduce => vec![Kind::Reduce { root, op }],
            Which::AllReduce => vec![Kind::AllReduce(op)],
            Which::ReduceScatter => vec![Kind::ReduceScatter(op)],
            Which::AllToAllV => vec![Kind::AllToAllV { send: &self.counts[rank], recv: &self.taken }],
            Which::Ring => {
                vec![Kind::Send { peer: (rank + 1) % n }, Kind::Recv { peer: (rank + n - 1) % n }]
            }
            Which::Message => {
                let sent = (rank == root).then_some(Kind::Send { peer: self.to });
                sent.into_iter().chain((rank == self.to).then_some(Kind::Recv { peer: root })).collect()
            }
        };
        let request = |kind| Request { kind, send, recv, count: self.count, data_type: self.data_type };
        kinds.into_iter().map(request).collect()
    }
}

/// The calls that come more often in a group.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Often {
    Moves,
    Reduces,
    /// Large ones, of which most have the same kind, type and operation.
    LargeReduces,
    /// Many `all_reduce`s, of which most are small and have the same type and operation.
    SmallReduces,
}

/// A group, alike on all ranks. Some calls follow each other with each rank as their root. But for
/// [large ones that reduce](Often::LargeReduces), all or most are small.
fn group(random: &mut Random, rank: usize, n: usize, often: Often) -> Vec<Member> {
    let kinds = if often == Often::Moves { &KINDS[..7] } else { &KINDS[7..10] };
    let mut members: Vec<Member> = Vec::new();
    let mut end = 0;
    let are_small = random.below(2) == 0;
    // How many of eight calls have the kind of the one before, how many of twelve have another type or operation, and how many
    // operations there are to choose from.
    let (same_kind, other_type, ops, most) = match often {
        Often::LargeReduces => (7, 1, 4, 24),
        Often::SmallReduces => (0, 1, OPS.len(), 150),
        Often::Moves | Often::Reduces => (4, 3, OPS.len(), 24),
    };
    for _ in 0..random.of(2..=most) {
        let which = match (members.last(), random.below(8)) {
            _ if often == Often::SmallReduces => Which::AllReduce,
            (Some(last), roll) if roll < same_kind => last.which,
            (_, 0..=5) => kinds[random.below(kinds.len())],
            (_, 6) => KINDS[10 + random.below(2)],
            _ => KINDS[random.below(KINDS.len())],
        };
        let (data_type, op) = match members.last() {
            Some(last) if random.below(12) >= other_type => (last.data_type, last.op),
            _ => (DataType::ALL[random.below(DataType::ALL.len())], OPS[random.below(ops)]),
        };
        let count = match random.below(12) {
            0 => 0,
            1 if often == Often::SmallReduces => random.of(2000..=9000),
            _ if often == Often::SmallReduces => random.of(1..=150),
            1..=9 if often == Often::LargeReduces => random.of(16 << 10..=64 << 10) / data_type.size(),
            1 if !are_small => random.of(1000..=9000),
            2..=6 if !are_small && end == 0 => random.of(20_000..=40_000),
            _ => random.of(1..=100),
        };
        let mut some =
            || (0..n).map(|_| if random.below(4) == 0 { 0 } else { random.of(0..=count) }).collect();
        let counts: Vec<Vec<u64>> = (0..n).map(|_| some()).collect();
        let root = match members.last() {
            Some(last) if random.below(4) > 0 => (last.root + 1) % n,
            _ => random.below(n),
        };
        let size = data_type.size();
        let at = (end + random.of(0..=9)).next_multiple_of(if random.below(2) == 0 { size } else { 16 });
        end = at + count * size * n as u64;
        if end > ROOM {
            break;
        }
        let taken = counts.iter().map(|counts| counts[rank]).collect();
        let in_place = random.below(2) == 0;
        let to = random.below(n);
        members.push(Member { which, data_type, op, count, counts, taken, root, to, in_place, at });
    }
    members
}

/// Fresh numbers of this rank, none of which is infinite or not a number, whatever its type.
fn data(random: &mut Random) -> Vec<u8> {
    let mut data = Vec::with_capacity(ROOM as usize);
    for _ in 0..ROOM / 8 {
        data.extend_from_slice(&(random.word() & 0xbfbf_bfbf_bfbf_bfbf).to_le_bytes());
    }
    data
}

fn groups(n: usize, rounds: u64) {
    let seed = Random::new().word();
    ranks(n, |comm, gpu| {
        let told =
            Told::new(Selection { protocol: Protocol::Simple, two_steps: false, blocks: 1, threads: 32 });
        // Little scratch, so that large messages are more chunks than a ring has places.
        let builder = builder(comm, gpu).scratch((n as u64 - 1) << 19).selector(told.clone());
        let collectives = builder.connect().expect("collectives");
        let (stream, rank) = (gpu.stream().expect("a stream"), collectives.rank());
        let memory = [(); 2].map(|()| gpu.allocate(ROOM).expect("memory"));
        let mut registered = None;
        let mut random = Random::with_seed(seed);
        let mut own = Random::with_seed(seed ^ (rank as u64 + 1));
        // The contents of the memory after `calls` on fresh numbers, of which all rounds of one number have the same.
        let played = |round: u64, calls: &dyn Fn()| {
            let mut random = Random::with_seed(seed ^ round << 16 ^ (rank as u64) << 8);
            memory.iter().for_each(|memory| memory.write(0, &data(&mut random)).expect("a write"));
            calls();
            collectives.synchronize(&stream).expect("the calls");
            memory.each_ref().map(|memory| {
                let mut found = vec![0; ROOM as usize];
                memory.read(0, &mut found).expect("a read");
                found
            })
        };
        for round in 0..rounds {
            // From then on an all_to_all with counts goes alone, as does what moves by `Protocol::Direct`.
            if round == rounds / 2 {
                registered = Some(collectives.register(&memory[1]).expect("a registration"));
            }
            use Often::{LargeReduces, Moves, Reduces, SmallReduces};
            let often = [Moves, Reduces, SmallReduces, Moves, LargeReduces][round as usize % 5];
            let reduces = often != Often::Moves;
            let members = group(&mut random, rank, n, often);
            let (blocks, threads) = (random.of(1..=3) as u32, 32 * random.of(1..=3) as u32);
            // Small calls that reduce go together by the first one, in one step, and others by the next two.
            let protocol = PROTOCOLS[random.below(if reduces { 3 } else { PROTOCOLS.len() })];
            let two_steps = often == Often::LargeReduces && random.below(3) > 0;
            told.tell(Selection { protocol, two_steps, blocks, threads });
            let of_each: Vec<_> = members.iter().map(|member| member.requests(rank, n, &memory)).collect();
            let all = of_each.concat();
            let late = Duration::from_millis(if own.below(3) == 0 { own.of(0..=30) } else { 0 });
            let enqueue = |requests: &[Request<'_>]| {
                // SAFETY: the memory has room for all members, which lie behind each other.
                unsafe { collectives.enqueue(requests, &stream).expect("calls") };
            };
            let expected = played(round, &|| of_each.iter().for_each(|requests| enqueue(requests)));
            let check = |found: [Vec<u8>; 2], how: &str| {
                for (found, expected) in found.iter().zip(&expected) {
                    if found == expected {
                        continue;
                    }
                    let at = found.iter().zip(expected).position(|(a, b)| a != b).expect("a difference");
                    let of = members.iter().rev().find(|member| member.at <= at as u64);
                    panic!(
                        "round {round}, rank {rank} of {n}, {how}: byte {at} is {:#x} instead of {:#x}, of {of:?}, by \
                         {protocol} with {blocks} blocks, in {members:?}",
                        found[at], expected[at]
                    );
                }
            };
            let found = played(round, &|| {
                sleep(late);
                enqueue(&all);
            });
            check(found, "together");
            stream.begin_capture().expect("a capture");
            enqueue(&all);
            let graph: Graph = stream.end_capture().expect("a graph");
            // A GPU may make a graph only when its kernels have ended, and ranks that share it wait for each other.
            comm.bootstrap().barrier().expect("all ranks");
            let found = played(round, &|| {
                sleep(late);
                // SAFETY: what it was captured with lives, and nothing else runs.
                unsafe { graph.launch(&stream).expect("a launch") };
            });
            check(found, "in a graph");
        }
        comm.bootstrap().barrier().expect("all ranks");
        drop(registered);
    });
}

#[test]
fn of_two_ranks() {
    groups(2, rounds(10));
}

#[test]
fn of_three_ranks() {
    groups(3, rounds(5));
}

#[test]
fn of_four_ranks() {
    groups(4, rounds(5));
}

/// Tokens, their scales and the experts of each, of all ranks: three types, in one launch.
#[test]
fn what_moves_is_one_launch() {
    ranks(3, |comm, gpu| {
        let counted = Counted::default();
        let collectives = builder(comm, gpu).selector(counted.clone()).connect().expect("collectives");
        let (stream, n) = (gpu.stream().expect("a stream"), collectives.n_ranks() as u64);
        let memory = gpu.allocate(8 << 20).expect("memory");
        let launches = |requests: &[Request<'_>]| {
            let before = counted.count();
            // SAFETY: the callers below see to it that there is room.
            unsafe { collectives.enqueue(requests, &stream).expect("calls") };
            collectives.synchronize(&stream).expect("the calls");
            counted.count() - before
        };
        for tokens in [1, 32] {
            // Calls of these columns for each token: behind each other.
            let calls = |columns: &[(u64, DataType)], kinds: &[(Kind<'static>, u64)]| {
                let mut at = memory.ptr();
                let mut call = |kind, count: u64, data_type: DataType| {
                    let (recv, bytes) = (at, count * data_type.size());
                    at = at.add((n + 1) * bytes);
                    Request { kind, send: recv.add(n * bytes), recv, count, data_type }
                };
                let mut of = |columns, data_type| {
                    kinds
                        .iter()
                        .map(|(kind, tokens)| call(*kind, tokens * columns, data_type))
                        .collect::<Vec<_>>()
                };
                columns.iter().flat_map(|(columns, data_type)| of(*columns, *data_type)).collect::<Vec<_>>()
            };
            let three = [(7168, DataType::Bf16), (8, DataType::F32), (8, DataType::I32)];
            assert_eq!(launches(&calls(&three, &[(Kind::AllGather, tokens)])), 1);
            // Where ranks have other numbers of tokens, each one broadcasts its own, and gets its own on the way back.
            let by_root = |kind: &dyn Fn(usize) -> Kind<'static>| {
                let of = |(root, tokens)| (kind(root), tokens);
                [tokens, tokens / 2, 2 * tokens].into_iter().enumerate().map(of).collect::<Vec<_>>()
            };
            let broadcasts = by_root(&|root| Kind::Broadcast { root });
            assert_eq!(launches(&calls(&three, &broadcasts)), 1);
            let reduces = by_root(&|root| Kind::Reduce { root, op: ReduceOp::Sum });
            assert_eq!(launches(&calls(&three[..1], &reduces)), 1);
        }
        // Those that reduce by one type and operation have a launch of their own.
        let counts = [4, 4, 4];
        let kinds = [
            Kind::AllGather,
            Kind::AllReduce(ReduceOp::Sum),
            Kind::Broadcast { root: 1 },
            Kind::AllReduce(ReduceOp::Sum),
            Kind::AllToAllV { send: &counts, recv: &counts },
            Kind::Scatter { root: 2 },
            Kind::ReduceScatter(ReduceOp::Sum),
            Kind::Reduce { root: 1, op: ReduceOp::Sum },
            Kind::AllToAll,
        ];
        let calls: Vec<_> = kinds
            .into_iter()
            .enumerate()
            .map(|(i, kind)| {
                let at = memory.ptr().add(1024 * i as u64);
                Request { kind, send: at, recv: at.add(512), count: 4, data_type: DataType::F32 }
            })
            .collect();
        assert_eq!(launches(&calls), 2);
        // Calls with counts that only pairs of ranks know go in one launch, too.
        let apart = |i: u64| Request {
            send: memory.ptr().add(1024 * i),
            recv: memory.ptr().add(1024 * i + 512),
            ..calls[4]
        };
        assert_eq!(launches(&(0..4).map(apart).collect::<Vec<_>>()), 1);
        comm.bootstrap().barrier().expect("all ranks");
    });
}

/// Gradients of several layers: calls are as few launches as parameters have room for, and one more for each type and operation.
/// Between more than two ranks, all_reduces are one more, and two calls or those of more than 1 MiB go one by one.
#[test]
fn calls_that_reduce_are_one_launch() {
    for n in [2, 3] {
        ranks(n, |comm, gpu| {
            let counted = Counted::default();
            let collectives = builder(comm, gpu).selector(counted.clone()).connect().expect("collectives");
            let stream = gpu.stream().expect("a stream");
            let memory = gpu.allocate(16 << 20).expect("memory");
            let launches_of = |count: u64, kinds: &[Kind<'static>]| {
                let call = |(i, kind): (u64, &Kind<'static>)| {
                    let at = memory.ptr().add(i * 12 * count.next_multiple_of(4));
                    Request { kind: *kind, send: at, recv: at, count, data_type: DataType::F32 }
                };
                let requests: Vec<_> = (0..).zip(kinds).map(call).collect();
                let before = counted.count();
                // SAFETY: there is room for the 12 bytes that three ranks give for each number of a reduce_scatter.
                unsafe { collectives.enqueue(&requests, &stream).expect("calls") };
                collectives.synchronize(&stream).expect("the calls");
                counted.count() - before
            };
            let launches = |kinds: &[Kind<'static>]| launches_of(20_000, kinds);
            let (scatter, all) = (Kind::ReduceScatter(ReduceOp::Sum), Kind::AllReduce(ReduceOp::Sum));
            let most = Kind::AllReduce(ReduceOp::Max);
            let reduce = |root| Kind::Reduce { root, op: ReduceOp::Sum };
            assert_eq!(launches(&[scatter; 8]), 1);
            assert_eq!(launches(&[all; 8]), 1);
            assert_eq!(
                launches(&[reduce(0), reduce(1), reduce(0), reduce(1), reduce(0), reduce(0), reduce(1)]),
                1
            );
            assert_eq!(launches(&[all, scatter, all, scatter, scatter, all]), n - 1);
            assert_eq!(launches(&[all, most, all, most, all, most]), 2);
            assert_eq!(launches(&[scatter; 2]), n - 1);
            assert_eq!(launches_of(1 << 18, &[scatter; 3]), 1);
            assert_eq!(launches_of((1 << 18) + 1, &[scatter; 3]), if n == 2 { 1 } else { 3 });
            comm.bootstrap().barrier().expect("all ranks");
        });
    }
}

/// A rank that waits for calls of a group that the others do not make, until it aborts.
#[test]
fn a_group_that_is_given_up_ends() {
    let moves = PROTOCOLS.map(|protocol| (protocol, vec![Kind::AllGather, Kind::Gather { root: 1 }], 1000));
    let large = [Kind::ReduceScatter(ReduceOp::Sum), Kind::AllReduce(ReduceOp::Sum)];
    let large = large.map(|kind| (Protocol::Simple, vec![kind; 3], 20_000));
    for (protocol, kinds, count) in moves.into_iter().chain(large) {
        ranks(3, |comm, gpu| {
            let told = Told::new(Selection { protocol, two_steps: true, blocks: 2, threads: 64 });
            let collectives = builder(comm, gpu).selector(told).connect().expect("collectives");
            let stream = gpu.stream().expect("a stream");
            let memory = gpu.allocate(3 << 20).expect("memory");
            if collectives.rank() == 0 {
                let call = |(i, kind): (u64, &Kind<'static>)| {
                    let send = memory.ptr().add(i << 20);
                    Request { kind: *kind, send, recv: send.add(512 << 10), count, data_type: DataType::F32 }
                };
                let requests: Vec<_> = (0..).zip(&kinds).map(call).collect();
                // SAFETY: each gives and takes at most 240,000 bytes.
                unsafe { collectives.enqueue(&requests, &stream).expect("calls") };
                collectives.abort("enough");
                let error = collectives.synchronize(&stream).expect_err("it was aborted");
                assert_eq!(error.kind(), ErrorKind::Aborted, "{error:?}");
            }
            comm.bootstrap().barrier().expect("all ranks");
        });
    }
}

#[test]
fn those_alike_are_one_exchange() {
    ranks(2, |comm, gpu| {
        let counted = Counted::default();
        let collectives = builder(comm, gpu).selector(counted.clone()).connect().expect("collectives");
        let stream = gpu.stream().expect("a stream");
        let memory = gpu.allocate(40 * 128).expect("memory");
        let asked = |request: &dyn Fn(u64) -> (Kind<'static>, DataType)| {
            let requests: Vec<_> = (0..40)
                .map(|i| {
                    let (kind, data_type) = request(i);
                    let at = memory.ptr().add(128 * i);
                    Request { kind, send: at, recv: at, count: 16, data_type }
                })
                .collect();
            let before = counted.count();
            // SAFETY: each has 128 bytes.
            unsafe { collectives.enqueue(&requests, &stream).expect("calls") };
            collectives.synchronize(&stream).expect("the calls");
            counted.count() - before
        };
        let sum = Kind::AllReduce(ReduceOp::Sum);
        assert_eq!(asked(&|_| (sum, DataType::F32)), 1);
        // Two types, in turns, and four operations; a factor, which may be another on each rank.
        assert_eq!(asked(&|i| (sum, if i % 2 == 0 { DataType::F32 } else { DataType::U64 })), 2);
        assert_eq!(asked(&|i| (Kind::AllReduce(OPS[i as usize / 10]), DataType::F32)), 4);
        assert_eq!(asked(&|_| (Kind::AllReduce(ReduceOp::PreMulSum(2.0)), DataType::F32)), 40);
        comm.bootstrap().barrier().expect("all ranks");
    });
}
