//! The network interfaces of this machine, and which of their addresses to offer to peers.

use std::net::IpAddr;

use crate::{
    Family,
    error::{Error, Result, SystemCall},
};

/// The most addresses that are offered; the best ones.
pub(crate) const MAX_ADDRESSES: usize = 16;

/// One address of one interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) ip: IpAddr,
}

/// All addresses of all interfaces.
pub(crate) fn list() -> Result<Vec<Interface>> {
    let found = if_addrs::get_if_addrs().during("listing the network interfaces")?;
    Ok(found.into_iter().map(|i| Interface { ip: i.ip(), name: i.name }).collect())
}

/// How good an address is to be reached at by peers; lower is better.
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

/// Whether an address says nothing without the name of an interface.
fn is_link_local(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

fn of_family(ip: &IpAddr, family: Option<Family>) -> bool {
    match family {
        None => true,
        Some(Family::V4) => ip.is_ipv4(),
        Some(Family::V6) => ip.is_ipv6(),
    }
}

/// The addresses to offer, best first: networks, then container bridges, then loopback; IPv4 before IPv6 within each.
/// With a name, those of that interface alone.
pub(crate) fn candidates(
    interfaces: &[Interface],
    name: Option<&str>,
    family: Option<Family>,
) -> Result<Vec<IpAddr>> {
    let mut usable: Vec<&Interface> =
        interfaces.iter().filter(|i| of_family(&i.ip, family) && !is_link_local(&i.ip)).collect();
    if let Some(name) = name {
        if !usable.iter().any(|i| i.name == name) {
            let mut available: Vec<String> = usable.iter().map(|i| i.name.clone()).collect();
            available.sort();
            available.dedup();
            return Err(Error::NoSuchInterface { name: name.to_owned(), available });
        }
        usable.retain(|i| i.name == name);
    }
    usable.sort_by_key(|i| (suitability(i), i.ip.is_ipv6()));
    let mut ips: Vec<IpAddr> = usable.into_iter().map(|i| i.ip).collect();
    ips.dedup();
    ips.truncate(MAX_ADDRESSES);
    if ips.is_empty() { Err(Error::NoAddress) } else { Ok(ips) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Vec<Interface> {
        [
            ("lo", "127.0.0.1"),
            ("lo", "::1"),
            ("docker0", "172.17.0.1"),
            ("eth0", "fd00::2"),
            ("eth0", "fe80::1"),
            ("eth0", "192.0.2.2"),
            ("ib0", "10.0.0.1"),
        ]
        .map(|(name, ip)| Interface { name: name.to_owned(), ip: ip.parse().unwrap() })
        .to_vec()
    }

    fn texts(name: Option<&str>, family: Option<Family>) -> Vec<String> {
        candidates(&machine(), name, family).unwrap().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn container_bridges_and_loopback_come_last() {
        let all = ["192.0.2.2", "10.0.0.1", "fd00::2", "172.17.0.1", "127.0.0.1", "::1"];
        assert_eq!(texts(None, None), all);
    }

    #[test]
    fn a_name_and_a_family_restrict() {
        assert_eq!(texts(Some("eth0"), None), ["192.0.2.2", "fd00::2"]);
        assert_eq!(texts(Some("eth0"), Some(Family::V6)), ["fd00::2"]);
        assert_eq!(texts(None, Some(Family::V4)), ["192.0.2.2", "10.0.0.1", "172.17.0.1", "127.0.0.1"]);
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = candidates(&machine(), Some("eth7"), None).unwrap_err();
        let Error::NoSuchInterface { name, available } = &error else { panic!("{error}") };
        assert_eq!((name.as_str(), available.join(" ").as_str()), ("eth7", "docker0 eth0 ib0 lo"));
        assert!(matches!(candidates(&[], None, None), Err(Error::NoAddress)));
    }
}
