//! Tests of ranks that are started first and waited for later, so that one thread brings up several.

use std::time::Duration;

use crate::ranks::{PATIENCE, brief, free_port, in_threads, with_enough_time};
use mscclpp_bootstrap::{Bootstrap, Env, Error, Forming, MeetingPlace, TcpBootstrap};
use mscclpp_test_support::within;

fn start(rank: usize, n: usize, at: impl Into<MeetingPlace>, timeout: Duration) -> Result<Forming, Error> {
    brief(rank, n).timeout(timeout).start(at)
}

fn create_id() -> MeetingPlace {
    TcpBootstrap::create_unique_id_in(&Env::default()).unwrap().into()
}

#[test]
fn one_thread_brings_up_all_ranks_in_any_order() {
    for n in [1, 2, 3, 32] {
        let orders: [Vec<usize>; 2] = [(0..n).collect(), (0..n).rev().collect()];
        for order in orders {
            let address = format!("127.0.0.1:{}", free_port());
            for at in [create_id(), address.into()] {
                let forming: Vec<_> =
                    order.iter().map(|&rank| start(rank, n, at.clone(), PATIENCE).unwrap()).collect();
                let ranks: Vec<_> = forming.into_iter().map(|forming| forming.wait().unwrap()).collect();
                in_threads(0..n, |i| {
                    let all = ranks[i].all_gather(&[ranks[i].rank() as u8]).unwrap();
                    assert!(all.iter().enumerate().all(|(rank, bytes)| *bytes == [rank as u8]));
                });
            }
        }
    }
}

#[test]
fn polling_tells_when_the_job_has_formed() {
    let at = create_id();
    let zero = start(0, 2, at.clone(), PATIENCE).unwrap();
    assert!(!zero.poll());
    let one = start(1, 2, at, PATIENCE).unwrap();
    assert!(within(PATIENCE, || zero.poll() && one.poll()));
    let ranks = [zero, one].map(|forming| forming.wait().unwrap());
    assert_eq!(ranks.map(|rank| rank.rank()), [0, 1]);
    let alone = start(0, 1, create_id(), PATIENCE).unwrap();
    assert!(alone.poll());
    alone.wait().unwrap().barrier().unwrap();
}

#[test]
fn a_rank_that_never_comes_is_missed_by_all_that_one_thread_waits_for() {
    with_enough_time(|timeout| {
        let at = create_id();
        let forming: Vec<_> = (0..7).map(|rank| start(rank, 8, at.clone(), timeout).unwrap()).collect();
        assert!(within(PATIENCE, || forming.iter().all(Forming::poll)));
        for forming in forming {
            match forming.wait() {
                Err(Error::Timeout { missing, .. }) => assert_eq!(missing, [7]),
                other => panic!("{other:?}"),
            }
        }
    });
}

/// Returns the error of rank 0 of three if rank 1 gives up, and rank 2 never comes.
fn heard_of(give_up: fn(Forming)) -> Error {
    // Rank 0 cannot hear of rank 1 before that has reached it, and the test cannot know when it has.
    for pause in [10, 100, 1000, 10_000].map(Duration::from_millis) {
        let at = create_id();
        let timeout = pause + Duration::from_secs(2);
        let [zero, one] = [0, 1].map(|rank| start(rank, 3, at.clone(), timeout).unwrap());
        std::thread::sleep(pause);
        give_up(one);
        match zero.wait() {
            Err(Error::Timeout { missing, .. }) => assert_eq!(missing, [1, 2]),
            outcome => return outcome.unwrap_err(),
        }
    }
    panic!("rank 0 never heard of rank 1");
}

#[test]
fn who_gives_up_is_named_to_those_that_have_come() {
    let aborted = heard_of(|forming| forming.abort("no memory for its buffers"));
    assert!(
        matches!(&aborted, Error::Aborted { rank: 1, reason } if reason == "no memory for its buffers"),
        "{aborted}"
    );
    let dropped = heard_of(drop);
    assert!(
        matches!(&dropped, Error::Aborted { rank: 1, reason } if reason.contains("dropped before")),
        "{dropped}"
    );
}

#[test]
fn a_rank_that_is_not_waited_for_leaves_a_job_that_has_formed() {
    let at = create_id();
    let [zero, one] = [0, 1].map(|rank| start(rank, 2, at.clone(), PATIENCE).unwrap());
    assert!(within(PATIENCE, || zero.poll() && one.poll()));
    drop(one);
    let zero = zero.wait().unwrap();
    assert!(matches!(zero.recv(1, 0), Err(Error::PeerClosed { rank: 1 })));
}
