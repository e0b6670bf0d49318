//! Devices of a node that do not reach each other's memory: each rank is a node of its own.

#[path = "it/support/mod.rs"]
mod support;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use mscclpp::Platform;
use mscclpp_collectives::ReduceOp;
use support::{builder, platform, ranks, slice};

fn main() -> ExitCode {
    // SAFETY: the process has no other thread yet.
    unsafe { std::env::set_var("MSCCLPP_SIM_PEER_ACCESS", "none") };
    let has_gpus = platform() != Platform::Sim;
    let trial = Trial::test("ranks_are_nodes_of_their_own", || {
        ranks_are_nodes_of_their_own();
        Ok(())
    });
    libtest_mimic::run(&Arguments::from_args(), vec![trial.with_ignored_flag(has_gpus)]).exit_code()
}

fn ranks_are_nodes_of_their_own() {
    ranks(3, |comm, gpu| {
        let collectives = builder(comm, gpu).connect().expect("collectives");
        assert_eq!(collectives.n_nodes(), 3);
        let stream = gpu.stream().expect("a stream");
        let numbers = slice(gpu, &[1u32 << (8 * collectives.rank()); 5000]);
        collectives.all_reduce(&numbers, &numbers, ReduceOp::Sum, &stream).expect("a call");
        collectives.synchronize(&stream).expect("its end");
        assert_eq!(numbers.read().expect("numbers"), [0x1_0101; 5000]);
        // Two ranks of a group do not reach each other either.
        let color = (collectives.rank() != 1).then_some(4);
        let group = collectives.split(color, 0).expect("a group");
        assert_eq!(group.map(|group| group.n_nodes()), color.map(|_| 2));
        comm.bootstrap().barrier().expect("all ranks");
    });
}
