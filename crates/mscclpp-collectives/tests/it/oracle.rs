//! Every collective, over types, operations, counts, offsets, roots, protocols and registered memory, gives bit for bit what a
//! reduction on the host gives, and touches nothing else.
//!
//! Every two values of every two parameters come about in each run, the rest is random. `the_full_product` has all
//! of them; it takes minutes: `ci/run.sh collectives`.

use crate::support::{Told, builder_with_lanes, pairs, platform, ranks, reference};
use mscclpp::prelude::*;
use mscclpp_collectives::{DataType, Kind, Protocol, ReduceOp, Request, Selection};
use mscclpp_test_support::Random;

/// The byte that memory holds before a call.
const POISON: u8 = 0xa5;
/// Bytes before and behind.
const MARGIN: u64 = 64;

#[derive(Debug, Clone)]
struct Case {
    kind: Which,
    data_type: DataType,
    op: ReduceOp,
    count: u64,
    counts: Vec<u64>,
    root: usize,
    /// Where the memory for sending and for receiving begins, in numbers.
    offsets: [u64; 2],
    in_place: bool,
    registered: Who,
    selection: Selection,
    seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Which {
    AllReduce,
    AllGather,
    AllGatherV,
    ReduceScatter,
    AllToAll,
    Broadcast,
    Reduce,
    Gather,
    Scatter,
}

const KINDS: [Which; 9] = [
    Which::AllReduce,
    Which::AllGather,
    Which::AllGatherV,
    Which::ReduceScatter,
    Which::AllToAll,
    Which::Broadcast,
    Which::Reduce,
    Which::Gather,
    Which::Scatter,
];
impl Which {
    fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce)
    }
}

const OPS: [ReduceOp; 6] =
    [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min, ReduceOp::Avg, ReduceOp::PreMulSum(0.0)];
/// Protocols, whether in two steps, and on which ranks memory is registered.
const PROTOCOLS: [(Protocol, bool, Who); 12] = [
    (Protocol::Ll16, false, Who::Nobody),
    (Protocol::Ll128, false, Who::All),
    (Protocol::Simple, false, Who::Some),
    (Protocol::Ll128, true, Who::Nobody),
    (Protocol::Simple, true, Who::All),
    (Protocol::SimpleByBulk, false, Who::Nobody),
    (Protocol::SimpleByBulk, false, Who::Some),
    (Protocol::Direct, false, Who::All),
    (Protocol::Direct, false, Who::Some),
    (Protocol::Bulk, false, Who::All),
    (Protocol::Bulk, false, Who::Some),
    (Protocol::Direct, false, Who::Nobody),
];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Who {
    Nobody,
    /// Those of odd numbers.
    Some,
    All,
}

impl Who {
    fn has(self, rank: usize) -> bool {
        self == Self::All || (self == Self::Some && rank % 2 == 1)
    }
}

/// How many numbers: none, one, few, many, and the most.
const COUNTS: usize = 5;
/// How many values the parameters of a case have: see [`Case::new`].
const PARAMETERS: [usize; 8] =
    [KINDS.len(), DataType::ALL.len(), OPS.len(), PROTOCOLS.len(), COUNTS, 2, 2, 2];

impl Case {
    /// The case with the n-th value of each parameter; the rest is random.
    fn new(n: &[usize], ranks: usize, most: u64, random: &mut Random) -> Self {
        let op = match OPS[n[2]] {
            // The factor of rank 0; see `factor`.
            ReduceOp::PreMulSum(_) => ReduceOp::PreMulSum(random.of(1..=5) as f64),
            op => op,
        };
        let (protocol, two_steps, registered) = PROTOCOLS[n[3]];
        let count = match n[4] {
            few @ 0..=1 => few as u64,
            2 => random.of(2..=300),
            3 => random.of(300..=most),
            _ => most,
        };
        let offset = |n: usize, random: &mut Random| if n == 0 { 0 } else { random.of(1..=9) };
        Self {
            kind: KINDS[n[0]],
            data_type: DataType::ALL[n[1]],
            op,
            count,
            counts: (0..ranks).map(|_| random.of(0..=count)).collect(),
            root: random.of(0..=ranks as u64 - 1) as usize,
            offsets: [offset(n[5], random), offset(n[6], random)],
            in_place: n[7] == 1,
            registered,
            selection: Selection {
                protocol,
                two_steps,
                blocks: random.of(1..=3) as u32,
                threads: 32 * random.of(1..=3) as u32,
            },
            seed: random.word(),
        }
    }

    fn kind(&self, rank: usize) -> Kind<'_> {
        let op = match self.op {
            ReduceOp::PreMulSum(_) => ReduceOp::PreMulSum(self.factor(rank)),
            op => op,
        };
        match self.kind {
            Which::AllReduce => Kind::AllReduce(op),
            Which::AllGather => Kind::AllGather,
            Which::AllGatherV => Kind::AllGatherV(&self.counts),
            Which::ReduceScatter => Kind::ReduceScatter(op),
            Which::AllToAll => Kind::AllToAll,
            Which::Broadcast => Kind::Broadcast { root: self.root },
            Which::Reduce => Kind::Reduce { root: self.root, op },
            Which::Gather => Kind::Gather { root: self.root },
            Which::Scatter => Kind::Scatter { root: self.root },
        }
    }

    fn factor(&self, rank: usize) -> f64 {
        match self.op {
            ReduceOp::PreMulSum(first) => first + rank as f64,
            _ => 1.0,
        }
    }

    /// How many numbers rank `rank` gives.
    fn sent(&self, rank: usize, ranks: usize) -> u64 {
        match self.kind {
            Which::AllGatherV => self.counts[rank],
            Which::ReduceScatter | Which::AllToAll | Which::Scatter => self.count * ranks as u64,
            _ => self.count,
        }
    }

    /// The bytes of rank `rank`: of all kinds, or moderate ones.
    fn data(&self, rank: usize, ranks: usize) -> Vec<u8> {
        let mut random = Random::with_seed(self.seed ^ rank as u64);
        let bytes = self.sent(rank, ranks) * self.data_type.size();
        let any = self.seed.is_multiple_of(2);
        let mut data = Vec::with_capacity(bytes as usize + 8);
        while (data.len() as u64) < bytes {
            if any || !self.data_type.is_float() {
                data.extend(random.word().to_le_bytes());
            } else {
                let value = random.of(0..=4000) as f64 / 64.0 - 30.0;
                match self.data_type {
                    DataType::F64 => data.extend(value.to_le_bytes()),
                    DataType::F32 => data.extend((value as f32).to_le_bytes()),
                    DataType::F16 => data.extend(half::f16::from_f64(value).to_le_bytes()),
                    DataType::Bf16 => data.extend(half::bf16::from_f64(value).to_le_bytes()),
                    _ => data.push(random.word() as u8 & 0xbf),
                }
            }
        }
        data.truncate(bytes as usize);
        data
    }
}

/// All pairs, and random cases until they are `cases`, of up to `most` numbers.
fn check(n_ranks: usize, cases: usize, most: u64) {
    check_over(None, n_ranks, cases, most);
}

fn check_over(nodes: Option<Transport>, n_ranks: usize, cases: usize, most: u64) {
    let seed = Random::new().word();
    let mut random = Random::with_seed(seed);
    let mut all = pairs::rows(&PARAMETERS, &mut random);
    while all.len() < cases {
        all.push(PARAMETERS.map(|values| random.below(values)).to_vec());
    }
    check_all(nodes, n_ranks, seed, most, &all);
}

fn check_all(nodes: Option<Transport>, n_ranks: usize, seed: u64, most: u64, cases: &[Vec<usize>]) {
    ranks(n_ranks, |comm, gpu| {
        let told =
            Told::new(Selection { protocol: Protocol::Simple, two_steps: false, blocks: 1, threads: 32 });
        // Where memory is registered, calls of Simple that move go directly, too.
        let [without, with] = [(); 2].map(|()| {
            let mut builder = builder_with_lanes(comm, gpu).selector(told.clone());
            if let Some(transport) = nodes {
                // Nodes of one rank each, with small chunks and parts.
                let node = format!("n{}", comm.bootstrap().rank());
                builder = builder.node(node).between_nodes(transport).scratch(512 << 10);
            }
            builder.connect().expect("collectives")
        });
        let stream = gpu.stream().expect("a stream");
        let rank = with.rank();
        // Any collective fits into twice this.
        let bytes = 2 * MARGIN + 16 * 8 + 8 * most * n_ranks as u64;
        let [plain, shared] = [(); 2].map(|()| [(); 2].map(|()| gpu.allocate(bytes).expect("memory")));
        let _registered = shared.each_ref().map(|memory| with.register(memory).expect("a registration"));
        let mut random = Random::with_seed(seed);
        for (n, parameters) in cases.iter().enumerate() {
            let case = Case::new(parameters, n_ranks, most, &mut random);
            let [send, recv] = if case.registered.has(rank) { &shared } else { &plain };
            let collectives = if case.registered == Who::Nobody { &without } else { &with };
            told.tell(case.selection);
            let size = case.data_type.size();
            let all: Vec<_> = (0..n_ranks).map(|rank| case.data(rank, n_ranks)).collect();
            let factors: Vec<_> = (0..n_ranks).map(|rank| case.factor(rank)).collect();
            let kind = case.kind(rank);
            let result =
                reference::received(&[(0..all.len()).collect()], &kind, case.data_type, &all, &factors, rank);
            let [send_at, recv_at] = case.offsets.map(|offset| MARGIN + offset * size);
            // Where the memory of a call in place is.
            let (source, source_at) = match (case.in_place, case.kind) {
                (true, Which::AllGather) => (recv, recv_at + rank as u64 * case.count * size),
                (true, Which::AllGatherV) => (recv, recv_at + case.counts[..rank].iter().sum::<u64>() * size),
                (true, Which::Gather) if rank == case.root => {
                    (recv, recv_at + rank as u64 * case.count * size)
                }
                (false, _) | (true, Which::Scatter | Which::Gather) => (send, send_at),
                (true, _) => (recv, recv_at),
            };
            let (target, target_at) = match (case.in_place, case.kind) {
                (true, Which::Scatter) if rank == case.root => {
                    (send, send_at + rank as u64 * case.count * size)
                }
                (true, Which::ReduceScatter) => (recv, recv_at + rank as u64 * case.count * size),
                _ => (recv, recv_at),
            };
            let mut expected = [vec![POISON; bytes as usize], vec![POISON; bytes as usize]];
            let index = |buffer: &DeviceBuffer| usize::from(std::ptr::eq(buffer, recv));
            let mut put = |buffer: &DeviceBuffer, at: u64, data: &[u8]| {
                expected[index(buffer)][at as usize..at as usize + data.len()].copy_from_slice(data);
            };
            send.fill(0, bytes, POISON).expect("a fill");
            recv.fill(0, bytes, POISON).expect("a fill");
            source.write(source_at, &all[rank]).expect("a write");
            put(source, source_at, &all[rank]);
            put(target, target_at, &result);
            let request = Request {
                kind,
                send: source.ptr().add(source_at),
                recv: target.ptr().add(target_at),
                count: case.count,
                data_type: case.data_type,
            };
            // SAFETY: the buffers have room for every case.
            unsafe { collectives.enqueue(&[request], &stream).expect("a call") };
            collectives.synchronize(&stream).unwrap_or_else(|error| panic!("case {n}, {case:?}: {error:?}"));
            for (buffer, expected) in [send, recv].into_iter().zip(&expected) {
                let mut found = vec![0; bytes as usize];
                buffer.read(0, &mut found).expect("a read");
                // Numbers begin at a multiple of their size, as the margins and the offsets do.
                if found != *expected && !reference::same(case.data_type, &found, expected) {
                    let at = found.iter().zip(expected).position(|(a, b)| a != b).expect("a difference");
                    let (from, to) = (at / 8 * 8, at / 8 * 8 + 8);
                    panic!(
                        "case {n} of {n_ranks} ranks, rank {rank}: byte {at}: {:x?} instead of {:x?}; {case:?}",
                        &found[from..to],
                        &expected[from..to]
                    );
                }
            }
        }
        // Nobody leaves before all have seen what was sent.
        comm.bootstrap().barrier().expect("all ranks");
    });
}

/// On simulated devices, which are slow, fewer.
fn cases(n: usize) -> usize {
    if platform() == Platform::Sim { n } else { 10 * n }
}

#[test]
fn one_rank() {
    check(1, cases(500), 2003);
}

#[test]
fn two_ranks() {
    check(2, cases(800), 6007);
}

#[test]
fn three_ranks() {
    check(3, cases(500), 4001);
}

#[test]
fn eight_ranks() {
    check(8, cases(150), 1501);
}

#[test]
fn nodes_of_one_rank_over_cuda_ipc() {
    check_over(Some(Transport::CUDA_IPC), 2, 0, 6007);
}

#[test]
fn nodes_of_one_rank_over_ethernet() {
    check_over(Some(Transport::ETHERNET), 3, 0, 6007);
}

/// Every value of every parameter with every other. Of what moves, the operation is no parameter.
fn product() -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for values in PARAMETERS {
        all =
            all.iter().flat_map(|row| (0..values).map(|value| [row.as_slice(), &[value]].concat())).collect();
    }
    all.retain(|row| row[2] == 0 || KINDS[row[0]].reduces());
    all
}

#[test]
#[ignore = "takes minutes: ci/run.sh collectives"]
fn the_full_product() {
    let seed = Random::new().word();
    for (ranks, most) in [(1, 1001), (2, 1001), (3, 801), (8, 401)] {
        check_all(None, ranks, seed, most, &product());
    }
}

#[test]
#[ignore = "takes minutes: ci/run.sh collectives"]
fn any_number_of_ranks() {
    (1..=8).for_each(|ranks| check(ranks, 1000, 2003));
}

#[test]
#[ignore = "takes minutes: ci/run.sh collectives"]
fn large_counts() {
    let seed = Random::new().word();
    let numbers = [DataType::U8, DataType::F16].map(|numbers| numbers as usize);
    let cases: Vec<_> = product()
        .into_iter()
        .filter(|row| {
            numbers.contains(&row[1]) && row[2] == 0 && row[4] == COUNTS - 1 && row[5..] == [0, 1, 0]
        })
        .collect();
    for ranks in [2, 3] {
        check_all(None, ranks, seed, (1 << 20) + 3, &cases);
    }
    check_all(Some(Transport::CUDA_IPC), 2, seed, (1 << 20) + 3, &cases);
}
