//! The network interfaces of this node, and which of their addresses to offer to peers.

use std::net::IpAddr;

use crate::{SystemCall, SystemError};

/// The IP version to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4 alone.
    V4,
    /// IPv6 alone.
    V6,
}

impl Family {
    /// Whether `ip` is of this version.
    #[must_use]
    pub fn includes(self, ip: &IpAddr) -> bool {
        match self {
            Self::V4 => ip.is_ipv4(),
            Self::V6 => ip.is_ipv6(),
        }
    }
}

/// One address of one interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// The interface's name, such as `eth0`.
    pub name: String,
    /// The address.
    pub ip: IpAddr,
}

/// The reason and the remedy if no interface has a suitable address.
pub const NONE_UP: &str = "no network interface is up with a suitable address, not even the loopback interface: in a network \
                           namespace of its own all are down at first (as root, `ip link set lo up`); or \
                           MSCCLPP_SOCKET_FAMILY asks for a version of IP that this node has not";

/// No interface with that name has a suitable address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no network interface {name:?} with a suitable address; {}", self::available(available))]
pub struct NoSuchInterface {
    /// The name that was asked for.
    pub name: String,
    /// The interfaces that have an address of the wanted family.
    pub available: Vec<String>,
}

/// Describes the interfaces that have a suitable address.
#[must_use]
pub fn available(names: &[String]) -> String {
    if names.is_empty() { NONE_UP.to_owned() } else { format!("there are: {}", names.join(", ")) }
}

/// Lists all addresses of all interfaces.
pub fn list() -> Result<Vec<Interface>, SystemError> {
    let found = if_addrs::get_if_addrs().during("listing the network interfaces")?;
    Ok(found.into_iter().map(|i| Interface { ip: i.ip(), name: i.name }).collect())
}

/// How suitable an address is for other nodes to connect to; lower is better.
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

/// Returns whether an address is usable only together with the name of an interface.
fn is_link_local(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// Returns the addresses to offer to peers, best first: networks, then container bridges, then loopback; within each,
/// IPv4 before IPv6. If `name` is given, returns only the addresses of that interface. The list may be empty.
///
/// # Errors
/// If no interface of that name has an address of that family.
pub fn candidates(
    interfaces: &[Interface],
    name: Option<&str>,
    family: Option<Family>,
) -> Result<Vec<IpAddr>, NoSuchInterface> {
    let is_usable =
        |i: &&Interface| family.is_none_or(|family| family.includes(&i.ip)) && !is_link_local(&i.ip);
    let mut usable: Vec<&Interface> = interfaces.iter().filter(is_usable).collect();
    if let Some(name) = name {
        if !usable.iter().any(|i| i.name == name) {
            let mut available: Vec<String> = usable.iter().map(|i| i.name.clone()).collect();
            available.sort();
            available.dedup();
            return Err(NoSuchInterface { name: name.to_owned(), available });
        }
        usable.retain(|i| i.name == name);
    }
    usable.sort_by_key(|i| (suitability(i), i.ip.is_ipv6()));
    let mut ips: Vec<IpAddr> = usable.into_iter().map(|i| i.ip).collect();
    ips.dedup();
    Ok(ips)
}
