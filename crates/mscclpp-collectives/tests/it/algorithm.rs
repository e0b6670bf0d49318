//! Kernels of the program that do collectives, beside those of the library.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use crate::support::{builder, ranks, slice, zeros};
use half::f16;
use mscclpp::{Kernel, KernelArgs, KernelSource, Module};
use mscclpp_collectives::{Algorithm, Asked, DataType, Kind, Launch, ReduceOp, Request};
use mscclpp_test_support::Random;

/// An all_reduce in one step, and a broadcast, each with a number of its own that it counts up.
const MINE: KernelSource<'_> = KernelSource::new(
    "mine.cu",
    r#"
#include <mscclpp/collective_own_device.hpp>
using namespace mscclpp;

extern "C" __global__ void __launch_bounds__(1024)
    one_step(uint32_t* launches, const MSCCLPP_GRID_CONSTANT CollectiveHandle comm,
             const MSCCLPP_GRID_CONSTANT CollectiveCall call) {
  ownCollective(comm, call, [&](const OwnCall& own) {
    if (own.thread() == 0) *launches += 1;
    const CollectiveSegment mine = own.segment(own.rank());
    const uint64_t bytes = mine.recvBytes, words = (bytes + 7) / 8;
    for (uint64_t i = own.thread(); i < words; i += own.threads()) {
      const uint64_t word = own.sent(own.word(mine.send, bytes, i));
      for (uint32_t r = 0; r < own.ranks(); ++r) store8(own.scratch(r) + (own.rank() * words + i) * 8, word);
    }
    own.signalAll(0);
    if (!own.waitForAll(0)) return false;
    for (uint64_t i = own.thread(); i < words; i += own.threads()) {
      uint64_t of[CollectiveMaxRanks];
      for (uint32_t r = 0; r < own.ranks(); ++r) of[r] = load8(own.scratch(own.rank()) + (r * words + i) * 8);
      own.storeWord(mine.recv, bytes, i, own.reduced(of));
    }
    return true;
  });
}

// Everybody signals, though only the root has something to say.
extern "C" __global__ void __launch_bounds__(1024)
    broadcast(uint32_t* launches, uint32_t root, const MSCCLPP_GRID_CONSTANT CollectiveHandle comm,
              const MSCCLPP_GRID_CONSTANT CollectiveCall call) {
  ownCollective(comm, call, [&](const OwnCall& own) {
    if (own.thread() == 0) *launches += 1;
    for (uint32_t r = 0; r < own.ranks(); ++r) {
      const CollectiveSegment to = own.segment(r);
      if (r == own.rank()) continue;
      for (uint64_t i = own.thread(); i * 8 < to.sendBytes; i += own.threads()) {
        store8(own.scratch(r) + i * 8, own.word(to.send, to.sendBytes, i));
      }
    }
    own.signalAll(0);
    if (!own.waitForAll(0)) return false;
    const CollectiveSegment from = own.segment(root);
    for (uint64_t i = own.thread(); own.rank() != root && i * 8 < from.recvBytes; i += own.threads()) {
      own.storeWord(from.recv, from.recvBytes, i, load8(own.scratch(own.rank()) + i * 8));
    }
    return true;
  });
}
"#,
);

#[derive(Debug)]
struct Mine {
    one_step: Kernel,
    broadcast: Kernel,
    launches: mscclpp::DeviceBuffer,
    asked: Arc<AtomicUsize>,
}

// SAFETY: the kernels do these kinds as their header asks for, and both are chosen by what all ranks know.
unsafe impl Algorithm for Mine {
    fn plan(&self, asked: &Asked<'_>) -> Option<Launch> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let fits = asked.query.bytes.next_multiple_of(8) * asked.query.ranks as u64 <= asked.scratch_bytes;
        let args = KernelArgs::new().with(&self.launches);
        // More blocks than there may be, which is mended.
        match asked.kind {
            Kind::AllReduce(_) if fits && asked.data_type != DataType::F64 => {
                Some(Launch { kernel: self.one_step.clone(), args, blocks: 100, threads: 64 })
            }
            Kind::Broadcast { root } if fits => Some(Launch {
                kernel: self.broadcast.clone(),
                args: args.with(root as u32),
                blocks: 2,
                threads: 32,
            }),
            _ => None,
        }
    }
}

/// Its calls, the library's and replays take turns, and give the same bits as the library alone.
#[test]
fn an_algorithm_does_what_it_has_a_plan_for() {
    let seed = Random::new().word();
    ranks(3, |comm, gpu| {
        let module = Module::load(gpu, &MINE).expect("a module");
        let kernel = |name| module.kernel(name).expect("a kernel");
        let asked = Arc::new(AtomicUsize::new(0));
        let launches = gpu.allocate(4).expect("memory");
        let mine = Mine {
            one_step: kernel("one_step"),
            broadcast: kernel("broadcast"),
            launches: launches.clone(),
            asked: asked.clone(),
        };
        let plain = builder(comm, gpu).tag(7).connect().expect("collectives");
        let collectives = builder(comm, gpu).algorithm(mine).connect().expect("collectives");
        let (stream, rank) = (gpu.stream().expect("a stream"), collectives.rank());
        let (mut random, mut own) = (Random::with_seed(seed), Random::with_seed(seed ^ 1 ^ rank as u64));
        let captured = zeros::<f16>(gpu, 777);
        stream.begin_capture().unwrap();
        collectives.all_reduce(&captured, &captured, ReduceOp::Max, &stream).unwrap();
        collectives.broadcast(&captured, 1, &stream).unwrap();
        let graph = stream.end_capture().unwrap();
        let mut due = 0u32;
        for round in 0..12 {
            let len = if random.of(0..=1) == 0 { 777 } else { random.of(1..=3000) as usize };
            let numbers: Vec<f16> = (0..len).map(|_| f16::from_bits(own.word() as u16 & 0xbbff)).collect();
            let (mut found, expected) = (slice(gpu, &numbers), slice(gpu, &numbers));
            let ops = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Avg, ReduceOp::PreMulSum(0.5)];
            let op = ops[random.of(0..=3) as usize];
            if len == 777 {
                captured.write(&numbers).unwrap();
                // SAFETY: what was captured keeps its memory.
                unsafe { graph.launch(&stream).unwrap() };
                plain.all_reduce(&expected, &expected, ReduceOp::Max, &stream).unwrap();
                found = captured.clone();
                due += 2;
            } else {
                collectives.all_reduce(&found, &found, op, &stream).unwrap();
                plain.all_reduce(&expected, &expected, op, &stream).unwrap();
                due += 1;
            }
            // For this there is no plan.
            let double = slice(gpu, &[rank as f64; 100]);
            collectives.all_reduce(&double, &double, ReduceOp::Sum, &stream).unwrap();
            collectives.synchronize(&stream).unwrap();
            plain.synchronize(&stream).unwrap();
            let bits = |numbers: Vec<f16>| numbers.into_iter().map(f16::to_bits).collect::<Vec<_>>();
            assert!(
                bits(found.read().unwrap()) == bits(expected.read().unwrap()),
                "round {round}, {op:?}, {len}"
            );
            assert_eq!(double.read().unwrap(), [3.0; 100]);
            let mut launched = [0u32];
            launches.read_params(0, &mut launched).unwrap();
            assert_eq!(launched[0], due, "round {round}");
        }
        let memory = captured.ptr();
        let request = |data_type| Request {
            kind: Kind::AllReduce(ReduceOp::Sum),
            send: memory,
            recv: memory,
            count: 10,
            data_type,
        };
        assert_eq!(collectives.selection(&request(DataType::F16)).unwrap(), None);
        assert!(collectives.selection(&request(DataType::F64)).unwrap().is_some());
        assert!(asked.load(Ordering::Relaxed) > 12);
        // Groups have it, too.
        let group = collectives.split(Some(0), 0).expect("a group").expect("all are in it");
        group.broadcast(&captured, 0, &stream).unwrap();
        group.synchronize(&stream).unwrap();
        let mut launched = [0u32];
        launches.read_params(0, &mut launched).unwrap();
        assert_eq!(launched[0], due + 1);
    });
}

/// Its all_gather lacks a parameter, which the launch finds.
#[derive(Debug)]
struct Wrong(Kernel);

// SAFETY: its kernel is never launched.
unsafe impl Algorithm for Wrong {
    fn plan(&self, asked: &Asked<'_>) -> Option<Launch> {
        let launch = Launch { kernel: self.0.clone(), args: KernelArgs::new(), blocks: 1, threads: 32 };
        (asked.kind == Kind::AllGather).then_some(launch)
    }
}

/// The requests in front of one that fails are in the stream, and calls in other streams come behind it.
#[test]
fn what_was_put_before_a_failure_keeps_its_place() {
    const LEN: usize = 3000;
    ranks(2, |comm, gpu| {
        let kernel = Module::load(gpu, &MINE).and_then(|module| module.kernel("one_step")).expect("a kernel");
        let builder = builder(comm, gpu).algorithm(Wrong(kernel)).check_calls(true);
        let collectives = builder.connect().expect("collectives");
        let streams = [(); 2].map(|()| gpu.stream().expect("a stream"));
        let numbers = [(); 2].map(|()| slice(gpu, &[1u32; LEN]));
        let (here, all) = (numbers[0].ptr(), zeros::<u32>(gpu, 2 * LEN));
        let request =
            |kind, recv| Request { kind, send: here, recv, count: LEN as u64, data_type: DataType::U32 };
        let requests = [request(Kind::AllReduce(ReduceOp::Sum), here), request(Kind::AllGather, all.ptr())];
        if collectives.rank() == 1 {
            thread::sleep(Duration::from_millis(200));
        }
        // SAFETY: the memory lives until the streams are synchronised.
        let failed = unsafe { collectives.enqueue(&requests, &streams[0]) };
        assert!(failed.expect_err("a parameter is missing").to_string().contains("launch of one_step"));
        collectives.all_reduce(&numbers[1], &numbers[1], ReduceOp::Sum, &streams[1]).unwrap();
        for (stream, numbers) in streams.iter().zip(&numbers) {
            collectives.synchronize(stream).unwrap();
            assert_eq!(numbers.read().unwrap(), [2; LEN]);
        }
        comm.bootstrap().barrier().unwrap();
    });
}
