//! The environment variables about the network, read in one place.

use std::ffi::OsString;

use mscclpp_os::env::host_id;
pub use mscclpp_os::env::{BadVariable, switch, text};

use crate::interface::Family;

/// The environment variables about the network. An empty value counts as unset.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Env {
    /// `MSCCLPP_SOCKET_IFNAME`: the name of the one interface to use.
    pub interface: Option<String>,
    /// `MSCCLPP_SOCKET_FAMILY`: `AF_INET` or `AF_INET6`.
    pub family: Option<Family>,
    /// `MSCCLPP_HOSTID`: equal in two processes if they are on one node.
    pub host_id: Option<String>,
}

impl Env {
    /// Reads the process's environment.
    pub fn read() -> Result<Self, BadVariable> {
        Self::from_lookup(std::env::var_os)
    }

    /// Reads variables through a function.
    pub fn from_lookup(lookup: impl Fn(&'static str) -> Option<OsString>) -> Result<Self, BadVariable> {
        let text = |name, allowed, valid: fn(&str) -> bool| {
            text(name, lookup(name).filter(|value| !value.is_empty()), allowed, valid)
        };
        let family =
            text("MSCCLPP_SOCKET_FAMILY", "AF_INET or AF_INET6", |v| v == "AF_INET" || v == "AF_INET6")?;
        Ok(Self {
            interface: text(
                "MSCCLPP_SOCKET_IFNAME",
                "the name of one network interface, such as eth0",
                |v| v.len() <= 15 && v.chars().all(|c| c.is_ascii_alphanumeric() || "._-@".contains(c)),
            )?,
            family: family.map(|name| if name == "AF_INET" { Family::V4 } else { Family::V6 }),
            host_id: host_id(lookup)?,
        })
    }
}
