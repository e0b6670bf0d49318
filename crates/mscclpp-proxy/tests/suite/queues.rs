//! Full queues: a full transport only makes triggers wait: no trigger is lost, reordered or a failure.

use mscclpp_proxy::FifoPosition;

use super::{
    Case, Pair, Setup, Side,
    pair::{fill, mismatches, mix},
};

pub(super) const CASES: &[Case] = &[
    ("queues_of_any_size_will_do", queues_of_any_size_will_do),
    ("many_puts_without_a_wait", many_puts_without_a_wait),
    ("a_stop_carries_out_what_waits_for_room", a_stop_carries_out_what_waits_for_room),
];

/// The bytes of a put.
const PIECE: u64 = 64;
const PIECE_WORDS: u64 = PIECE / 8;
/// The number of places that puts go to, one after the other and round again.
const PLACES: u64 = 16;
const WORDS: usize = (PLACES * PIECE_WORDS) as usize;

/// Makes two running sides whose queues hold `size` operations. All puts go through the proxy.
fn pair_of(setup: &Setup, size: Option<u32>) -> Pair {
    let setup = Setup { queue_size: size, ..setup.clone() };
    let pair = Pair::new(&setup, PLACES * PIECE, 1, |builder| builder.direct_put_max(0));
    pair.sides.iter().for_each(|side| side.service.start_proxy(true).expect("a start"));
    pair
}

/// The most puts of a kernel, whose end the host awaits with a limit: far fewer than a slow transport carries out in
/// that time.
const PUTS_OF_A_KERNEL: u64 = 1 << 16;

/// Does `puts` puts without a wait in between, by one kernel after the other.
fn put_without_a_wait(side: &Side, puts: u64) {
    for first in (0..puts).step_by(PUTS_OF_A_KERNEL as usize) {
        let puts = PUTS_OF_A_KERNEL.min(puts - first);
        let done = side.thread().put_many(puts, PIECE, PLACES);
        assert_eq!(done, puts, "a put was given up: {:?}", side.service.health());
    }
}

/// Does `puts` puts without a wait and then a flush in each round; then the data is there, and the service has
/// counted all of it.
fn puts_arrive(setup: &Setup, size: Option<u32>, rounds: u64, puts: u64) {
    let pair = pair_of(setup, size);
    let [a, b] = &pair.sides;
    for round in 0..rounds {
        fill(&a.words()[..WORDS], |i| mix(round, i));
        put_without_a_wait(a, puts);
        assert!(a.thread().put_with_signal_and_flush(0, 0, PIECE), "{:?}", a.service.health());
        let wrong = mismatches(&b.words()[..WORDS], |i| mix(round, i));
        assert_eq!(wrong, 0, "queue size {size:?}, round {round}");
        assert!(b.thread().wait());
    }
    let stats = a.service.stats();
    assert_eq!(
        (stats.total.data, stats.total.flags, stats.total.syncs),
        (rounds * (puts + 1), rounds, rounds)
    );
    let connection = &stats.connections[0];
    assert_eq!(
        (connection.waiting, connection.completed.map(FifoPosition::raw)),
        (0, Some(rounds * (puts + 1)))
    );
    pair.sides.iter().for_each(|side| side.service.stop_proxy().expect("a full queue is no failure"));
}

fn queues_of_any_size_will_do(setup: &Setup) {
    for (size, puts) in [(Some(1), 3_000), (Some(64), 20_000), (None, 20_000)] {
        let puts = puts.min(setup.many_puts / 4);
        puts_arrive(setup, size, 2, if looks_for_races() { puts / 8 } else { puts });
    }
}

/// Whether the race detector runs, which makes each put slower.
fn looks_for_races() -> bool {
    std::env::var_os("MSCCLPP_SIM_RACES").is_some_and(|value| value == "1")
}

fn many_puts_without_a_wait(setup: &Setup) {
    puts_arrive(setup, None, 1, if looks_for_races() { 1 << 12 } else { setup.many_puts });
}

/// Checks that a stop completes puts that nobody flushes.
fn a_stop_carries_out_what_waits_for_room(setup: &Setup) {
    let pair = pair_of(setup, Some(1));
    let [a, b] = &pair.sides;
    for round in 0..5 {
        a.service.start_proxy(true).expect("a start");
        fill(&a.words()[..WORDS], |i| mix(round, i));
        put_without_a_wait(a, 300);
        a.service.stop_proxy().expect("a stop");
        fill(&a.words()[..WORDS], |_| 0);
        assert_eq!(mismatches(&b.words()[..WORDS], |i| mix(round, i)), 0, "round {round}");
        assert_eq!(a.service.stats().connections[0].waiting, 0);
    }
}
