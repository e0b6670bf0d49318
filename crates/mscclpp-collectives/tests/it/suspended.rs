//! Collectives that give their memory back for a while.

use crate::support::{Told, builder, one_message, ranks, ranks_alone, slice, three_sums, zeros};
use mscclpp_collectives::{Error, Protocol, ReduceOp, Selection};

/// Calls of every protocol, messages and a graph: all in front of a suspension, and all behind it.
#[test]
fn calls_and_graphs_go_on_after_a_suspension() {
    ranks_alone(3, |comm, gpu| {
        let selection = Selection { protocol: Protocol::Ll16, two_steps: false, blocks: 2, threads: 32 };
        let told = Told::new(selection);
        let collectives = builder(comm, gpu).selector(told.clone()).connect().expect("collectives");
        let (stream, rank) = (gpu.stream().unwrap(), collectives.rank() as u64);
        let registered = zeros::<u64>(gpu, 6000);
        let _registered = collectives.register(registered.buffer()).unwrap();
        let replayed = zeros::<u64>(gpu, 5000);
        let graph = three_sums(&collectives, &replayed, &stream).unwrap();
        let protocols = [Protocol::Ll16, Protocol::Ll128, Protocol::Simple, Protocol::Bulk, Protocol::Direct];
        for round in 1..=4 {
            for (protocol, two_steps) in protocols.into_iter().flat_map(|it| [(it, false), (it, true)]) {
                told.tell(Selection { protocol, two_steps, ..selection });
                let numbers = slice(gpu, &[round + rank; 3000]);
                collectives.all_reduce(&numbers, &numbers, ReduceOp::Sum, &stream).unwrap();
                collectives.all_gather(&numbers.slice(0..2000).unwrap(), &registered, &stream).unwrap();
                collectives.synchronize(&stream).unwrap();
                assert_eq!(numbers.read().unwrap(), [3 * round + 3; 3000], "{protocol}, round {round}");
                assert_eq!(registered.read().unwrap(), [3 * round + 3; 6000], "{protocol}, round {round}");
            }
            // More than a ring has places for, so that later ones wait for what earlier ones have counted.
            (0..5).for_each(|_| one_message(gpu, &collectives, &stream));
            replayed.write(&[round + rank; 5000]).unwrap();
            // SAFETY: the graph keeps what it uses.
            unsafe { graph.launch(&stream).unwrap() };
            collectives.synchronize(&stream).unwrap();
            assert_eq!(replayed.read().unwrap(), [9 * (3 * round + 3); 5000], "round {round}");
            // The next call waits until all have begun this one.
            collectives.broadcast(&replayed, 1, &stream).unwrap();
            collectives.synchronize(&stream).unwrap();

            let before = gpu.memory_info().unwrap().free;
            comm.bootstrap().barrier().unwrap();
            // SAFETY: no thread makes a call until the collectives are resumed, and the graph is complete.
            unsafe { collectives.suspend().unwrap() };
            let given_back = collectives.suspendable_bytes();
            let after = gpu.memory_info().unwrap().free;
            assert!(after >= before + given_back, "{before} and {given_back} are {after}");
            let refused = collectives.barrier(&stream).expect_err("they are suspended");
            assert!(refused.to_string().contains("are suspended"), "{refused}");
            comm.bootstrap().barrier().unwrap();
            collectives.resume().unwrap();
        }
    });
}

#[test]
fn collectives_are_suspended_once_and_when_their_calls_are_complete() {
    ranks(2, |comm, gpu| {
        let collectives = builder(comm, gpu).connect().expect("collectives");
        let (stream, numbers) = (gpu.stream().unwrap(), slice(gpu, &[1u64; 100]));
        // SAFETY: no thread makes a call until the collectives are resumed, and there is no graph.
        let suspend = || unsafe { collectives.suspend() };
        if collectives.rank() == 0 {
            // This call waits for the other rank, which makes its own only after the barrier.
            collectives.all_reduce(&numbers, &numbers, ReduceOp::Sum, &stream).unwrap();
            let refused = suspend().expect_err("a call is under way");
            assert!(
                matches!(refused, Error::InvalidArgument(_)) && refused.to_string().contains("synchronize")
            );
        }
        comm.bootstrap().barrier().unwrap();
        if collectives.rank() == 1 {
            collectives.all_reduce(&numbers, &numbers, ReduceOp::Sum, &stream).unwrap();
        }
        collectives.synchronize(&stream).unwrap();
        assert_eq!(numbers.read().unwrap(), [2; 100]);
        suspend().unwrap();
        let refused = suspend().expect_err("they are suspended");
        assert!(refused.to_string().contains("are suspended"), "{refused}");
        // They can be dropped so.
    });
}
