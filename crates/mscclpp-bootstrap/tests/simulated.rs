//! Jobs in a world that is played: seeds that are new in each run, and those that once found something.

use std::time::Instant;

use mscclpp_bootstrap::simulation::play;
use mscclpp_test_support::Random;

/// How many seeds a run plays, unless `MSCCLPP_SIMULATED_SEEDS` says how many.
const SEEDS: u64 = 200;
const MOST_RANKS: usize = 64;

#[test]
fn whatever_goes_wrong_all_hold_what_they_promise() {
    let mut random = Random::new();
    let many =
        std::env::var("MSCCLPP_SIMULATED_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SEEDS);
    let started = Instant::now();
    let mut failed = Vec::new();
    for _ in 0..many {
        let seed = random.word();
        if let Err(why) = play(seed, MOST_RANKS) {
            println!("seed {seed:#x}: {why}\n");
            failed.push(seed);
        }
    }
    println!("{many} seeds in {:.1?}", started.elapsed());
    assert!(failed.is_empty(), "{} of {many} seeds failed: {failed:#x?}", failed.len());
}

#[test]
fn a_seed_is_the_same_each_time() {
    let mut random = Random::new();
    for _ in 0..20 {
        let seed = random.word();
        assert_eq!(play(seed, MOST_RANKS), play(seed, MOST_RANKS), "seed {seed:#x}");
    }
}
