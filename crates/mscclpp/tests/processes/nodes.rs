//! A job of ranks on two nodes: CUDA IPC within each, Ethernet between them, and memory registered for both.
//!
//! The nodes are network namespaces, and the ranks the example `mesh_port_channels`. It needs root and `ip`, and is
//! ignored elsewhere. `ci/rdma-ports.sh` runs the same with InfiniBand, in two virtual machines.

use std::thread;

use libtest_mimic::{Failed, Trial};
use mscclpp::prelude::*;
use mscclpp_test_support::{LIMIT, child::output_within, namespaces::Namespaces, trial_if};

use crate::program::program;

/// The number of ranks, two on each node.
const N: usize = 4;

pub(crate) fn trials() -> Vec<Trial> {
    let possible = Namespaces::new().map(drop);
    vec![trial_if("a_mesh_of_two_nodes_has_memory_for_two_transports", &possible, mesh)]
}

fn mesh() -> Result<(), Failed> {
    let nodes = Namespaces::new()?;
    let platform = Platform::detect_or_sim()?;
    let devices = platform.device_count()?;
    let rank = |rank: usize| {
        let node = rank / 2;
        let mut command = nodes.command(node, program("mesh_port_channels"));
        // A network namespace does not make a process belong to another node by itself.
        command.env("MSCCLPP_HOSTID", format!("node {node}")).env("MSCCLPP_PLATFORM", platform.to_string());
        command.args(["10.77.0.1:15505", &rank.to_string(), &(rank % devices).to_string()]);
        output_within(2 * LIMIT, command.args([&N.to_string(), "Ethernet"]))
    };
    let outputs = thread::scope(|scope| {
        let ranks: Vec<_> = (0..N).map(|number| scope.spawn(move || rank(number))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("a rank that ends")).collect::<Vec<_>>()
    });
    for (rank, output) in outputs.iter().enumerate() {
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "rank {rank}: {said}{}", String::from_utf8_lossy(&output.stderr));
        let over = |peer| if peer / 2 == rank / 2 { "CudaIpc" } else { "Ethernet" };
        for peer in (0..N).filter(|peer| *peer != rank) {
            assert!(said.contains(&format!("{peer} over {}", over(peer))), "rank {rank}: {said}");
        }
    }
    Ok(())
}
