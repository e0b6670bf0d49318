//! Collectives of every kind between ranks on several nodes, compared with a reduction on the host.

use mscclpp::{Communicator, Gpu};
use mscclpp_collectives::{Collectives, CollectivesBuilder, DataType, Kind, NodesModel, ReduceOp, Request};
use mscclpp_test_support::Random;

use crate::support::{builder, ranks, reference};

/// The byte that memory holds before a call, and the bytes before and behind the memory of a call.
const POISON: u8 = 0xa5;
const MARGIN: u64 = 64;

const OPS: [ReduceOp; 6] =
    [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min, ReduceOp::Avg, ReduceOp::PreMulSum(3.0)];

/// `nodes[rank]` is where a rank is. Little scratch, so that messages are many chunks and steps many portions.
pub(crate) fn on(nodes: &[u8], comm: &Communicator, gpu: &Gpu) -> CollectivesBuilder {
    let node = nodes[comm.bootstrap().rank()];
    builder(comm, gpu).node(format!("node {node}")).scratch(2 << 20)
}

pub(crate) fn connected(nodes: &[u8], comm: &Communicator, gpu: &Gpu) -> Collectives {
    on(nodes, comm, gpu).connect().expect("collectives")
}

/// The ranks of each node, in the order of their first ranks.
fn by_node(nodes: &[u8]) -> Vec<Vec<usize>> {
    let mut all: Vec<(u8, Vec<usize>)> = Vec::new();
    for (rank, node) in nodes.iter().enumerate() {
        match all.iter_mut().find(|(of, _)| of == node) {
            Some((_, ranks)) => ranks.push(rank),
            None => all.push((*node, vec![rank])),
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

/// Plays cases of every kind between ranks on these nodes.
pub(crate) fn check(nodes: &[u8], n: usize, most: u64) {
    check_with(NodesModel::ETHERNET, nodes, n, most);
}

pub(crate) fn check_with(model: NodesModel, nodes: &[u8], n: usize, most: u64) {
    check_by(1, model, nodes, n, most);
}

pub(crate) fn check_by(connections: u32, model: NodesModel, nodes: &[u8], n: usize, most: u64) {
    let all_nodes = by_node(nodes);
    let cases = cases(nodes.len(), n, most);
    ranks(nodes.len(), |comm, gpu| {
        let collectives = on(nodes, comm, gpu).nodes_model(model).connections(connections);
        let collectives = collectives.connect().expect("collectives");
        let stream = gpu.stream().expect("a stream");
        let (rank, ranks) = (collectives.rank(), nodes.len());
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
                _ => reference::received(&all_nodes, &kind, case.data_type, &sent, &factors, rank),
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
                    "case {n}, rank {rank} of {nodes:?}: byte {at}: {:x?} instead of {:x?}; {case:?}",
                    &found[from..to],
                    &expected[from..to]
                );
            }
        }
        comm.bootstrap().barrier().expect("all ranks");
    });
}
