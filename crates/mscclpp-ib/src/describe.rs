//! Reports about the RDMA devices of this node and what this transport would use. Changes nothing.

use std::{fmt, net::Ipv6Addr};

use mscclpp_core::Transport;
use mscclpp_net::Report;
use mscclpp_verbs_sys::{self as sys, Verbs};

use crate::{
    InfiniBand,
    adapter::{self, Adapter},
    provider::TRANSPORTS,
    settings::Env,
};

/// The verbs library, and all devices that it knows.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Inventory {
    /// The name or path of the library.
    pub library: String,
    /// The functions that this version of the library lacks, each with the reason.
    pub missing: Vec<String>,
    /// All devices, sorted by PCI address; those without one come last, sorted by name.
    pub devices: Vec<DeviceReport>,
}

/// A device.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeviceReport {
    /// The name, such as `mlx5_0`.
    pub name: String,
    /// The PCI address; `None` for a device in software.
    pub pci: Option<String>,
    /// The transport that uses it, if any.
    pub transport: Option<Transport>,
    /// The reason why the device has this transport, or none.
    pub why: String,
    /// The report of the opened device, or why it cannot be opened.
    pub details: Result<DeviceDetails, String>,
}

/// The report of an opened device.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeviceDetails {
    /// Whether the device has RDMA atomics. If not, signals are writes with immediate data.
    pub atomics: bool,
    /// The ports, from number 1 on; for a port that does not answer, the reason.
    pub ports: Vec<Result<PortReport, String>>,
    /// The port that an endpoint uses if its configuration names no port and no GID, or why it can use none.
    pub used: Result<UsedPort, String>,
}

/// A port.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PortReport {
    /// The number, counted from 1.
    pub number: u8,
    /// Whether the port can be used now.
    pub is_active: bool,
    /// The state in the library's words.
    pub state: String,
    /// Whether the port is Ethernet (RoCE); otherwise it is InfiniBand.
    pub is_ethernet: bool,
    /// The MTU in use, in bytes; 0 if the library gives a value that this version does not know.
    pub mtu: u32,
    /// The entries of the GID table that hold a GID.
    pub gids: Vec<GidReport>,
}

/// An entry of a port's GID table.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GidReport {
    /// The index in the table.
    pub index: u32,
    /// The identifier; an IPv4 address is shown as an IPv4-mapped IPv6 address.
    pub gid: Ipv6Addr,
    /// The kind, such as `RoCE v2`.
    pub kind: String,
    /// Whether the network interface behind it is in this process's network namespace; `None` if that is not known.
    pub in_this_namespace: Option<bool>,
}

/// The port and the GID that are chosen.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct UsedPort {
    /// The number of the port, counted from 1.
    pub number: u8,
    /// The index of the GID in the port's table.
    pub gid_index: u32,
    /// The reason for this port and this GID.
    pub why: String,
}

/// The reason why something cannot be used, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unavailable {
    /// The attempt, and how it failed.
    pub reason: String,
    /// The advice to the user.
    pub remedy: String,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.reason, self.remedy)
    }
}

impl std::error::Error for Unavailable {}

impl InfiniBand {
    /// Describes the library, its devices, their ports and GIDs, and which of them would be used. Loads the library,
    /// and opens each device for a moment; drivers may block for some milliseconds each.
    ///
    /// Devices are described even if none can be chosen, for example because a variable is malformed;
    /// [`InfiniBand::device_names`] returns that error.
    ///
    /// # Errors
    /// If the library cannot be loaded or used.
    pub fn describe(&self) -> Result<Inventory, Unavailable> {
        let verbs = match self.verbs {
            Some(verbs) => verbs,
            None => Verbs::load()
                .map_err(|error| Unavailable { reason: error.reason(), remedy: error.remedy().to_owned() })?,
        };
        let all = adapter::list(verbs).map_err(|error| Unavailable {
            reason: Report(&error).to_string(),
            remedy: "see whether this user may use /dev/infiniband, and what the kernel says (dmesg)"
                .to_owned(),
        })?;
        let chosen = self.device_names();
        // `device_names` reports a malformed variable.
        let env = Env::read().unwrap_or_default();
        let devices = all.into_iter().map(|info| {
            let details = Adapter::open(verbs, &info.name)
                .map(|adapter| details(&adapter, &env))
                .map_err(|error| Report(&error).to_string());
            let number =
                chosen.as_ref().ok().and_then(|names| names.iter().position(|name| *name == info.name));
            let place = info.place.as_ref().and_then(|place| place.file_name());
            DeviceReport {
                pci: place.map(|address| address.to_string_lossy().into_owned()),
                transport: number.and_then(|number| TRANSPORTS.get(number).copied()),
                why: why(number.is_some(), chosen.is_ok(), env.devices.is_some(), &details).to_owned(),
                name: info.name,
                details,
            }
        });
        let missing = verbs.missing().iter().map(ToString::to_string).collect();
        Ok(Inventory { library: verbs.origin.clone(), missing, devices: devices.collect() })
    }
}

/// Describes port `number`, whether or not it can be used.
fn port(adapter: &Adapter, number: u8) -> crate::error::Result<PortReport> {
    let attr = adapter.query_port(number)?;
    let gids = adapter.gids(number, &attr)?.into_iter().map(|entry| GidReport {
        index: entry.index,
        gid: Ipv6Addr::from(entry.gid.0),
        kind: entry.kind.to_string(),
        in_this_namespace: entry.reachable,
    });
    Ok(PortReport {
        number,
        is_active: attr.state == sys::IBV_PORT_ACTIVE,
        state: adapter.state(&attr),
        is_ethernet: attr.link_layer == sys::IBV_LINK_LAYER_ETHERNET as u8,
        mtu: mtu_bytes(attr.active_mtu),
        gids: gids.collect(),
    })
}

/// Converts an MTU's number to bytes: 1 is 256 bytes, and each next number doubles it.
fn mtu_bytes(mtu: u32) -> u32 {
    if (1..=8).contains(&mtu) { 128 << mtu } else { 0 }
}

fn details(adapter: &Adapter, env: &Env) -> DeviceDetails {
    let limits = adapter.limits();
    let text = |error: crate::Error| Report(&error).to_string();
    let used = adapter.port(None, env.gid_index).map_err(text).map(|port| UsedPort {
        number: port.number,
        gid_index: port.gid.index,
        why: match (env.gid_index, port.is_ethernet) {
            (Some(_), _) => "the first active port, and the GID that MSCCLPP_IB_GID_INDEX names",
            (None, true) => {
                "the first active port, and its best GID: RoCE v2 before v1, then IPv4, then other routed addresses, \
                 then link-local ones"
            }
            (None, false) => "the first active port, and its first GID",
        }
        .to_owned(),
    });
    let ports = (1..=limits.ports).map(|number| port(adapter, number).map_err(text)).collect();
    DeviceDetails { atomics: limits.atomics, ports, used }
}

/// Returns why a device has a transport, or none.
fn why(
    is_chosen: bool,
    any_is_chosen: bool,
    are_named: bool,
    details: &Result<DeviceDetails, String>,
) -> &'static str {
    let has_active_port =
        || details.as_ref().is_ok_and(|details| details.ports.iter().flatten().any(|port| port.is_active));
    match (is_chosen, are_named) {
        (true, true) => "MSCCLPP_HCA_DEVICES names it",
        (true, false) => {
            "it has an active port; devices count by PCI address, those without one behind by name"
        }
        (false, true) if any_is_chosen => "MSCCLPP_HCA_DEVICES does not name it",
        (false, false) if any_is_chosen && has_active_port() => "eight others come before it",
        (false, _) if details.is_err() => "it cannot be opened",
        (false, _) if !has_active_port() => "none of its ports is active",
        (false, _) => "what MSCCLPP_HCA_DEVICES or another variable says is not understood, or not there",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_a_port(is_active: bool) -> Result<DeviceDetails, String> {
        let state = String::new();
        let port = PortReport { number: 1, is_active, state, is_ethernet: true, mtu: 1024, gids: vec![] };
        Ok(DeviceDetails { atomics: true, ports: vec![Ok(port)], used: Err(String::new()) })
    }

    #[test]
    fn numbers_of_mtus_are_sizes() {
        assert_eq!(mtu_bytes(sys::IBV_MTU_256), 256);
        assert_eq!(mtu_bytes(sys::IBV_MTU_4096), 4096);
        assert_eq!(mtu_bytes(0), 0);
    }

    #[test]
    fn every_choice_has_its_reason() {
        let (up, down, broken) = (with_a_port(true), with_a_port(false), Err("EPERM".to_owned()));
        assert!(why(true, true, true, &up).contains("names it"));
        assert!(why(true, true, false, &up).contains("active port"));
        assert!(why(false, true, true, &up).contains("does not name it"));
        assert!(why(false, true, false, &up).contains("eight others"));
        assert!(why(false, true, false, &down).contains("none of its ports"));
        assert!(why(false, false, false, &broken).contains("cannot be opened"));
        assert!(why(false, false, true, &up).contains("not understood"));
    }
}
