//! Tests that a job gives its resources back.

mod ranks;

use std::time::{Duration, Instant};

use mscclpp_bootstrap::Bootstrap;
use mscclpp_test_support::held;
use ranks::{PATIENCE, in_threads, tcp_job};

fn descriptors_and_threads() -> (usize, usize) {
    let [descriptors, threads, _] = held();
    (descriptors, threads)
}

/// Returns the numbers of descriptors and threads, once they are at most these: a thread that was joined is listed a
/// moment longer, and a connection whose other end was closed is kept until that is read.
fn settled(most: (usize, usize)) -> (usize, usize) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = descriptors_and_threads();
        if (now.0 <= most.0 && now.1 <= most.1) || Instant::now() > deadline {
            return now;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn round() {
    let job = tcp_job(3);
    in_threads(0..3, |rank| {
        job[rank].barrier().unwrap();
        job[rank].send(&[1], (rank + 1) % 3, 0).unwrap();
        job[rank].recv((rank + 2) % 3, 0).unwrap();
    });
    drop(job);
}

#[test]
fn descriptors_and_threads_stay_flat() {
    let at_first = descriptors_and_threads();
    for _ in 0..10 {
        round();
    }
    let before = settled(at_first);
    for _ in 0..300 {
        round();
    }
    assert_eq!(settled(before), before);

    // Ranks that sent to each other at the same time had two connections at first, and keep one.
    let job = tcp_job(8);
    in_threads(0..8, |rank| {
        for round in 0..20 {
            (0..8).for_each(|peer| job[rank].send(&vec![1; 5000 * round], peer, 0).unwrap());
            (0..8).for_each(|peer| assert_eq!(job[rank].recv(peer, 0).unwrap().len(), 5000 * round));
        }
    });
    let expected = (before.0 + 8 * (3 + 7), before.1 + 8);
    assert_eq!(settled(expected), expected);
    drop(job);

    // While a job exists and only collectives were used, a rank has an eventfd, an epoll instance, a listener and up
    // to three connections.
    let job = tcp_job(64);
    in_threads(0..64, |rank| job[rank].barrier().unwrap());
    let (descriptors, threads) = settled((before.0 + 64 * 6, before.1 + 64));
    let per_rank = (descriptors - before.0) as f64 / 64.0;
    assert!(per_rank <= 6.0, "{per_rank} descriptors a rank");
    assert_eq!(threads, before.1 + 64);
}
