//! Tests of which addresses of a node are offered to others.

use std::net::IpAddr;

use mscclpp_net::interface::{Family, Interface, candidates};

fn machine() -> Vec<Interface> {
    [
        ("lo", "127.0.0.1"),
        ("lo", "::1"),
        ("docker0", "172.17.0.1"),
        ("br-5f1", "172.18.0.1"),
        ("eth0", "fd00::2"),
        ("eth0", "fe80::1"),
        ("eth0", "192.0.2.2"),
        ("ib0", "10.0.0.1"),
    ]
    .map(|(name, ip)| Interface { name: name.to_owned(), ip: ip.parse().unwrap() })
    .to_vec()
}

fn texts(ips: &[IpAddr]) -> Vec<String> {
    ips.iter().map(ToString::to_string).collect()
}

#[test]
fn container_bridges_and_loopback_come_last() {
    assert_eq!(
        texts(&candidates(&machine(), None, None).unwrap()),
        ["192.0.2.2", "10.0.0.1", "fd00::2", "172.17.0.1", "172.18.0.1", "127.0.0.1", "::1"]
    );
}

#[test]
fn a_name_and_a_family_restrict() {
    assert_eq!(texts(&candidates(&machine(), Some("eth0"), None).unwrap()), ["192.0.2.2", "fd00::2"]);
    assert_eq!(texts(&candidates(&machine(), Some("eth0"), Some(Family::V6)).unwrap()), ["fd00::2"]);
    assert_eq!(texts(&candidates(&machine(), Some("lo"), Some(Family::V4)).unwrap()), ["127.0.0.1"]);
}

#[test]
fn an_unknown_name_lists_the_known_ones() {
    let error = candidates(&machine(), Some("eth7"), None).unwrap_err();
    assert_eq!(error.name, "eth7");
    assert_eq!(error.available, ["br-5f1", "docker0", "eth0", "ib0", "lo"]);
    let error = candidates(&machine(), Some("docker0"), Some(Family::V6)).unwrap_err().to_string();
    assert!(error.contains("eth0, lo") && !error.contains("ib0"), "{error}");
}
