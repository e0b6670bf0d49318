//! The environment variables about the network, read in one place.

use std::ffi::OsString;

use mscclpp_os::env::host_id;
pub use mscclpp_os::env::{BadVariable, text};

use crate::interface::Family;

/// The environment variables about the network. An empty value counts as unset.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Env {
    /// `MSCCLPP_SOCKET_IFNAME`: the name of the one interface to use.
    pub interface: Option<String>,
    /// `MSCCLPP_SOCKET_FAMILY`: `AF_INET` or `AF_INET6`.
    pub family: Option<Family>,
    /// `MSCCLPP_HOSTID`: equal in two processes if they are on one host.
    pub host_id: Option<String>,
}

impl Env {
    /// Reads the process's environment.
    ///
    /// # Errors
    /// If a value is malformed.
    pub fn read() -> Result<Self, BadVariable> {
        Self::from_lookup(std::env::var_os)
    }

    /// Reads variables through a function.
    ///
    /// # Errors
    /// If a value is malformed.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &'static str, value: &str) -> Result<Env, BadVariable> {
        let value = OsString::from(value);
        Env::from_lookup(move |asked| (asked == name).then(|| value.clone()))
    }

    #[test]
    fn good_values() {
        assert_eq!(Env::from_lookup(|_| None).unwrap(), Env::default());
        assert_eq!(Env::from_lookup(|_| Some(OsString::new())).unwrap(), Env::default(), "unset if empty");
        assert_eq!(env("MSCCLPP_SOCKET_FAMILY", "AF_INET").unwrap().family, Some(Family::V4));
        assert_eq!(env("MSCCLPP_SOCKET_FAMILY", "AF_INET6").unwrap().family, Some(Family::V6));
        assert_eq!(env("MSCCLPP_SOCKET_IFNAME", "eth0.12").unwrap().interface.as_deref(), Some("eth0.12"));
        assert_eq!(env("MSCCLPP_HOSTID", "a b").unwrap().host_id.as_deref(), Some("a b"));
    }

    #[test]
    fn bad_values_name_the_variable_and_what_is_allowed() {
        for (name, value, allowed) in [
            ("MSCCLPP_SOCKET_FAMILY", "ipv4", "AF_INET6"),
            ("MSCCLPP_SOCKET_IFNAME", "^docker0", "eth0"),
            ("MSCCLPP_HOSTID", &"x".repeat(257), "256"),
            ("MSCCLPP_HOSTID", "a\nb", "printable"),
        ] {
            let message = env(name, value).unwrap_err().to_string();
            assert!(message.contains(name) && message.contains(allowed), "{message}");
        }
    }
}
