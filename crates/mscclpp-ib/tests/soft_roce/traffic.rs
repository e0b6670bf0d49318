//! Tests of data and signals: order, bursts, sizes.

use std::{fs, thread};

use mscclpp_core::{IbConfig, IbMode, Transport};
use mscclpp_test_support::until;

use crate::{
    Case,
    ends::{self, Pair, Words},
};

pub(crate) const CASES: &[(&str, Case)] = &[
    ("a_token_never_overtakes_its_data", a_token_never_overtakes_its_data),
    ("a_burst_of_signals_finds_receives", a_burst_of_signals_finds_receives),
    ("large_and_odd_sizes_arrive", large_and_odd_sizes_arrive),
    ("sides_of_different_mtu_and_gid_connect", sides_of_different_mtu_and_gid_connect),
];

/// The most polls that a wait may take, which is enough for minutes.
const POLLS: i64 = 1_000_000_000;

/// The litmus test: a thread that has seen the n-th signal sees the n-th data everywhere.
fn a_token_never_overtakes_its_data(mode: IbMode) {
    const ROUNDS: u64 = 10_000;
    // The number of words of data, which take several packets.
    const WORDS: usize = 1024;
    let pair = ends::pair(mode);
    let (there, back) = pair.semaphores();
    let (source, target) = (Words::new(&pair.a, WORDS), Words::new(&pair.b, WORDS));
    let (theirs, size) = (target.at_peer(), source.memory.size());
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                back.wait(POLLS).expect("a signal");
                if let Err((at, found)) = target.all_hold(round) {
                    panic!("round {round} is signalled, but word {at} holds {found}");
                }
                back.signal().expect("an answer");
            }
        });
        for round in 1..=ROUNDS {
            source.fill(round);
            pair.ab.write(&theirs, 0, &source.memory, 0, size).expect("a write");
            there.signal().expect("a signal");
            there.wait(POLLS).expect("an answer");
        }
    });
}

/// Returns how many packets found no receive posted, for both devices.
fn without_receive() -> u64 {
    let count = |device: &str, name: &str| {
        let path = format!("/sys/class/infiniband/{device}/ports/1/hw_counters/{name}");
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        text.trim().parse::<u64>().expect("a number")
    };
    ["rxe0", "rxe1"].iter().map(|d| count(d, "send_rnr_err") + count(d, "rcvd_rnr_err")).sum()
}

fn a_burst_of_signals_finds_receives(mode: IbMode) {
    const SIGNALS: u64 = 10_000;
    let before = without_receive();
    let pair = ends::pair(mode);
    let (there, back) = pair.semaphores();
    thread::scope(|scope| {
        scope.spawn(|| (0..SIGNALS).for_each(|_| there.signal().expect("a signal")));
        (0..SIGNALS).for_each(|_| back.wait(POLLS).expect("a signal"));
    });
    assert!(!back.poll().expect("a poll"), "there were more signals than were sent");
    assert_eq!(without_receive(), before, "a signal came for which there was no receive");
}

fn large_and_odd_sizes_arrive(mode: IbMode) {
    let pair = ends::pair(mode);
    for words in [1, 512, 513, 8 << 20] {
        let (source, target) = (Words::new(&pair.a, words), Words::new(&pair.b, words));
        source.fill(words as u64);
        pair.ab.write(&target.at_peer(), 0, &source.memory, 0, source.memory.size()).expect("a write");
        pair.ab.flush(mscclpp_test_support::LIMIT).expect("a flush");
        assert_eq!(target.all_hold(words as u64), Ok(()), "{words} words");
    }
}

fn sides_of_different_mtu_and_gid_connect(mode: IbMode) {
    crate::limits::run("ip link set net1 mtu 600");
    // The adapter uses the new size after a moment.
    let active = || fs::read_to_string("/sys/class/net/net1/mtu").is_ok_and(|mtu| mtu.trim() == "600");
    until("the smaller MTU", active);
    let pair = Pair::of(
        ends::end_with(Transport::IB0, mode, IbConfig::new().gid_index(1)),
        ends::end_with(Transport::IB1, mode, IbConfig::new().gid_index(1).port(1)),
    );
    let (there, back) = pair.semaphores();
    let (source, target) = (Words::new(&pair.a, 4096), Words::new(&pair.b, 4096));
    source.fill(7);
    pair.ab.write(&target.at_peer(), 0, &source.memory, 0, source.memory.size()).expect("a write");
    there.signal().expect("a signal");
    back.wait(POLLS).expect("a signal");
    assert_eq!(target.all_hold(7), Ok(()));
    crate::limits::run("ip link set net1 mtu 1500");
}
