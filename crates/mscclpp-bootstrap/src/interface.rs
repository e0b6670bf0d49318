//! The network interfaces of this machine, and which of their addresses to offer to others.

use std::net::IpAddr;

use crate::env::Family;
use crate::{Error, Result};

/// One address of one interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) ip: IpAddr,
}

/// All addresses of all interfaces.
pub(crate) fn list() -> Result<Vec<Interface>> {
    let found = if_addrs::get_if_addrs().map_err(|e| Error::io("listing the network interfaces", e))?;
    Ok(found.into_iter().map(|i| Interface { ip: i.ip(), name: i.name }).collect())
}

/// How good an address is to be reached at by other ranks; lower is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Suitability {
    Network,
    ContainerBridge,
    Loopback,
}

fn suitability(interface: &Interface) -> Suitability {
    const BRIDGES: [&str; 15] = [
        "docker", "br-", "veth", "virbr", "cni", "flannel", "cali", "cbr", "podman", "lxc", "lxd", "kube-",
        "weave", "vnet", "cilium",
    ];
    if interface.ip.is_loopback() {
        Suitability::Loopback
    } else if BRIDGES.iter().any(|prefix| interface.name.starts_with(prefix)) {
        Suitability::ContainerBridge
    } else {
        Suitability::Network
    }
}

/// Whether an address means the same on every machine that can reach it without naming an interface.
fn is_link_local(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

pub(crate) fn of_family(ip: &IpAddr, family: Option<Family>) -> bool {
    match family {
        None => true,
        Some(Family::V4) => ip.is_ipv4(),
        Some(Family::V6) => ip.is_ipv6(),
    }
}

/// The addresses to offer, best first: networks, then container bridges, then loopback; IPv4 before IPv6 within each.
/// With a name, those of that interface alone; an unknown name is an error that lists the known ones.
pub(crate) fn candidates(
    interfaces: &[Interface],
    name: Option<&str>,
    family: Option<Family>,
) -> Result<Vec<IpAddr>> {
    let mut usable: Vec<&Interface> =
        interfaces.iter().filter(|i| of_family(&i.ip, family) && !is_link_local(&i.ip)).collect();
    if let Some(name) = name {
        let available = || {
            let mut names: Vec<String> = usable.iter().map(|i| i.name.clone()).collect();
            names.sort();
            names.dedup();
            names
        };
        if !usable.iter().any(|i| i.name == name) {
            return Err(Error::NoSuchInterface { name: name.to_owned(), available: available() });
        }
        usable.retain(|i| i.name == name);
    }
    usable.sort_by_key(|i| (suitability(i), i.ip.is_ipv6()));
    let mut ips: Vec<IpAddr> = usable.into_iter().map(|i| i.ip).collect();
    ips.dedup();
    Ok(ips)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let Error::NoSuchInterface { name, available } = &error else { panic!("{error}") };
        assert_eq!(name, "eth7");
        assert_eq!(available, &["br-5f1", "docker0", "eth0", "ib0", "lo"]);
        let error = candidates(&machine(), Some("docker0"), Some(Family::V6)).unwrap_err().to_string();
        assert!(error.contains("eth0, lo") && !error.contains("ib0"), "{error}");
    }
}
