//! Collectives of every kind between ranks on several nodes, compared with a reduction on the host.

use mscclpp::{Communicator, Gpu};
use mscclpp_collectives::{Collectives, CollectivesBuilder, NodesModel};
use mscclpp_test_support::Random;

use super::{
    builder,
    cases::{self, KINDS, PARAMETERS},
};

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

/// Plays cases between ranks on these nodes: kinds take turns, and the rest is random.
pub(crate) fn check(nodes: &[u8], n: usize, most: u64) {
    check_with(NodesModel::ETHERNET, nodes, n, most);
}

pub(crate) fn check_with(model: NodesModel, nodes: &[u8], n: usize, most: u64) {
    check_by(1, model, nodes, n, most);
}

pub(crate) fn check_by(connections: u32, model: NodesModel, nodes: &[u8], n: usize, most: u64) {
    let seed = Random::new().word();
    let mut random = Random::with_seed(seed);
    let case = |n: usize| {
        let mut case = PARAMETERS.map(|values| random.below(values));
        // The protocol is what is usual, and nothing is registered.
        (case[0], case[3]) = (n % KINDS.len(), 0);
        case.to_vec()
    };
    let cases: Vec<_> = (0..n).map(case).collect();
    cases::play(&by_node(nodes), seed, most, &cases, |comm, gpu, _| {
        on(nodes, comm, gpu).nodes_model(model).connections(connections)
    });
}
