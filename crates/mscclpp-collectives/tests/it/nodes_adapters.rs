//! Collectives of ranks on two nodes over simulated RDMA adapters, one for each rank: these show what has arrived in every
//! order that real ones may, and complete requests with errors.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use mscclpp::{Report, channels::IbMode, prelude::*};
use mscclpp_collectives::{Collectives, ReduceOp, Transfer};
use mscclpp_ib::InfiniBand;
use mscclpp_test_support::{Random, within};
use mscclpp_verbs_sys as sys;

use mscclpp_fake_ib::{Config, Fake, Live, Reordering};

use crate::support::{builder, slice, turn, zeros};

/// The node of each rank.
const NODES: [u8; 4] = [0, 0, 1, 1];
/// Long enough for any machine: no test waits so long unless something is wrong.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs the ranks as threads, each with an adapter of its own.
fn ranks(
    reordering: Reordering,
    mode: IbMode,
    rank: impl Fn(&Fake, &Communicator, &Collectives, &Gpu) + Sync,
) {
    let _turn = turn();
    let seed = Random::new().word();
    println!("seed {seed}");
    // No adapter gives up a request by itself before its rank has been told of the failure.
    let config =
        Config { seed, patience: LIMIT, ..Config::new(4) }.with(|device| device.reordering = reordering);
    let fake = Fake::new(config);
    let verbs = fake.verbs();
    thread::scope(|scope| {
        for (r, bootstrap) in LocalBootstrap::group(4).into_iter().enumerate() {
            let (rank, fake) = (&rank, &fake);
            scope.spawn(move || {
                // SAFETY: the simulated adapters do what libibverbs does with real ones.
                let adapters = unsafe { InfiniBand::builder().verbs(verbs) }.mode(mode).build();
                let context = Context::builder().provider(adapters).default_providers();
                let comm =
                    Communicator::with_context(Arc::new(bootstrap), context.platform(Platform::Sim).build());
                let gpu = comm.context().gpu(r).expect("a device");
                let node = format!("node {}", NODES[r]);
                // Simulated devices are near to none, and share the adapters by their numbers.
                let collectives = builder(&comm, &gpu).node(node).between_nodes_by_nearest_adapter();
                let collectives = collectives.scratch(2 << 20).timeout(LIMIT).connect().expect("collectives");
                rank(fake, &comm, &collectives, &gpu);
                // Ranks leave together, unless the test has ended the job.
                if let Err(error) = comm.bootstrap().barrier() {
                    assert!(comm.bootstrap().failure().is_some(), "{error:?}");
                }
            });
        }
    });
    let is_gone = within(LIMIT, || fake.live() == Live::default());
    assert!(is_gone, "something has leaked: {:?}", fake.live());
}

/// Calls of all kinds behind each other, so that chunks of one are under way while the next one begins.
fn everything(collectives: &Collectives, gpu: &Gpu) {
    let (rank, stream) = (collectives.rank() as u64, gpu.stream().expect("a stream"));
    for (round, len) in [(0, 5), (1, 4_000), (2, 50_000), (3, 70_003)] {
        let of = move |rank: u64| (0..len as u64).map(move |i| i * (rank + 3) + round);
        let own: Vec<u64> = of(rank).collect();
        let [sent, sums, from_2] = [slice(gpu, &own), zeros::<u64>(gpu, len), slice(gpu, &own)];
        let (all, to_all) = (zeros::<u64>(gpu, 4 * len), slice(gpu, &own.repeat(4)));
        let (exchanged, scattered) = (zeros::<u64>(gpu, 4 * len), zeros::<u64>(gpu, len));
        let got = zeros::<u64>(gpu, len);
        let transfers = [
            Transfer::Send { numbers: &sent, peer: (rank as usize + 1) % 4 },
            Transfer::Recv { numbers: &got, peer: (rank as usize + 3) % 4 },
        ];
        collectives.all_reduce(&sent, &sums, ReduceOp::Sum, &stream).unwrap();
        collectives.all_gather(&sent, &all, &stream).unwrap();
        collectives.all_to_all(&to_all, &exchanged, &stream).unwrap();
        collectives.reduce_scatter(&to_all, &scattered, ReduceOp::Max, &stream).unwrap();
        collectives.broadcast(&from_2, 2, &stream).unwrap();
        collectives.exchange(&transfers, &stream).unwrap();
        collectives.barrier(&stream).unwrap();
        collectives.synchronize(&stream).unwrap_or_else(|error| panic!("{}", Report(&error)));

        let gathered: Vec<u64> = (0..4).flat_map(of).collect();
        let sum = |i: usize| (0..4).map(|r| gathered[r * len + i]).sum::<u64>();
        assert!(sums.read().unwrap().iter().enumerate().all(|(i, it)| *it == sum(i)), "round {round}");
        assert!(all.read().unwrap() == gathered && exchanged.read().unwrap() == gathered, "round {round}");
        assert!(scattered.read().unwrap().into_iter().eq(of(3)), "round {round}");
        assert!(from_2.read().unwrap().into_iter().eq(of(2)), "round {round}");
        assert!(got.read().unwrap().into_iter().eq(of((rank + 3) % 4)), "round {round}");
    }
}

#[test]
fn adapters_that_reorder_change_no_result() {
    for mode in [IbMode::Host, IbMode::HostNoAtomic] {
        let reordering = Reordering::HOST_MEMORY.acknowledged_early();
        ranks(reordering, mode, |_, _, collectives, gpu| everything(collectives, gpu));
    }
}

/// A request of one rank completes with an error, anywhere in a call: the calls of all ranks end, also those of the ranks that
/// have no connection to it, and it says what its adapter said.
#[test]
fn a_request_that_completes_with_an_error_ends_the_calls_of_all() {
    for (broken, status, name) in [
        (0, sys::IBV_WC_RETRY_EXC_ERR, "IBV_WC_RETRY_EXC_ERR"),
        (3, sys::IBV_WC_REM_OP_ERR, "IBV_WC_REM_OP_ERR"),
    ] {
        ranks(Reordering::HOST_MEMORY, IbMode::Host, |fake, comm, collectives, gpu| {
            let (rank, stream) = (collectives.rank(), gpu.stream().expect("a stream"));
            let numbers = zeros::<u32>(gpu, 50_000);
            let call = || {
                collectives.all_reduce(&numbers, &numbers, ReduceOp::Max, &stream)?;
                collectives.synchronize(&stream)
            };
            call().unwrap_or_else(|error| panic!("{}", Report(&error)));
            // All have come so far before anything fails.
            comm.bootstrap().barrier().expect("all ranks");
            if rank == broken {
                fake.fail_completion(broken, Random::new().of(1..=40), status);
            }
            let (error, took) = loop {
                let begun = Instant::now();
                if let Err(error) = call() {
                    break (Report(&error).to_string(), begun.elapsed());
                }
            };
            println!("rank {rank} after {took:?}: {error}");
            assert!(took < LIMIT, "rank {rank} waited until its time was up: {error}");
            assert_eq!(error.contains(name), error.contains("IBV_WC"), "another error: {error}");
            if rank == broken {
                assert!(error.contains(name), "{error}");
            }
        });
    }
}

/// The calls of a rank whose adapter fails end, also where it waits for a rank of its node that makes no call any more.
#[test]
fn a_rank_whose_adapter_fails_waits_for_nobody() {
    ranks(Reordering::HOST_MEMORY, IbMode::Host, |fake, comm, collectives, gpu| {
        let (rank, stream) = (collectives.rank(), gpu.stream().expect("a stream"));
        let numbers = zeros::<u32>(gpu, 50_000);
        if rank == 3 {
            fake.fail_completion(3, 1, sys::IBV_WC_REM_OP_ERR);
        }
        comm.bootstrap().barrier().expect("all ranks");
        let begun = Instant::now();
        let call = || {
            match rank {
                1 => collectives.recv(&numbers, 3, &stream)?,
                2 => return Ok(()),
                3 => collectives.send(&numbers, 1, &stream)?,
                _ => {}
            }
            collectives.all_reduce(&numbers, &numbers, ReduceOp::Max, &stream)?;
            collectives.synchronize(&stream)
        };
        let error = call().err().map(|error| Report(&error).to_string());
        let took = begun.elapsed();
        println!("rank {rank} after {took:?}: {error:?}");
        assert!(took < LIMIT, "rank {rank} waited until its time was up: {error:?}");
        assert_eq!(error.is_none(), rank == 2);
    });
}
