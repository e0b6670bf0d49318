//! Ranks that are lost and come back, or come late.

use std::{sync::Arc, thread, time::Duration};

use mscclpp::{bootstrap::Job, errors::BootstrapError, prelude::*};
use mscclpp_ep::Experts;
use mscclpp_test_support::{LIMIT, Random, Turn, in_threads, reserve_port};

use crate::{
    checked::{
        Options, check_dispatch, check_sums, combine, connect, copies, dispatch, put, to_combine,
        tokens_of_all,
    },
    oracle::Model,
    rounds::any_of,
    support::{platform, ranks},
};

/// A dispatch and its combine, which are compared with the oracle if `is_checked`.
fn round(experts: &Experts, (model, options): (&Model, &Options), gpu: &Gpu, seed: u64, is_checked: bool) {
    let (mut random, rank) = (Random::with_seed(seed), experts.rank());
    let all = tokens_of_all(model, options, &mut random);
    let (stream, rows) = (gpu.stream().expect("a stream"), model.rows(&all, rank));
    let (routed, call) = dispatch(experts, model, options, &all[rank], (gpu, &stream), (0, false));
    let copies = copies(model, &routed, &call, (gpu, &stream));
    let (memories, sums) = to_combine(model, options, &all[rank], &call, &rows, rank, gpu);
    put(experts, options, &combine(&routed, options, &memories, &sums), &stream);
    experts.synchronize(&stream).expect("a round");
    if is_checked {
        check_dispatch(model, &routed, &call, &copies, &rows, rank);
        check_sums(model, options, &all[rank], (&memories, &sums), rank, "a round");
    }
}

#[test]
fn a_lost_rank_comes_back_in_the_next_generation() {
    const RANKS: usize = 3;
    const VICTIM: usize = 1;
    let _turn = Turn::take(platform() != Platform::Sim);
    let devices = platform().device_count().expect("devices");
    let mut random = Random::new();
    let (model, options) = any_of(RANKS, &mut random);
    let (setup, seed) =
        ((&model, &Options { survives: true, halves: vec![false; RANKS], ..options }), random.word());
    let port = reserve_port();
    in_threads(0..RANKS, |rank| {
        let mut job =
            Job::new(TcpBootstrap::builder(rank, RANKS).timeout(LIMIT), format!("127.0.0.1:{port}"));
        for generation in 0..2 {
            let bootstrap = loop {
                match job.next_generation() {
                    Ok(bootstrap) => break bootstrap,
                    // A rank of the generation before was still there.
                    Err(BootstrapError::PeerLost { .. } | BootstrapError::PeerClosed { .. }) => {}
                    Err(other) => panic!("generation {generation}: {other}"),
                }
            };
            let comm = Communicator::with_context(Arc::new(bootstrap), Context::on(platform()));
            let gpu = comm.context().gpu(rank % devices).expect("a device");
            let experts = connect(setup.0, setup.1, &comm, &gpu);
            round(&experts, setup, &gpu, seed + generation, true);
            if generation == 0 && rank != VICTIM {
                let stream = gpu.stream().expect("a stream");
                experts.lose(&[VICTIM], &stream).expect("the others go on");
                round(&experts, setup, &gpu, seed, false);
            } else if generation == 1 {
                comm.bootstrap().barrier().expect("all have ended");
            }
        }
    });
}

/// No time-out of the library is shorter than what the program has given.
#[test]
#[ignore = "takes two minutes: ci/run.sh soak"]
fn a_rank_comes_two_minutes_late() {
    let mut random = Random::new();
    let (model, options) = any_of(2, &mut random);
    let options = Options { limit: Duration::from_secs(600), ..options };
    let seed = random.word();
    ranks(2, |comm, gpu| {
        let experts = connect(&model, &options, comm, gpu);
        if experts.rank() == 1 {
            thread::sleep(Duration::from_secs(121));
        }
        round(&experts, (&model, &options), gpu, seed, true);
    });
}
