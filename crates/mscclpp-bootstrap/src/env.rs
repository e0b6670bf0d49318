//! The environment variables of this crate, read in one place.

use std::ffi::OsString;
use std::fmt;

use crate::{Error, Result};

/// The IP version to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4 alone.
    V4,
    /// IPv6 alone.
    V6,
}

/// What the environment says. Values given to the builder go before these. An empty value counts as unset,
/// but for the secret, where it is an error.
///
/// | variable | meaning | default |
/// | --- | --- | --- |
/// | `MSCCLPP_SOCKET_IFNAME` | name of the one interface to use | all, loopback and container bridges last |
/// | `MSCCLPP_SOCKET_FAMILY` | `AF_INET` or `AF_INET6` | both |
/// | `MSCCLPP_BOOTSTRAP_SECRET` | a text that all ranks of a job given by address share | none: unauthenticated |
/// | `MSCCLPP_HOSTID` | equal in two processes if they are on one host | boot id and network namespace |
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Env {
    /// `MSCCLPP_SOCKET_IFNAME`
    pub interface: Option<String>,
    /// `MSCCLPP_SOCKET_FAMILY`
    pub family: Option<Family>,
    /// `MSCCLPP_BOOTSTRAP_SECRET`
    pub secret: Option<String>,
    /// `MSCCLPP_HOSTID`
    pub host_id: Option<String>,
}

const SECRET: &str = "MSCCLPP_BOOTSTRAP_SECRET";

impl Env {
    /// Reads the process's environment. A malformed value is [`Error::BadEnvironment`].
    pub fn read() -> Result<Self> {
        Self::from_lookup(std::env::var_os)
    }

    /// Reads variables through a function, for tests and for programs with settings of their own.
    pub fn from_lookup(lookup: impl Fn(&'static str) -> Option<OsString>) -> Result<Self> {
        let text = |variable, allowed, valid: fn(&str) -> bool| -> Result<Option<String>> {
            // Not an empty secret: it would leave open a job whose secret got lost on its way here.
            let counts = |value: &OsString| !value.is_empty() || variable == SECRET;
            let Some(value) = lookup(variable).filter(counts) else { return Ok(None) };
            match value.to_str() {
                Some(text) if valid(text) => Ok(Some(text.to_owned())),
                _ => {
                    let secret = variable == "MSCCLPP_BOOTSTRAP_SECRET";
                    let value = if secret { "(hidden)".into() } else { value.to_string_lossy().into_owned() };
                    Err(Error::BadEnvironment { variable, value, allowed })
                }
            }
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
            secret: text(SECRET, "a text of 1 to 1024 bytes in UTF-8", |v| (1..=1024).contains(&v.len()))?,
            host_id: text("MSCCLPP_HOSTID", "1 to 256 printable characters", |v| {
                v.len() <= 256 && !v.chars().any(char::is_control)
            })?,
        })
    }
}

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Env")
            .field("interface", &self.interface)
            .field("family", &self.family)
            .field("secret", &self.secret.as_ref().map(|_| "(hidden)"))
            .field("host_id", &self.host_id)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &'static str, value: &str) -> Result<Env> {
        let value = OsString::from(value);
        Env::from_lookup(move |asked| (asked == name).then(|| value.clone()))
    }

    #[test]
    fn good_values() {
        assert_eq!(Env::from_lookup(|_| None).unwrap(), Env::default());
        assert_eq!(env("MSCCLPP_SOCKET_FAMILY", "AF_INET6").unwrap().family, Some(Family::V6));
        assert_eq!(env("MSCCLPP_SOCKET_IFNAME", "eth0.12").unwrap().interface.as_deref(), Some("eth0.12"));
        assert_eq!(env("MSCCLPP_HOSTID", "a b").unwrap().host_id.as_deref(), Some("a b"));
    }

    #[test]
    fn bad_values_name_the_variable_and_what_is_allowed() {
        for (name, value, allowed) in [
            ("MSCCLPP_SOCKET_FAMILY", "ipv4", "AF_INET6"),
            ("MSCCLPP_SOCKET_IFNAME", "^docker0", "eth0"),
            ("MSCCLPP_BOOTSTRAP_SECRET", "", "1024"),
            ("MSCCLPP_BOOTSTRAP_SECRET", &"x".repeat(1025), "1024"),
            ("MSCCLPP_HOSTID", &"x".repeat(257), "256"),
            ("MSCCLPP_HOSTID", "a\nb", "printable"),
        ] {
            let message = env(name, value).unwrap_err().to_string();
            assert!(message.contains(name) && message.contains(allowed), "{message}");
        }
    }

    #[test]
    fn an_empty_value_counts_as_unset() {
        let all_but_the_secret = |name| (name != SECRET).then(OsString::new);
        assert_eq!(Env::from_lookup(all_but_the_secret).unwrap(), Env::default());
    }

    #[test]
    fn a_secret_is_never_shown() {
        let env = env("MSCCLPP_BOOTSTRAP_SECRET", "swordfish").unwrap();
        assert!(!format!("{env:?}").contains("swordfish"));
    }
}
