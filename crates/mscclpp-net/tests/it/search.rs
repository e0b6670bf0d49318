//! Tests of looking for a peer at one address after the other.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use mscclpp_net::dial::{Failed, Search};

fn addresses() -> Vec<SocketAddr> {
    vec!["10.0.0.1:1".parse().unwrap(), "10.0.0.2:1".parse().unwrap()]
}

#[test]
fn all_addresses_have_their_turn_and_pauses_grow() {
    let start = Instant::now();
    let mut now = start;
    let mut search = Search::new(addresses(), now, now + Duration::from_secs(60));
    for round in 0..10 {
        for address in addresses() {
            assert_eq!(search.attempt(now), Some(address));
            assert_eq!(search.attempt(now), None, "one at a time");
            search.failed(address, Failed::Refused, now);
        }
        assert!(search.all_refused());
        assert_eq!(search.attempt(now), None, "a pause after each round");
        let pause = search.wake_at() - now;
        assert_eq!(pause, Duration::from_millis(200.min(5 << round)));
        now += pause;
    }
}

#[test]
fn how_each_address_failed_is_kept() {
    let now = Instant::now();
    let mut search = Search::new(addresses(), now, now + Duration::from_secs(60));
    let [first, second] = [addresses()[0], addresses()[1]];
    search.attempt(now);
    assert!(search.failed(first, Failed::Unproven("its key is not ours".into()), now));
    assert!(search.unproven().is_none());
    let outcomes = |search: &Search| search.attempts().into_iter().map(|a| a.outcome).collect::<Vec<_>>();
    assert_eq!(outcomes(&search), ["its key is not ours", "no answer yet"]);
    search.attempt(now);
    assert!(search.failed(second, Failed::Unproven("it demands a key".into()), now));
    assert_eq!(search.unproven().unwrap().0, first);
    assert!(!search.all_refused());
    assert_eq!(search.wake_at() - now, Duration::from_secs(1));

    // The process at the first address has ended.
    let now = search.wake_at();
    search.attempt(now);
    assert!(!search.failed(first, Failed::Refused, now));
    assert_eq!(search.unproven().unwrap().1, "its key is not ours");
    assert_eq!(outcomes(&search)[0], "nobody listens there; before that, its key is not ours");
    // A different failure at the second address replaces the first.
    search.attempt(now);
    search.failed(second, Failed::Other("no answer in time".into()), now);
    assert!(search.unproven().is_none());
}

#[test]
fn an_address_that_was_passed_over_has_its_turn_again_when_that_attempt_has_ended() {
    let now = Instant::now();
    let mut search = Search::new(addresses(), now, now + Duration::from_secs(60));
    let [first, second] = [addresses()[0], addresses()[1]];
    let next = |search: &mut Search| {
        let now = search.wake_at();
        search.attempt(now)
    };
    assert_eq!(next(&mut search), Some(first));
    assert!(search.pass_over(first, now));
    for _ in 0..3 {
        assert_eq!(next(&mut search), Some(second));
        assert!(!search.pass_over(second, now), "there would be nothing to do");
        search.failed(second, Failed::Refused, now);
    }
    assert_eq!(next(&mut search), Some(second));
    search.failed(first, Failed::Refused, now);
    assert_eq!(search.attempt(now), None, "one at a time");
    search.failed(second, Failed::Refused, now);
    assert_eq!(next(&mut search), Some(first));
}

#[test]
fn an_address_whose_listener_ends_connections_keeps_its_turn_a_few_times() {
    let first = addresses()[0];
    let mut now = Instant::now();
    let mut search = Search::new(addresses(), now, now + Duration::from_secs(60));
    let mut tried = 0;
    while search.attempt(now) == Some(first) {
        tried += 1;
        search.failed(first, Failed::Ended("it closed the connection".into()), now);
        now = search.wake_at();
        assert!(tried < 20, "the other address has no turn");
    }
    assert!(tried > 1);
    assert_eq!(search.attempt(now), None, "it is under way");
}
