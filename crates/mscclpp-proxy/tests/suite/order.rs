//! A signal never comes before the data of earlier puts, in any mixture of small and large puts, from several threads.

use std::thread;

use super::{
    Case, Pair, Setup,
    kernels::Thread,
    pair::{Meeting, fill, mismatches, mix},
};

pub(super) const CASES: &[Case] = &[
    ("a_signal_comes_after_the_puts_of_all_threads", a_signal_comes_after_the_puts_of_all_threads),
    ("each_signal_comes_after_its_own_put", each_signal_comes_after_its_own_put),
];

const THREADS: usize = 3;
/// The words of a thread's part, which is larger than what a simulated device copies in no time.
const WORDS: usize = 16 << 10;
const ROUNDS: u64 = 40;

/// Returns how many words a thread puts in a round: 8 bytes to 128 KiB, small ones half of the time.
fn words_of(round: u64, thread: usize) -> usize {
    let random = mix(round, 1000 + thread as u64);
    let limit = if random & 1 == 0 { 256 } else { WORDS as u64 };
    1 + (mix(random, 3) % limit) as usize
}

fn part(thread: usize, words: usize) -> std::ops::Range<usize> {
    thread * WORDS..thread * WORDS + words
}

fn value(round: u64, thread: usize) -> impl Fn(u64) -> u64 {
    move |i| mix(round << 8 | thread as u64, i)
}

/// Runs the receiver: it takes the signals of a round, checks the data, and answers with a signal of its own.
fn check(pair: &Pair, signals: usize) {
    let _guard = pair.guard();
    let side = &pair.sides[1];
    let kernel = side.thread();
    for round in 1..=ROUNDS {
        for _ in 0..signals {
            assert!(kernel.wait());
        }
        for n in 0..THREADS {
            let words = words_of(round, n);
            let wrong = mismatches(&side.words()[part(n, words)], value(round, n));
            assert_eq!(wrong, 0, "round {round}: the signal came before data of thread {n}, {words} words");
        }
        assert!(kernel.signal());
    }
}

/// Lets all threads put, then one of them signal. They meet as threads of a kernel do in `__syncthreads` or a grid
/// barrier.
fn a_signal_comes_after_the_puts_of_all_threads(setup: &Setup) {
    run_rounds(setup, 1, |kernel, meeting, round, n, [at, size]| {
        assert!(kernel.put(at, at, size));
        meeting.meet();
        if round as usize % THREADS == n {
            assert!(kernel.signal());
            // The sources are free once the peer has seen the data.
            assert!(kernel.wait());
        }
    });
}

/// Lets each thread put and signal, in one call or in two; the receiver takes as many signals as there are threads.
fn each_signal_comes_after_its_own_put(setup: &Setup) {
    run_rounds(setup, THREADS, |kernel, meeting, round, n, [at, size]| {
        match mix(round, n as u64) % 3 {
            0 => assert!(kernel.put_with_signal(at, at, size)),
            1 => assert!(kernel.put_with_signal_and_flush(at, at, size)),
            _ => assert!(kernel.put(at, at, size) && kernel.signal()),
        }
        meeting.meet();
        if n == 0 {
            assert!(kernel.wait());
        }
    });
}

/// Runs all threads of the sender, and the receiver, which takes `signals` signals in a round. In each round a thread
/// fills its part and then calls `put` with the part's offset and bytes.
fn run_rounds(setup: &Setup, signals: usize, put: impl Fn(&Thread, &Meeting, u64, usize, [u64; 2]) + Sync) {
    let pair = Pair::running(setup, (8 * THREADS * WORDS) as u64);
    let a = &pair.sides[0];
    let meeting = Meeting::of(THREADS);
    thread::scope(|scope| {
        scope.spawn(|| check(&pair, signals));
        for n in 0..THREADS {
            let (pair, meeting, put) = (&pair, &meeting, &put);
            scope.spawn(move || {
                let _guard = pair.guard();
                let kernel = a.thread();
                for round in 1..=ROUNDS {
                    let words = words_of(round, n);
                    fill(&a.words()[part(n, words)], value(round, n));
                    put(&kernel, meeting, round, n, [8 * part(n, words).start as u64, 8 * words as u64]);
                    meeting.meet();
                }
            });
        }
    });
    pair.sides.iter().for_each(|side| side.service.stop_proxy().unwrap());
}
