//! Collectives of every kind, on one node and on several, compared bit by bit with a reduction on the host: they give that, and
//! touch nothing else.

use mscclpp::{Communicator, DeviceBuffer, Gpu};
use mscclpp_collectives::{
    Collectives, CollectivesBuilder, DataType, Kind, Protocol, ReduceOp, Request, Selection,
};
use mscclpp_test_support::Random;

use super::{Told, ranks, reference};

/// The byte that memory holds before a call.
const POISON: u8 = 0xa5;
/// Bytes before and behind.
const MARGIN: u64 = 64;

/// A call of a collective.
#[derive(Debug, Clone)]
struct Case {
    kind: Which,
    data_type: DataType,
    op: ReduceOp,
    count: u64,
    /// The counts from each rank to each, and the same to each from each. The first are those of an `AllGatherV`.
    counts: [Vec<Vec<u64>>; 2],
    root: usize,
    /// Where the memory for sending and for receiving begins, in numbers.
    offsets: [u64; 2],
    in_place: bool,
    registered: Who,
    selection: Selection,
    seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Which {
    AllReduce,
    AllGather,
    AllGatherV,
    ReduceScatter,
    AllToAll,
    AllToAllV,
    Broadcast,
    Reduce,
    Gather,
    Scatter,
}

pub(crate) const KINDS: [Which; 10] = [
    Which::AllReduce,
    Which::AllGather,
    Which::AllGatherV,
    Which::ReduceScatter,
    Which::AllToAll,
    Which::AllToAllV,
    Which::Broadcast,
    Which::Reduce,
    Which::Gather,
    Which::Scatter,
];

impl Which {
    pub(crate) fn reduces(self) -> bool {
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
pub(crate) const COUNTS: usize = 5;
/// How many values the parameters of a case have: see [`Case::new`].
pub(crate) const PARAMETERS: [usize; 8] =
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
        let mut some = || if random.below(8) == 0 { 0 } else { random.of(0..=count) };
        let to: Vec<Vec<_>> = (0..ranks).map(|_| (0..ranks).map(|_| some()).collect()).collect();
        let from = (0..ranks).map(|b| to.iter().map(|to| to[b]).collect()).collect();
        Self {
            kind: KINDS[n[0]],
            data_type: DataType::ALL[n[1]],
            op,
            count,
            counts: [to, from],
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
            Which::AllGatherV => Kind::AllGatherV(&self.counts[0][0]),
            Which::ReduceScatter => Kind::ReduceScatter(op),
            Which::AllToAll => Kind::AllToAll,
            Which::AllToAllV => Kind::AllToAllV { send: &self.counts[0][rank], recv: &self.counts[1][rank] },
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
            Which::AllGatherV => self.counts[0][0][rank],
            Which::AllToAllV => self.counts[0][rank].iter().sum(),
            Which::ReduceScatter | Which::AllToAll | Which::Scatter => self.count * ranks as u64,
            _ => self.count,
        }
    }

    /// The result of this rank, where rank r of these nodes has given `all[r]`.
    fn result(&self, nodes: &[Vec<usize>], all: &[Vec<u8>], rank: usize) -> Vec<u8> {
        let Kind::AllToAllV { recv, .. } = self.kind(rank) else {
            let factors: Vec<_> = (0..all.len()).map(|rank| self.factor(rank)).collect();
            return reference::received(nodes, &self.kind(rank), self.data_type, all, &factors, rank);
        };
        let size = self.data_type.size();
        let of = |(a, numbers): (usize, &Vec<u8>)| {
            let begin = self.counts[0][a][..rank].iter().sum::<u64>() * size;
            numbers[begin as usize..(begin + recv[a] * size) as usize].to_vec()
        };
        all.iter().enumerate().flat_map(of).collect()
    }

    /// The bytes of rank `rank`: of all kinds, or moderate ones.
    fn data(&self, rank: usize, ranks: usize) -> Vec<u8> {
        let mut random = Random::with_seed(self.seed ^ rank as u64);
        let bytes = self.sent(rank, ranks) * self.data_type.size();
        let any = self.seed.is_multiple_of(2);
        let mut data = Vec::with_capacity(bytes as usize + 8);
        while (data.len() as u64) < bytes {
            if any || !self.data_type.is_float() {
                data.extend_from_slice(&random.word().to_le_bytes());
            } else {
                let value = random.of(0..=4000) as f64 / 64.0 - 30.0;
                match self.data_type {
                    DataType::F64 => data.extend_from_slice(&value.to_le_bytes()),
                    DataType::F32 => data.extend_from_slice(&(value as f32 * 0.1).to_le_bytes()),
                    DataType::F16 => data.extend_from_slice(&half::f16::from_f64(value).to_le_bytes()),
                    DataType::Bf16 => data.extend_from_slice(&half::bf16::from_f64(value).to_le_bytes()),
                    _ => data.push(random.word() as u8 & 0xbf),
                }
            }
        }
        data.truncate(bytes as usize);
        data
    }
}

/// Plays cases between the ranks of these nodes: each has a value of each of [`PARAMETERS`]. `builder` is given the selector that
/// does what a case says.
pub(crate) fn play(
    nodes: &[Vec<usize>],
    seed: u64,
    most: u64,
    cases: &[Vec<usize>],
    builder: impl Fn(&Communicator, &Gpu, &Told) -> CollectivesBuilder + Sync,
) {
    let n_ranks = nodes.iter().flatten().count();
    ranks(n_ranks, |comm, gpu| {
        let told =
            Told::new(Selection { protocol: Protocol::Simple, two_steps: false, blocks: 1, threads: 32 });
        let connected = || builder(comm, gpu, &told).connect().expect("collectives");
        let without = connected();
        // Where memory is registered, calls of Simple that move go directly, too.
        let with = cases.iter().any(|case| PROTOCOLS[case[3]].2 != Who::Nobody).then(connected);
        let stream = gpu.stream().expect("a stream");
        let rank = without.rank();
        // Any collective fits into twice this.
        let bytes = 2 * MARGIN + 16 * 8 + 8 * most * n_ranks as u64;
        let [plain, shared] = [(); 2].map(|()| [(); 2].map(|()| gpu.allocate(bytes).expect("memory")));
        let register = |with: &Collectives| {
            shared.each_ref().map(|memory| with.register(memory).expect("a registration"))
        };
        let _registered = with.as_ref().map(register);
        let mut random = Random::with_seed(seed);
        for (n, parameters) in cases.iter().enumerate() {
            let case = Case::new(parameters, n_ranks, most, &mut random);
            let [send, recv] = if case.registered.has(rank) { &shared } else { &plain };
            let collectives = with.as_ref().filter(|_| case.registered != Who::Nobody).unwrap_or(&without);
            told.tell(case.selection);
            let size = case.data_type.size();
            let all: Vec<_> = (0..n_ranks).map(|rank| case.data(rank, n_ranks)).collect();
            let result = case.result(nodes, &all, rank);
            let [send_at, recv_at] = case.offsets.map(|offset| MARGIN + offset * size);
            // Where the memory of a call in place is.
            let (source, source_at) = match (case.in_place, case.kind) {
                (true, Which::AllGather) => (recv, recv_at + rank as u64 * case.count * size),
                (true, Which::AllGatherV) => {
                    (recv, recv_at + case.counts[0][0][..rank].iter().sum::<u64>() * size)
                }
                (true, Which::Gather) if rank == case.root => {
                    (recv, recv_at + rank as u64 * case.count * size)
                }
                (false, _) | (true, Which::Scatter | Which::Gather | Which::AllToAllV) => (send, send_at),
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
                kind: case.kind(rank),
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
                        "case {n}, rank {rank} of {nodes:?}: byte {at}: {:x?} instead of {:x?}; {case:?}",
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
