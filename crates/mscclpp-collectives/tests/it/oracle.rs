//! Every collective, over types, operations, counts, offsets, roots, protocols and registered memory, gives bit for bit what a
//! reduction on the host gives, and touches nothing else.
//!
//! Every two values of every two parameters come about in each run, the rest is random. `the_full_product` has all
//! of them; it takes minutes: `ci/run.sh collectives`.

use crate::support::{
    builder_with_lanes,
    cases::{self, COUNTS, KINDS, PARAMETERS},
    pairs, platform,
};
use mscclpp::prelude::*;
use mscclpp_collectives::DataType;
use mscclpp_test_support::Random;

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
    let places: Vec<Vec<usize>> = match nodes {
        None => vec![(0..n_ranks).collect()],
        Some(_) => (0..n_ranks).map(|rank| vec![rank]).collect(),
    };
    cases::play(&places, seed, most, cases, |comm, gpu, told| {
        let builder = builder_with_lanes(comm, gpu).selector(told.clone());
        let Some(transport) = nodes else { return builder };
        // Nodes of one rank each, with small chunks and parts.
        let node = format!("n{}", comm.bootstrap().rank());
        builder.node(node).between_nodes(transport).scratch(512 << 10)
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
