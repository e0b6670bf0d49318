//! Tests of jobs in a simulated world, with everything that can go wrong.
//!
//! The seeds are the same in each run, so that other changes do not cause failures here.
//! `MSCCLPP_SIMULATED_SEEDS=10000` simulates this many, `MSCCLPP_SIMULATED_NEW_SEEDS=10000` this many new ones, and
//! `MSCCLPP_SIMULATED_SEED=0x...` one alone, with the ranks' log.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use mscclpp_bootstrap_simulation::play;
use mscclpp_test_support::Random;

/// The number of seeds that a run simulates by default.
const SEEDS: u64 = 200;
const MOST_RANKS: usize = 64;
fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    Some(number.unwrap_or_else(|_| panic!("{variable}={text:?} is no number")))
}

#[test]
fn whatever_goes_wrong_all_hold_what_they_promise() {
    let (alone, new) = (number("MSCCLPP_SIMULATED_SEED"), number("MSCCLPP_SIMULATED_NEW_SEEDS"));
    let many = match alone {
        Some(_) => 1,
        None => new.or_else(|| number("MSCCLPP_SIMULATED_SEEDS")).unwrap_or(SEEDS),
    };
    let mut random = if new.is_some() { Random::new() } else { Random::with_seed(27) };
    if alone.is_some() {
        // The log of the ranks has no time, because that is simulated.
        let _ = tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::DEBUG)
            .with_ansi(false)
            .without_time()
            .try_init();
    }
    let started = Instant::now();
    let mut kinds = BTreeMap::<_, [u64; 2]>::new();
    let (mut failed, mut slowest) = (Vec::new(), (Duration::ZERO, 0, 0));
    for _ in 0..many {
        let seed = alone.unwrap_or_else(|| random.word());
        let began = Instant::now();
        match play(seed, MOST_RANKS) {
            Ok(played) => {
                kinds.entry(played.kind).or_default()[usize::from(played.formed)] += 1;
                slowest = slowest.max((began.elapsed(), seed, played.events));
            }
            Err(why) => {
                println!("seed {seed:#x}: {why}\nMSCCLPP_SIMULATED_SEED={seed:#x} plays it again\n");
                failed.push(seed);
            }
        }
    }
    println!("{many} seeds in {:.1?}", started.elapsed());
    let (time, seed, events) = slowest;
    println!("the slowest took {time:.1?}: seed {seed:#x}, with {events} events");
    println!("[not formed, formed] of each kind: {kinds:?}");
    assert!(failed.is_empty(), "{} of {many} seeds failed: {failed:#x?}", failed.len());
    if many >= SEEDS {
        // By then, each kind has occurred, and jobs have failed while they formed and afterwards.
        let total = |formed: usize| kinds.values().map(|counts| counts[formed]).sum::<u64>();
        assert!(kinds.len() >= 7 && total(0) > many / 50 && total(1) > many / 4, "{kinds:?}");
    }
}

#[test]
fn a_seed_is_the_same_each_time() {
    let mut random = Random::with_seed(28);
    for _ in 0..20 {
        let seed = random.word();
        assert_eq!(play(seed, MOST_RANKS), play(seed, MOST_RANKS), "seed {seed:#x}");
    }
}
