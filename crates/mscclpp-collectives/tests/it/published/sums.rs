//! All_reduces in two steps. All or some of their results go straight into memory that ranks have published, or all go through
//! the scratch.

use std::{collections::VecDeque, thread, time::Duration};

use crate::support::{Told, builder, ranks, reference};
use mscclpp::{DeviceBuffer, Gpu, Stream, gpu::Graph};
use mscclpp_collectives::{Collectives, DataType, Kind, Published, ReduceOp, Request, Selection};
use mscclpp_test_support::{Random, until};

use super::SIMPLE;

const IN_TWO_STEPS: Selection = Selection { two_steps: true, ..SIMPLE };

/// Types and operations that use each kernel, and each way of making a result.
const NUMBERS: [(DataType, ReduceOp); 7] = [
    (DataType::F32, ReduceOp::Sum),
    (DataType::F16, ReduceOp::Sum),
    (DataType::Bf16, ReduceOp::Sum),
    (DataType::U64, ReduceOp::Max),
    (DataType::F32, ReduceOp::Avg),
    (DataType::Bf16, ReduceOp::PreMulSum(2.0)),
    (DataType::U8, ReduceOp::Sum),
];

/// The byte that fills the memory before a call, and the number of bytes in front of and behind the result, which must stay.
const POISON: u8 = 0xa5;
const MARGIN: u64 = 64;

/// The bytes of the numbers that a rank gives to the sum.
fn given(data_type: DataType, count: u64, rank: usize, round: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity((count * data_type.size()) as usize);
    for i in 0..count {
        let word = (i ^ (rank as u64) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(round);
        let small = f32::from((word >> 20) as u8) / 8.0 - 10.0;
        match data_type {
            DataType::F32 => bytes.extend_from_slice(&(small * 0.1).to_le_bytes()),
            DataType::F16 => bytes.extend_from_slice(&half::f16::from_f32(small).to_le_bytes()),
            DataType::Bf16 => bytes.extend_from_slice(&half::bf16::from_f32(small).to_le_bytes()),
            _ => bytes.extend_from_slice(&word.to_le_bytes()[..data_type.size() as usize]),
        }
    }
    bytes
}

/// An all_reduce of this rank, and its memory.
struct Sum {
    data_type: DataType,
    op: ReduceOp,
    count: u64,
    /// The memory of the result, which has margins, and the offset of the result in it.
    recv: DeviceBuffer,
    at: u64,
    /// The memory of the rank's numbers; None if the call is in place.
    send: Option<DeviceBuffer>,
}

impl Sum {
    /// Makes a random one. `random` is the same on all ranks, `own` is not.
    fn any(gpu: &Gpu, random: &mut Random, own: &mut Random) -> Self {
        let (data_type, op) = NUMBERS[random.of(0..=6) as usize];
        let size = data_type.size();
        let bytes = 8000 + random.of(0..=100_000) / size * size;
        // Peers write directly only at multiples of 16.
        let at = MARGIN + [0, 16, size][own.of(0..=2) as usize];
        let recv = gpu.allocate(bytes + 3 * MARGIN).expect("memory");
        let send = (own.of(0..=1) == 0).then(|| gpu.allocate(bytes).expect("memory"));
        Self { data_type, op, count: bytes / size, recv, at, send }
    }

    fn fill(&self, rank: usize, round: u32) {
        let numbers = given(self.data_type, self.count, rank, round);
        self.recv.fill(0, self.recv.len(), POISON).expect("memory");
        let (memory, at) = self.send.as_ref().map_or((&self.recv, self.at), |send| (send, 0));
        memory.write(at, &numbers).expect("memory");
    }

    fn call(&self, collectives: &Collectives, stream: &Stream) {
        let recv = self.recv.ptr().add(self.at);
        let request = Request {
            kind: Kind::AllReduce(self.op),
            send: self.send.as_ref().map_or(recv, DeviceBuffer::ptr),
            recv,
            count: self.count,
            data_type: self.data_type,
        };
        // SAFETY: the memory has room, and lives until the stream and the graphs are done.
        unsafe { collectives.enqueue(&[request], stream).expect("a call") };
    }

    fn check(&self, collectives: &Collectives, round: u32) {
        let (rank, n) = (collectives.rank(), collectives.n_ranks());
        let all: Vec<_> = (0..n).map(|rank| given(self.data_type, self.count, rank, round)).collect();
        let result = reference::reduced(self.data_type, self.op, &all, &vec![2.0; n]);
        let mut expected = vec![POISON; self.recv.len() as usize];
        expected[self.at as usize..][..result.len()].copy_from_slice(&result);
        let mut found = vec![0; expected.len()];
        self.recv.read(0, &mut found).expect("memory");
        let wrong = found.iter().zip(&expected).position(|(a, b)| a != b);
        let Self { data_type, op, count, at, .. } = self;
        assert_eq!(
            wrong,
            None,
            "round {round}, rank {rank} of {n}: {count} {data_type:?}, {op:?}, at {at}, in place {}",
            self.send.is_none()
        );
    }
}

/// Waits for a short time that differs between ranks.
fn dawdle(own: &mut Random) {
    thread::sleep(Duration::from_micros(own.of(0..=1500)));
}

/// Several calls are under way at once, in place on some ranks. Some ranks publish the memory of the results, in time or late.
#[test]
fn results_go_into_memory_that_ranks_publish_as_they_like() {
    for n in [3, 4] {
        publish_at_random(n, 16);
    }
}

#[test]
#[ignore = "takes minutes: ci/run.sh collectives"]
fn results_go_into_published_memory_for_long() {
    for n in [3, 5, 8] {
        publish_at_random(n, 200);
    }
}

fn publish_at_random(n: usize, rounds: u32) {
    let seed = Random::new().word();
    ranks(n, |comm, gpu| {
        let told = Told::new(IN_TWO_STEPS);
        // The scratch is so small that a lane has more chunks than its rings have places.
        let scratch = n as u64 * (512 << 10);
        let collectives =
            builder(comm, gpu).scratch(scratch).selector(told.clone()).connect().expect("collectives");
        let (stream, rank) = (gpu.stream().expect("a stream"), collectives.rank());
        let (mut random, mut own) = (Random::with_seed(seed), Random::with_seed(seed ^ 1 ^ rank as u64));
        let mut published: VecDeque<Published> = VecDeque::new();
        let mut calls: Vec<(u32, Sum)> = Vec::new();
        for round in 0..rounds {
            told.tell(Selection { blocks: 1 + random.of(0..=2) as u32, ..IN_TWO_STEPS });
            let sum = Sum::any(gpu, &mut random, &mut own);
            match own.of(0..=3) {
                0 => published.push_back(collectives.publish(&sum.recv).expect("it is of this device")),
                1 => {
                    let made = collectives.publish(&sum.recv).expect("it is of this device");
                    until("nobody maps it", || made.is_ready());
                    published.push_back(made);
                }
                2 => drop(published.pop_front()),
                _ => {}
            }
            sum.fill(rank, round);
            dawdle(&mut own);
            sum.call(&collectives, &stream);
            calls.push((round, sum));
            if own.of(0..=3) == 0 {
                // Calls that name this memory may be under way.
                published.clear();
            }
            if own.of(0..=2) == 0 {
                collectives.synchronize(&stream).unwrap();
                calls.drain(..).for_each(|(round, sum)| sum.check(&collectives, round));
            }
        }
        collectives.synchronize(&stream).unwrap();
        calls.drain(..).for_each(|(round, sum)| sum.check(&collectives, round));
    });
}

/// Captured calls publish the memory of their results. Replays take turns with eager calls.
#[test]
fn replays_and_eager_sums_take_turns() {
    let seed = Random::new().word();
    ranks(4, |comm, gpu| {
        let told = Told::new(IN_TWO_STEPS);
        let collectives =
            builder(comm, gpu).scratch(2 << 20).selector(told.clone()).connect().expect("collectives");
        let (stream, rank) = (gpu.stream().expect("a stream"), collectives.rank());
        let (mut random, mut own) = (Random::with_seed(seed), Random::with_seed(seed ^ 1 ^ rank as u64));
        let mut graphs: [Option<(Graph, Sum)>; 3] = [const { None }; 3];
        for round in 0..24 {
            told.tell(Selection { blocks: 1 + random.of(0..=2) as u32, ..IN_TWO_STEPS });
            let which = random.of(0..=2) as usize;
            let (graph, sum) = graphs[which].get_or_insert_with(|| {
                let sum = Sum::any(gpu, &mut random, &mut own);
                let stream = gpu.stream().expect("a stream");
                stream.begin_capture().unwrap();
                sum.call(&collectives, &stream);
                (stream.end_capture().unwrap(), sum)
            });
            sum.fill(rank, round);
            dawdle(&mut own);
            if random.of(0..=2) == 0 {
                sum.call(&collectives, &stream);
            } else {
                // SAFETY: the memory of the graph is kept beside it.
                unsafe { graph.launch(&stream).unwrap() };
            }
            collectives.synchronize(&stream).unwrap();
            sum.check(&collectives, round);
            if random.of(0..=7) == 0 {
                graphs[which] = None;
            }
        }
    });
}
