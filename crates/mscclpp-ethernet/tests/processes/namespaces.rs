//! Tests of two nodes with addresses and interfaces of their own, and a network that is slow and loses packets.
//!
//! The nodes are network namespaces, and their processes are this program, started again. This needs root and `ip`; the
//! tests are ignored elsewhere.

use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use mscclpp_core::{Connection, Endpoint, RegisteredMemory};
use mscclpp_ethernet::{Ethernet, Family};
use mscclpp_test_support::{
    Child, LIMIT,
    child::{hear, say},
    hex,
    namespaces::Namespaces,
    trial_if, unhex,
};

use crate::support::{
    self, End, Words, mix,
    relay::{Nuisance, Relay},
};

const WORDS: usize = 100_000;

pub(crate) fn trials() -> Vec<Trial> {
    let possible = Namespaces::new().map(drop);
    vec![
        trial_if("hosts_with_different_addresses_reach_each_other", &possible, different_addresses),
        trial_if("the_interface_is_chosen_by_name", &possible, interface_by_name),
        trial_if("both_families_work", &possible, both_families),
        trial_if("a_slow_wire_that_loses_packets_is_a_way", &possible, slow_and_lossy),
    ]
}

/// Passes each child's next line to the other: their endpoints, and then their memories.
fn introduce(children: &mut [Child; 2]) -> [String; 2] {
    let endpoints = [children[0].next_line(), children[1].next_line()];
    children[0].tell(&endpoints[1]);
    children[1].tell(&endpoints[0]);
    endpoints
}

pub(crate) fn play(role: &str) {
    let mut parts = role.split(' ');
    let ethernet = match parts.clone().nth(1) {
        Some("v6") => Ethernet::builder().family(Family::V6),
        Some(interface) => Ethernet::builder().interface(interface),
        None => Ethernet::builder(),
    };
    let end = support::end_with(ethernet);
    say(&hex(&end.endpoint.serialize().expect("an endpoint")));
    let peer = Endpoint::deserialize(&unhex(&hear())).expect("an endpoint");
    let result = end.context.connect(&end.endpoint, &peer);
    match parts.next() {
        Some("exchange") => exchange(&end, &result.expect("a connection")),
        Some("fail") => {
            let error = result.map(|_| ()).expect_err("nobody can be reached there");
            say(&error.to_string());
            hear();
        }
        other => panic!("no role {other:?}"),
    }
}

/// Exchanges memories with the peer, through the parent.
fn swap(own: &Words) -> RegisteredMemory {
    say(&hex(&own.memory.serialize().expect("a memory")));
    RegisteredMemory::deserialize(&unhex(&hear())).expect("a memory")
}

fn exchange(end: &End, connection: &Connection) {
    let (source, target) = (Words::new(end, WORDS), Words::new(end, WORDS));
    let there = swap(&target);
    (0..WORDS).for_each(|i| source.set(i, mix(i as u64)));
    for _ in 0..3 {
        connection.write(&there, 0, &source.memory, 0, 8 * WORDS as u64).expect("a write");
        connection.flush(LIMIT).expect("a flush");
    }
    say("flushed");
    hear();
    assert_eq!((0..WORDS).find(|i| target.at(*i) != mix(*i as u64)), None);
    say("right");
    hear();
}

/// Runs two children that exchange data, and returns their endpoints.
fn run_exchange(children: &mut [Child; 2]) -> [String; 2] {
    let endpoints = introduce(children);
    introduce(children);
    for step in ["flushed", "right"] {
        children.iter().for_each(|child| child.expect(step));
        children.iter_mut().for_each(|child| child.tell("go"));
    }
    children.iter_mut().for_each(Child::expect_success);
    endpoints
}

/// Whether an endpoint offers that address.
fn offers(endpoint: &str, address: &str) -> bool {
    let octets = match address.parse::<std::net::IpAddr>().expect("an address") {
        std::net::IpAddr::V4(ip) => [&[4][..], &ip.octets()].concat(),
        std::net::IpAddr::V6(ip) => [&[6][..], &ip.octets()].concat(),
    };
    unhex(endpoint).windows(octets.len()).any(|window| window == octets)
}

fn different_addresses() -> Result<(), Failed> {
    let hosts = Namespaces::new()?;
    // Both also offer an address that leads nowhere.
    let [a, _] = run_exchange(&mut hosts.start_both(["exchange", "exchange"], &[]));
    assert!(offers(&a, "10.77.0.1") && offers(&a, "10.78.0.1") && offers(&a, "fd00:77::1"));
    Ok(())
}

fn interface_by_name() -> Result<(), Failed> {
    let hosts = Namespaces::new()?;
    let by_variable = [("MSCCLPP_SOCKET_IFNAME", "wire"), ("MSCCLPP_SOCKET_FAMILY", "AF_INET")];
    let [a, _] = run_exchange(&mut hosts.start_both(["exchange", "exchange"], &by_variable));
    assert!(offers(&a, "10.77.0.1") && !offers(&a, "10.78.0.1") && !offers(&a, "fd00:77::1"));
    let [a, _] = run_exchange(&mut hosts.start_both(["exchange wire", "exchange wire"], &[]));
    assert!(offers(&a, "10.77.0.1") && !offers(&a, "10.78.0.1") && offers(&a, "fd00:77::1"));
    // An interface that leads nowhere gives no connection, and the error names the addresses that were tried.
    let mut children = hosts.start_both(["fail other", "fail other"], &[]);
    introduce(&mut children);
    let said = children[0].next_line();
    assert!(said.contains("10.79.0.2") && said.contains("fd00:79::2"), "{said}");
    Ok(())
}

fn both_families() -> Result<(), Failed> {
    let hosts = Namespaces::new()?;
    let [a, _] = run_exchange(&mut hosts.start_both(["exchange v6", "exchange v6"], &[]));
    assert!(!offers(&a, "10.77.0.1") && offers(&a, "fd00:77::1"));
    let family = [("MSCCLPP_SOCKET_FAMILY", "AF_INET6")];
    run_exchange(&mut hosts.start_both(["exchange", "exchange"], &family));
    Ok(())
}

fn slow_and_lossy() -> Result<(), Failed> {
    let hosts = Namespaces::apart()?;
    let [a, b] = hosts.ports();
    let nuisance = Nuisance { delay: Duration::from_millis(2), loses_one_in: 25 };
    let relay = Relay::between(&a, &b, nuisance).map_err(|e| format!("a relay: {e}"))?;
    run_exchange(&mut hosts.start_both(["exchange", "exchange"], &[]));
    assert_ne!(relay.lost(), 0, "too little was sent for any of it to be lost");
    Ok(())
}
