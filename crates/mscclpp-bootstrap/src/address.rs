//! The address of rank 0 as a user writes it.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use mscclpp_net::SystemCall;

use crate::error::Origin;
use crate::{Error, Family, Result};

const LINK_LOCAL: &str = "a link-local address means nothing to other interfaces, and cannot be used: give another one of \
                          rank 0's node";

/// The address of rank 0: `"ip:port"`, `"[ipv6]:port"` or `"host:port"`, each with an optional `"interface:"` in
/// front.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) interface: Option<String>,
    pub(crate) host: Host,
    pub(crate) port: u16,
    /// The environment variable that holds the address, for messages.
    pub(crate) variable: Option<&'static str>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Host {
    Ip(IpAddr),
    Name(String),
}

impl Address {
    /// Parses an address. `variable` is the environment variable that holds it, if one does.
    pub(crate) fn parse(text: &str, variable: Option<&'static str>) -> Result<Self> {
        let bad = |what: &str| {
            let address: String = text.chars().take(200).collect();
            let reason = format!(
                "{what} (expected \"ip:port\", \"[ipv6]:port\", \"host:port\" or \"interface:ip:port\")"
            );
            Error::BadAddress { address, variable, reason }
        };
        let (front, port) = text.rsplit_once(':').ok_or_else(|| bad("there is no port"))?;
        if port.is_empty() || !port.bytes().all(|b| b.is_ascii_digit()) {
            return Err(bad("the port is not a number"));
        }
        let port: u16 = port.parse().map_err(|_| bad("the port is above 65535"))?;
        if port == 0 {
            return Err(bad("the port is 0; all ranks must know the port"));
        }

        let (interface, host) = match front.find('[') {
            Some(open) => {
                let inner =
                    front[open + 1..].strip_suffix(']').ok_or_else(|| bad("the brackets do not match"))?;
                let zone = inner.split_once('%');
                let ip: Ipv6Addr = zone
                    .map_or(inner, |(ip, _)| ip)
                    .parse()
                    .map_err(|_| bad("there is no IPv6 address in the brackets"))?;
                if zone.is_some() || ip.is_unicast_link_local() {
                    return Err(bad(LINK_LOCAL));
                }
                let interface = match &front[..open] {
                    "" => None,
                    name => Some(
                        name.strip_suffix(':').ok_or_else(|| bad("there is no colon before the bracket"))?,
                    ),
                };
                (interface, Host::Ip(IpAddr::V6(ip)))
            }
            None => {
                let (interface, host) = match front.split_once(':') {
                    Some((interface, host)) => (Some(interface), host),
                    None => (None, front),
                };
                if host.contains(':') {
                    return Err(bad("an IPv6 address must be in brackets"));
                }
                (interface, host_of(host).ok_or_else(|| bad("neither an IP address nor a host name"))?)
            }
        };
        if interface
            .is_some_and(|name| name.is_empty() || name.contains(|c: char| c == ':' || c.is_whitespace()))
        {
            return Err(bad("the interface name is empty or not one"));
        }
        Ok(Self { interface: interface.map(str::to_owned), host, port, variable })
    }

    pub(crate) fn unusable(&self, reason: impl Into<String>) -> Error {
        Error::BadAddress { address: self.to_string(), variable: self.variable, reason: reason.into() }
    }

    /// Returns the socket addresses that this stands for. Asks the resolver if there is a name, and waits for it no
    /// longer than `timeout`.
    pub(crate) fn resolve(&self, family: Option<Family>, timeout: Duration) -> Result<Vec<SocketAddr>> {
        let found = match &self.host {
            Host::Ip(ip) => vec![SocketAddr::new(*ip, self.port)],
            Host::Name(name) => self.look_up(name, timeout)?,
        };
        self.usable(found, family)
    }

    /// Returns those of the addresses that were found which other nodes can use.
    fn usable(&self, mut found: Vec<SocketAddr>, family: Option<Family>) -> Result<Vec<SocketAddr>> {
        found.retain(|a| family.is_none_or(|family| family.includes(&a.ip())));
        if found.is_empty() {
            return Err(self.unusable("it has no address of the family that MSCCLPP_SOCKET_FAMILY allows"));
        }
        found.retain(|a| !matches!(a.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local()));
        if found.is_empty() {
            return Err(self.unusable(format!("it stands for link-local addresses alone: {LINK_LOCAL}")));
        }
        found.dedup();
        Ok(found)
    }

    /// Resolves a name on another thread, because the system's resolver cannot be given a limit.
    fn look_up(&self, name: &str, timeout: Duration) -> Result<Vec<SocketAddr>> {
        let (answer, answers) = mpsc::channel();
        let query = (name.to_owned(), self.port);
        let started = Instant::now();
        std::thread::Builder::new()
            .name("mscclpp-resolve".to_owned())
            .spawn(move || {
                // The receiver may have given up, and then nobody wants the answer.
                let _ = answer.send(query.to_socket_addrs().map(Iterator::collect));
            })
            .during("starting the resolver thread")?;
        match answers.recv_timeout(timeout) {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(error)) => {
                let from = self.variable.map_or_else(String::new, |variable| format!(", from {variable}"));
                Err(Error::io_at("resolving a host name", format!("{name}{from}"), error))
            }
            Err(_) => Err(Error::Timeout {
                operation: format!("resolving {name:?}{}", Origin(self.variable)),
                after: started.elapsed(),
                missing: Vec::new(),
                attempts: Vec::new(),
            }),
        }
    }
}

fn host_of(text: &str) -> Option<Host> {
    if let Ok(ip) = text.parse() {
        return Some(Host::Ip(IpAddr::V4(ip)));
    }
    let valid = (1..=253).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
        // Digits and dots alone are a mistyped IPv4 address, not a name.
        && text.bytes().any(|b| b.is_ascii_alphabetic());
    valid.then(|| Host::Name(text.to_owned()))
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(interface) = &self.interface {
            write!(f, "{interface}:")?;
        }
        match &self.host {
            Host::Ip(ip) => write!(f, "{}", SocketAddr::new(*ip, self.port)),
            Host::Name(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms() {
        for (text, interface, host) in [
            ("10.1.2.3:50505", None, "10.1.2.3"),
            ("lo:127.0.0.1:50505", Some("lo"), "127.0.0.1"),
            ("[::1]:50505", None, "::1"),
            ("eth0:[fd00::2]:50505", Some("eth0"), "fd00::2"),
            ("node-7.cluster:50505", None, "node-7.cluster"),
            ("ib0:node7:50505", Some("ib0"), "node7"),
        ] {
            let address = Address::parse(text, None).unwrap();
            assert_eq!(address.interface.as_deref(), interface);
            assert_eq!(address.port, 50505);
            let shown = match &address.host {
                Host::Ip(ip) => ip.to_string(),
                Host::Name(name) => name.clone(),
            };
            assert_eq!(shown, host);
            assert_eq!(address.to_string(), text, "printing gives back what was read");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, reason) in [
            ("", "no port"),
            ("127.0.0.1", "no port"),
            ("127.0.0.1:", "not a number"),
            ("127.0.0.1:+5", "not a number"),
            ("127.0.0.1:70000", "above 65535"),
            ("127.0.0.1:0", "port is 0"),
            ("300.0.0.1:1", "neither"),
            ("::1:50505", "in brackets"),
            ("[::1:50505", "brackets"),
            ("[zz]:50505", "no IPv6"),
            ("[fe80::1%eth0]:50505", "link-local"),
            ("eth0:[fe80::1]:50505", "link-local"),
            ("eth0[::1]:50505", "colon"),
            (":127.0.0.1:50505", "interface"),
            ("a b:127.0.0.1:50505", "interface"),
            ("ho st:1", "neither"),
        ] {
            let error = Address::parse(text, Some("MSCCLPP_ADDRESS")).unwrap_err();
            assert!(matches!(error, Error::BadAddress { .. }));
            let message = error.to_string();
            for part in [reason, "(from MSCCLPP_ADDRESS)", "expected \"ip:port\""] {
                assert!(message.contains(part), "{text:?}: {message}");
            }
        }
    }

    #[test]
    fn a_family_excludes_the_other() {
        let address = Address::parse("127.0.0.1:50505", None).unwrap();
        assert!(address.resolve(Some(Family::V4), Duration::ZERO).is_ok());
        assert!(matches!(address.resolve(Some(Family::V6), Duration::ZERO), Err(Error::BadAddress { .. })));
    }

    #[test]
    fn link_local_addresses_of_a_name_are_not_used() {
        let address = Address::parse("node7:50505", Some("MASTER_ADDR")).unwrap();
        let [near, far] = ["[fe80::1%2]:50505", "[fd00::2]:50505"].map(|text| text.parse().unwrap());
        assert_eq!(address.usable(vec![near, far, far], None).unwrap(), [far]);
        let said = address.usable(vec![near], None).unwrap_err().to_string();
        for part in ["node7:50505", "MASTER_ADDR", "link-local addresses alone", "give another one"] {
            assert!(said.contains(part), "{said}");
        }
    }

    #[test]
    fn a_name_that_cannot_be_resolved_is_said_with_its_variable() {
        // This is no name of a node, because no label of one is so long. So no server needs to be asked.
        let name = format!("{}.invalid", "n".repeat(64));
        let address = Address::parse(&format!("{name}:50505"), Some("MASTER_ADDR")).unwrap();
        for patience in [Duration::from_secs(30), Duration::ZERO] {
            let message = address.resolve(None, patience).unwrap_err().to_string();
            assert!(message.contains(&name) && message.contains("from MASTER_ADDR"), "{message}");
        }
    }

    #[test]
    fn names_are_resolved() {
        let address = Address::parse("localhost:50505", None).unwrap();
        let found = address.resolve(None, Duration::from_secs(10)).unwrap();
        assert!(found.iter().all(|a| a.ip().is_loopback() && a.port() == 50505), "{found:?}");
    }
}
