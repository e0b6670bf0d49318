//! A signal is never visible before the data that was written before it.

use std::{hint, time::Instant};

use mscclpp_core::{IbConfig, IbMode};
use mscclpp_test_support::LIMIT;

use crate::{
    ends::Words,
    world::{MODES, World},
};
use mscclpp_fake_ib::{Config, Reordering};

const ROUNDS: u64 = 10_000;
/// The number of words of data, which take several packets.
const WORDS: usize = 256;

/// Writes and signals over adapters that reorder. Returns in how many rounds the data was not there with its signal.
fn violations(mode: IbMode, reordering: Reordering) -> u64 {
    let world = World::new(Config::new(2).with(|device| device.reordering = reordering));
    let pair = world.pair(mode, IbConfig::new());
    let (there, back) = pair.semaphores();
    let (source, target) = (Words::new(&pair.a, WORDS), Words::new(&pair.b, WORDS));
    let (theirs, size) = (target.at_peer(), source.memory.size());
    let mut violations = 0;
    for round in 1..=ROUNDS {
        source.fill(round);
        pair.ab.write(&theirs, 0, &source.memory, 0, size).expect("a write");
        there.signal().expect("a signal");
        // The thread polls without a pause, so that it sees the token as early as possible.
        let deadline = Instant::now() + LIMIT;
        while !back.poll().expect("a poll") {
            assert!(Instant::now() < deadline, "the signal of round {round} does not come");
            hint::spin_loop();
        }
        violations += u64::from(target.all_hold(round).is_err());
        pair.ab.flush(LIMIT).expect("a flush");
        assert_eq!(target.all_hold(round), Ok(()), "everything arrives in the end");
    }
    let overtakings = world.fake.counters().overtakings;
    println!(
        "{mode:?}: the data was not there with its signal in {violations} of {ROUNDS} rounds; {overtakings} overtakings"
    );
    assert!(overtakings > ROUNDS, "the adapters have hardly reordered anything: {overtakings} overtakings");
    violations
}

#[test]
fn no_signal_overtakes_its_data() {
    for mode in MODES {
        assert_eq!(violations(mode, Reordering::HOST_MEMORY), 0, "{mode:?}");
    }
}

/// The test detects tokens that are written with the data's relaxed ordering.
#[test]
fn a_relaxed_token_would_be_seen() {
    let seen = violations(IbMode::Host, Reordering { nothing_strict: true, ..Reordering::HOST_MEMORY });
    assert_ne!(seen, 0, "the order was broken on purpose, and nobody noticed");
}
