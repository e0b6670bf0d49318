//! Collectives of ranks on several hosts, which are threads that give their hosts names: bit for bit what a reduction on the
//! host gives, for even and uneven hosts, and nothing else is touched.

mod support;

use std::{thread, time::Duration};

use mscclpp::{Communicator, ErrorKind, Gpu};
use mscclpp_collectives::{
    Collectives, CollectivesBuilder, DataType, HostsModel, Kind, ReduceOp, Request, Transfer,
};
use mscclpp_test_support::Random;
use support::{abort_ends_waits, builder, ranks, reference, slice, zeros};

/// What memory holds before, and how many bytes of it are before and behind what is used.
const POISON: u8 = 0xa5;
const MARGIN: u64 = 64;

const OPS: [ReduceOp; 6] =
    [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min, ReduceOp::Avg, ReduceOp::PreMulSum(3.0)];

/// `hosts[rank]` is where a rank is. Little scratch, so that messages are many pieces and steps many chunks.
fn on(hosts: &[u8], comm: &Communicator, gpu: &Gpu) -> CollectivesBuilder {
    let host = hosts[comm.bootstrap().rank()];
    builder(comm, gpu).host(format!("host {host}")).scratch(2 << 20)
}

fn connected(hosts: &[u8], comm: &Communicator, gpu: &Gpu) -> Collectives {
    on(hosts, comm, gpu).connect().expect("collectives")
}

/// The ranks of each host, in the order of their first ranks.
fn by_host(hosts: &[u8]) -> Vec<Vec<usize>> {
    let mut all: Vec<(u8, Vec<usize>)> = Vec::new();
    for (rank, host) in hosts.iter().enumerate() {
        match all.iter_mut().find(|(of, _)| of == host) {
            Some((_, ranks)) => ranks.push(rank),
            None => all.push((*host, vec![rank])),
        }
    }
    all.into_iter().map(|(_, ranks)| ranks).collect()
}

#[derive(Debug, Clone, Copy)]
struct Case {
    which: usize,
    data_type: DataType,
    op: ReduceOp,
    count: u64,
    root: usize,
    offset: u64,
    in_place: bool,
    seed: u64,
}

/// How many kinds there are below.
const KINDS: usize = 9;

impl Case {
    fn factor(self, rank: usize) -> f64 {
        if matches!(self.op, ReduceOp::PreMulSum(_)) { 1.0 + rank as f64 } else { 1.0 }
    }

    /// How many numbers rank `a` gives rank `b`, in an exchange of any counts.
    fn between(self, a: usize, b: usize) -> u64 {
        (a as u64 * 7 + b as u64 * 3 + self.seed % 11) % 13 * (self.count / 16)
    }

    fn kind<'a>(&self, rank: usize, counts: &'a [[Vec<u64>; 2]]) -> Kind<'a> {
        let op = match self.op {
            ReduceOp::PreMulSum(_) => ReduceOp::PreMulSum(self.factor(rank)),
            op => op,
        };
        let root = self.root;
        match self.which {
            0 => Kind::AllReduce(op),
            1 => Kind::ReduceScatter(op),
            2 => Kind::Reduce { root, op },
            3 => Kind::AllGather,
            4 => Kind::AllToAll,
            5 => Kind::Broadcast { root },
            6 => Kind::Gather { root },
            7 => Kind::Scatter { root },
            _ => Kind::AllToAllV { send: &counts[rank][0], recv: &counts[rank][1] },
        }
    }

    /// The bytes of a rank: any, or floats whose sums are rounded.
    fn data(self, rank: usize, ranks: usize, counts: &[[Vec<u64>; 2]]) -> Vec<u8> {
        let numbers = match self.which {
            1 | 4 | 7 => self.count * ranks as u64,
            8 => counts[rank][0].iter().sum(),
            _ => self.count,
        };
        let bytes = numbers * self.data_type.size();
        let mut random = Random::with_seed(self.seed ^ (rank as u64) << 32);
        let mut data = Vec::with_capacity(bytes as usize + 8);
        while (data.len() as u64) < bytes {
            let value = random.of(0..=4000) as f64 / 64.0 - 30.0;
            match self.data_type {
                DataType::F64 => data.extend(value.to_le_bytes()),
                DataType::F32 => data.extend((value as f32 * 0.1).to_le_bytes()),
                DataType::F16 => data.extend(half::f16::from_f64(value).to_le_bytes()),
                DataType::Bf16 => data.extend(half::bf16::from_f64(value).to_le_bytes()),
                _ => data.extend(random.word().to_le_bytes()),
            }
        }
        data.truncate(bytes as usize);
        data
    }
}

fn cases(ranks: usize, n: usize, most: u64) -> Vec<Case> {
    let seed = Random::new().word();
    let mut random = Random::with_seed(seed);
    let case = |n: usize| Case {
        which: n % KINDS,
        data_type: DataType::ALL[random.below(DataType::ALL.len())],
        op: OPS[random.below(OPS.len())],
        count: match random.below(4) {
            0 => random.of(1..=9),
            1 => random.of(1..=1000),
            _ => random.of(1000..=most),
        },
        root: random.below(ranks),
        offset: random.of(0..=3),
        in_place: random.below(2) == 0,
        seed: random.word(),
    };
    (0..n).map(case).collect()
}

/// Plays cases of every kind between ranks on these hosts.
fn check(hosts: &[u8], n: usize, most: u64) {
    check_with(HostsModel::ETHERNET, hosts, n, most);
}

fn check_with(model: HostsModel, hosts: &[u8], n: usize, most: u64) {
    let all_hosts = by_host(hosts);
    let cases = cases(hosts.len(), n, most);
    ranks(hosts.len(), |comm, gpu| {
        let collectives = on(hosts, comm, gpu).hosts_model(model).connect().expect("collectives");
        let stream = gpu.stream().expect("a stream");
        let (rank, ranks) = (collectives.rank(), hosts.len());
        let bytes = 2 * MARGIN + 64 + 8 * most * ranks as u64;
        let [send, recv] = [(); 2].map(|()| gpu.allocate(bytes).expect("memory"));
        for (n, case) in cases.iter().enumerate() {
            let to = |a: usize| (0..ranks).map(|b| case.between(a, b)).collect::<Vec<_>>();
            let from = |b: usize| (0..ranks).map(|a| case.between(a, b)).collect::<Vec<_>>();
            let counts: Vec<_> = (0..ranks).map(|rank| [to(rank), from(rank)]).collect();
            let sent: Vec<_> = (0..ranks).map(|rank| case.data(rank, ranks, &counts)).collect();
            let factors: Vec<_> = (0..ranks).map(|rank| case.factor(rank)).collect();
            let kind = case.kind(rank, &counts);
            let size = case.data_type.size();
            let result = match kind {
                Kind::AllToAllV { recv, .. } => {
                    let of = |a: usize| {
                        let begin: u64 = counts[a][0][..rank].iter().sum::<u64>() * size;
                        sent[a][begin as usize..(begin + recv[a] * size) as usize].to_vec()
                    };
                    (0..ranks).flat_map(of).collect()
                }
                _ => reference::received_by_hosts(&all_hosts, &kind, case.data_type, &sent, &factors, rank),
            };
            let at = MARGIN + case.offset * size;
            let in_place = case.in_place && matches!(case.which, 0 | 2 | 4 | 5);
            let source = if in_place { &recv } else { &send };
            for buffer in [&send, &recv] {
                buffer.fill(0, bytes, POISON).expect("a fill");
            }
            source.write(at, &sent[rank]).expect("a write");
            let mut expected = vec![POISON; bytes as usize];
            if in_place {
                expected[at as usize..][..sent[rank].len()].copy_from_slice(&sent[rank]);
            }
            expected[at as usize..][..result.len()].copy_from_slice(&result);
            let request = Request {
                kind,
                send: source.ptr().add(at),
                recv: recv.ptr().add(at),
                count: case.count,
                data_type: case.data_type,
            };
            // SAFETY: the buffers have room for every case.
            unsafe { collectives.enqueue(&[request], &stream).expect("a call") };
            collectives.synchronize(&stream).unwrap_or_else(|error| panic!("case {n}, {case:?}: {error:?}"));
            let mut found = vec![0; bytes as usize];
            recv.read(0, &mut found).expect("a read");
            if found != expected && !reference::same(case.data_type, &found, &expected) {
                let at = found.iter().zip(&expected).position(|(a, b)| a != b).expect("a difference");
                let (from, to) = (at / 8 * 8, at / 8 * 8 + 8);
                panic!(
                    "case {n}, rank {rank} of {hosts:?}: byte {at}: {:x?} instead of {:x?}; {case:?}",
                    &found[from..to],
                    &expected[from..to]
                );
            }
        }
        comm.bootstrap().barrier().expect("all ranks");
    });
}

#[test]
fn two_hosts_of_one() {
    check(&[0, 1], 60, 40_000);
}

#[test]
fn two_hosts_of_two() {
    check(&[0, 0, 1, 1], 60, 30_000);
}

/// Ranks are not numbered host by host.
#[test]
fn two_hosts_of_two_that_alternate() {
    check(&[0, 1, 0, 1], 40, 30_000);
}

#[test]
fn uneven_hosts() {
    check(&[0, 1, 1, 1], 40, 20_000);
    check(&[0, 0, 1, 2, 2, 2], 40, 9_000);
}

#[test]
fn three_and_four_hosts() {
    check(&[0, 1, 2], 40, 20_000);
    check(&[0, 0, 1, 1, 2, 2], 30, 9_000);
    check(&[0, 1, 2, 3], 30, 9_000);
}

/// Where messages take long, fewer are sent: the bits are the same.
#[test]
fn four_hosts_that_double_what_they_have() {
    let model = HostsModel { message: 500.0, latency: 1.0, ..HostsModel::ETHERNET };
    check_with(model, &[0, 1, 2, 3], 30, 9_000);
    check_with(model, &[0, 1, 2, 3, 0, 1, 2, 3], 20, 9_000);
}

/// Where the network is slow, each rank reduces a share, also of small messages.
#[test]
fn three_hosts_that_share() {
    let model = HostsModel { bandwidth: 0.0001, ..HostsModel::ETHERNET };
    check_with(model, &[0, 1, 2], 40, 20_000);
    check_with(model, &[0, 0, 1, 2, 1, 2], 30, 9_000);
}

#[test]
fn four_hosts_of_three() {
    check(&[0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3], 18, 3_000);
}

#[test]
fn replays_and_eager_calls_take_turns() {
    const LEN: usize = 40_000;
    let seed = Random::new().word();
    ranks(4, |comm, gpu| {
        let collectives = connected(&[0, 0, 1, 1], comm, gpu);
        let (stream, rank) = (gpu.stream().expect("a stream"), collectives.rank());
        let numbers = zeros::<u64>(gpu, LEN);
        let before = (rank + 3) % 4;
        let (sent, got) = (slice(gpu, &[rank as u64]), zeros::<u64>(gpu, 1));
        stream.begin_capture().unwrap();
        collectives.all_reduce(&numbers, &numbers, ReduceOp::Sum, &stream).unwrap();
        collectives.broadcast(&numbers, 3, &stream).unwrap();
        let transfers = [
            Transfer::Send { numbers: &sent, peer: (rank + 1) % 4 },
            Transfer::Recv { numbers: &got, peer: before },
        ];
        collectives.exchange(&transfers, &stream).unwrap();
        collectives.all_reduce(&numbers, &numbers, ReduceOp::Max, &stream).unwrap();
        let graph = stream.end_capture().unwrap();
        let (mut random, mut own) = (Random::with_seed(seed), Random::with_seed(seed ^ 1 ^ rank as u64));
        for round in 0..10 {
            let values: Vec<u64> = (0..4).map(|_| random.of(0..=1000)).collect();
            numbers.write(&vec![values[rank]; LEN]).unwrap();
            // A slow host slows the others and breaks nothing.
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

/// By chunks, whose steps overlap.
#[test]
fn large_messages_between_hosts() {
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

/// A rank sends within its host and to another one in one call, and two that are asked for one after the other, of which each
/// needs that both are under way at once.
#[test]
fn messages_within_a_host_do_not_hold_up_those_to_others() {
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

/// Groups across hosts and within one, beside each other.
#[test]
fn groups_and_communicators_do_not_disturb_each_other() {
    ranks(4, |comm, gpu| {
        let all = connected(&[0, 0, 1, 1], comm, gpu);
        let rank = all.rank();
        let likes = all.split(Some(rank as u32 % 2), 0).unwrap().expect("a group");
        let host = all.split(Some(rank as u32 / 2), 0).unwrap().expect("a group");
        let streams = [(); 3].map(|()| gpu.stream().unwrap());
        let data = [(); 3].map(|()| slice(gpu, &[1u32 << rank; 7000]));
        let registered = all.register(data[0].buffer()).expect("a registration");
        for _ in 0..3 {
            all.all_reduce(&data[0], &data[0], ReduceOp::Max, &streams[0]).unwrap();
            likes.all_reduce(&data[1], &data[1], ReduceOp::Max, &streams[1]).unwrap();
            host.all_reduce(&data[2], &data[2], ReduceOp::Max, &streams[2]).unwrap();
        }
        streams.iter().for_each(|stream| all.synchronize(stream).unwrap());
        let found = data.each_ref().map(|slice| slice.read().unwrap()[6999]);
        assert_eq!(found, [8, [4, 8][rank % 2], [2, 8][rank / 2]]);
        all.deregister(registered).expect("it is registered");
    });
}

#[test]
fn what_needs_one_host_is_refused() {
    ranks(2, |comm, gpu| {
        let refused = |error: mscclpp_collectives::Error, text: &str| {
            assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error:?}");
            assert!(error.to_string().contains(text), "{error}");
        };
        let hosts = [0, 1];
        let checked = on(&hosts, comm, gpu).check_calls(true).connect();
        refused(checked.expect_err("it cannot be"), "check_calls(true) with ranks on several hosts");
        let small = on(&hosts, comm, gpu).scratch(1 << 10).connect();
        refused(small.expect_err("it cannot be"), "too few for 1 ranks on other hosts");
        let collectives = connected(&hosts, comm, gpu);
        let numbers = zeros::<f32>(gpu, 64);
        let request = |kind| Request {
            kind,
            send: numbers.ptr(),
            recv: numbers.ptr(),
            count: 64,
            data_type: DataType::F32,
        };
        refused(
            collectives.choice(&request(Kind::Broadcast { root: 2 })).expect_err("it cannot be"),
            "from 2 of 2 ranks",
        );
        assert_eq!(collectives.choice(&request(Kind::AllGather)).unwrap(), None);
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
