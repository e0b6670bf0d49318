//! The network interfaces that `NCCL_SOCKET_IFNAME` names, in NCCL's syntax.

use mscclpp_net::interface::{Interface, list};

use crate::failure::Failure;

/// A list of names, with commas between: `eth,ib0`. It selects interfaces whose names begin with one of these; after a leading
/// `=`, interfaces with exactly these names; after a leading `^`, all other interfaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pattern {
    /// The text that was parsed.
    text: String,
    names: Vec<String>,
    others: bool,
    whole: bool,
}

impl Pattern {
    pub(crate) fn parse(given: &str) -> Self {
        let text = given;
        let (others, text) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (whole, text) = text.strip_prefix('=').map_or((false, text), |rest| (true, rest));
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        Self { text: given.to_owned(), names: names.map(str::to_owned).collect(), others, whole }
    }

    fn matches(&self, interface: &str) -> bool {
        let named = self.names.iter().any(|name| match self.whole {
            true => interface == name,
            false => interface.starts_with(name.as_str()),
        });
        named != self.others
    }

    /// The interface of this node that the pattern selects: of several, the one whose name comes first in the pattern.
    ///
    /// # Errors
    /// [`Code::SYSTEM_ERROR`](crate::abi::Code::SYSTEM_ERROR) if the pattern selects no interface.
    pub(crate) fn interface(&self) -> Result<String, Failure> {
        let interfaces = list().map_err(|error| {
            Failure::new(crate::abi::Code::SYSTEM_ERROR, format!("listing the network interfaces: {error}"))
        })?;
        self.first(&interfaces).ok_or_else(|| {
            let mut names: Vec<&str> = interfaces.iter().map(|interface| interface.name.as_str()).collect();
            names.sort_unstable();
            names.dedup();
            Failure::new(
                crate::abi::Code::SYSTEM_ERROR,
                format!(
                    "NCCL_SOCKET_IFNAME={:?} names no network interface that is there; there are: {}",
                    self.text,
                    names.join(", ")
                ),
            )
        })
    }

    fn first(&self, interfaces: &[Interface]) -> Option<String> {
        let usable = || interfaces.iter().filter(|interface| self.matches(&interface.name));
        let place = |interface: &&Interface| {
            let named = self.names.iter().position(|name| interface.name.starts_with(name.as_str()));
            // Among interfaces that are equal otherwise, loopback comes last.
            (named.filter(|_| !self.others).unwrap_or(0), interface.ip.is_loopback())
        };
        usable().min_by_key(place).map(|interface| interface.name.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(pattern: &str) -> Option<String> {
        let interfaces =
            [("lo", "127.0.0.1"), ("docker0", "172.17.0.1"), ("eth0", "10.0.0.1"), ("eth01", "10.0.0.2")]
                .map(|(name, ip)| Interface { name: name.to_owned(), ip: ip.parse().unwrap() });
        Pattern::parse(pattern).first(&interfaces)
    }

    #[test]
    fn names_are_beginnings_unless_they_are_whole() {
        assert_eq!(first("eth").as_deref(), Some("eth0"));
        assert_eq!(first("=eth01").as_deref(), Some("eth01"));
        assert_eq!(first("=eth"), None);
        assert_eq!(first("ib,docker").as_deref(), Some("docker0"));
        assert_eq!(first("docker,eth").as_deref(), Some("docker0"));
    }

    #[test]
    fn with_a_caret_all_others_are_meant() {
        assert_eq!(first("^docker,eth").as_deref(), Some("lo"));
        assert_eq!(first("^docker").as_deref(), Some("eth0"));
        assert_eq!(first("^=eth0,docker0").as_deref(), Some("eth01"));
    }
}
