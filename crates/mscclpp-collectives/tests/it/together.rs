//! Groups of all_reduces, of which small ones go in one launch: every result, and nothing else, and again in graphs.

use crate::support::{Counted, builder, platform, ranks, reference};
use mscclpp::{DeviceBuffer, gpu::Graph};
use mscclpp_collectives::{DataType, Kind, ReduceOp, Request};
use mscclpp_test_support::Random;

const OPS: [ReduceOp; 6] =
    [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min, ReduceOp::Avg, ReduceOp::PreMulSum(3.0)];
const TYPES: [DataType; 6] =
    [DataType::F16, DataType::Bf16, DataType::F32, DataType::F64, DataType::I32, DataType::U8];
const ROOM: usize = 512 << 10;

/// One of a group: its numbers are at the same place of the memory that is given and of that which is taken, or in place.
#[derive(Debug, Clone, Copy)]
struct Member {
    data_type: DataType,
    op: ReduceOp,
    at: usize,
    count: u64,
    in_place: bool,
}

impl Member {
    fn bytes(&self) -> std::ops::Range<usize> {
        self.at..self.at + (self.count * self.data_type.size()) as usize
    }
}

/// Some that follow each other are alike, and so go together.
fn group(random: &mut Random) -> Vec<Member> {
    let mut members: Vec<Member> = Vec::new();
    let mut end = 0;
    for _ in 0..random.of(1..=150) {
        let (data_type, op) = match members.last() {
            Some(last) if random.of(0..=9) > 0 => (last.data_type, last.op),
            _ => (TYPES[random.of(0..=5) as usize], OPS[random.of(0..=5) as usize]),
        };
        let count = match random.of(0..=19) {
            0 => 0,
            1 => random.of(2000..=9000),
            _ => random.of(1..=150),
        };
        // Behind the one before, at any multiple of the type's size.
        let size = data_type.size() as usize;
        let at = (end + random.of(0..=9) as usize).next_multiple_of(size);
        end = at + count as usize * size;
        if end > ROOM {
            break;
        }
        members.push(Member { data_type, op, at, count, in_place: random.of(0..=1) == 0 });
    }
    members
}

fn data(rank: usize, round: u64, seed: u64) -> Vec<u8> {
    let mut random = Random::with_seed(seed ^ round << 8 ^ rank as u64);
    (0..ROOM / 8).flat_map(|_| random.word().to_le_bytes()).collect()
}

/// Fresh numbers of all ranks, on this one's device: what is taken has numbers of its own before.
fn write(rank: usize, n: usize, round: u64, seed: u64, memory: &[DeviceBuffer; 2]) -> Vec<Vec<u8>> {
    let all: Vec<_> = (0..n).map(|rank| data(rank, round, seed)).collect();
    memory[0].write(0, &all[rank]).expect("a write");
    memory[1].write(0, &all[rank]).expect("a write");
    all
}

fn check(members: &[Member], rank: usize, all: &[Vec<u8>], memory: &[DeviceBuffer; 2]) {
    let mut expected = all[rank].clone();
    for member in members {
        let given: Vec<_> = all.iter().map(|numbers| numbers[member.bytes()].to_vec()).collect();
        let result = reference::reduced(member.data_type, member.op, &given, &vec![3.0; all.len()]);
        expected[member.bytes()].copy_from_slice(&result);
    }
    let mut found = [vec![0; ROOM], vec![0; ROOM]];
    for (memory, found) in memory.iter().zip(&mut found) {
        memory.read(0, found).expect("a read");
    }
    assert!(found[0].iter().enumerate().all(|(at, byte)| {
        let is_result = || members.iter().any(|member| member.in_place && member.bytes().contains(&at));
        *byte == all[rank][at] || is_result()
    }));
    for (i, member) in members.iter().enumerate() {
        let found = &found[usize::from(!member.in_place)][member.bytes()];
        let same = reference::same(member.data_type, found, &expected[member.bytes()]);
        assert!(same, "rank {rank}, member {i}, {member:?}, of {members:?}");
    }
    // Between the results, what was there.
    let mut end = 0;
    for member in members {
        assert_eq!(found[1][end..member.at], all[rank][end..member.at], "in front of {member:?}");
        end = member.bytes().end;
    }
    assert_eq!(found[1][end..], all[rank][end..]);
}

fn groups(n: usize, rounds: u64) {
    let seed = Random::new().word();
    ranks(n, |comm, gpu| {
        let collectives = builder(comm, gpu).connect().expect("collectives");
        let (stream, rank) = (gpu.stream().expect("a stream"), collectives.rank());
        let memory = [(); 2].map(|()| gpu.allocate(ROOM as u64).expect("memory"));
        let mut random = Random::with_seed(seed);
        let submit = |members: &[Member]| {
            let address = |which: usize, at: usize| memory[which].ptr().add(at as u64);
            let requests: Vec<_> = members
                .iter()
                .map(|member| Request {
                    kind: Kind::AllReduce(member.op),
                    send: address(0, member.at),
                    recv: address(usize::from(!member.in_place), member.at),
                    count: member.count,
                    data_type: member.data_type,
                })
                .collect();
            // SAFETY: the memory has room for all members, which lie behind each other.
            unsafe { collectives.enqueue(&requests, &stream).expect("calls") };
        };
        let mut graphs: Vec<(Vec<Member>, Graph)> = Vec::new();
        for round in 0..rounds {
            let members = group(&mut random);
            let all = write(rank, n, round, seed, &memory);
            submit(&members);
            collectives.synchronize(&stream).expect("the calls");
            check(&members, rank, &all, &memory);
            stream.begin_capture().expect("a capture");
            submit(&members);
            graphs.push((members, stream.end_capture().expect("a graph")));
            let (members, graph) = &graphs[random.of(0..=graphs.len() as u64 - 1) as usize];
            // A GPU may make a graph only when its kernels have ended, and ranks that share it wait for each other.
            comm.bootstrap().barrier().expect("all ranks");
            let all = write(rank, n, round + rounds, seed, &memory);
            // SAFETY: what it was captured with lives, and nothing else runs.
            unsafe { graph.launch(&stream).expect("a launch") };
            collectives.synchronize(&stream).expect("the calls");
            check(members, rank, &all, &memory);
        }
        comm.bootstrap().barrier().expect("all ranks");
    });
}

#[test]
fn of_two_ranks() {
    groups(2, if platform() == mscclpp::Platform::Sim { 6 } else { 100 });
}

#[test]
fn of_three_ranks() {
    groups(3, if platform() == mscclpp::Platform::Sim { 4 } else { 50 });
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
