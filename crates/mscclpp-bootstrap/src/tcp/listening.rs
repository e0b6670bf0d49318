//! The addresses at which a rank listens.

use std::io;
use std::net::{IpAddr, SocketAddr};

use mscclpp_net::interface::Interface;

use crate::address::{Address, Host};
use crate::protocol::table::MAX_ADDRESSES;
use crate::tcp::socket::{self, Listener};
use crate::{Error, Result};

/// The addresses at which a rank that joins may listen.
#[derive(Default)]
pub(crate) struct Places {
    /// The addresses to listen at and to send to the others; all if empty.
    pub(crate) listen_at: Vec<IpAddr>,
    /// Other addresses of this node, to send to the others.
    pub(crate) others: Vec<IpAddr>,
}

/// Makes rank 0's listener at an address that all ranks were given.
pub(crate) fn at_address(
    address: &Address,
    candidates: &[SocketAddr],
    interfaces: &[Interface],
) -> Result<Listener> {
    if let (Some(name), Host::Ip(ip)) = (&address.interface, &address.host) {
        let on_it: Vec<IpAddr> = interfaces.iter().filter(|i| i.name == *name).map(|i| i.ip).collect();
        // The loopback interface accepts any address of 127.0.0.0/8, but lists one.
        if !ip.is_unspecified() && !ip.is_loopback() && !on_it.contains(ip) {
            let has: Vec<String> = on_it.iter().map(ToString::to_string).collect();
            let reason = format!("the interface {name} does not have this address, but {}", has.join(", "));
            return Err(address.unusable(reason));
        }
    }
    let mut failure = None;
    for &candidate in candidates {
        match socket::listen(candidate) {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                return Err(Error::AddressInUse { address: candidate });
            }
            Err(error) if error.kind() == std::io::ErrorKind::AddrNotAvailable => {
                let reason = "no interface of this machine, where rank 0 runs, has it".to_owned();
                failure.get_or_insert(Error::BadAddress {
                    address: candidate.to_string(),
                    variable: address.variable,
                    reason,
                });
            }
            Err(error) => {
                failure.get_or_insert(Error::io_at("listening for the ranks of a job", candidate, error));
            }
        }
    }
    Err(failure.unwrap_or_else(|| address.unusable("it stands for no address")))
}

/// Listens where the other ranks can be expected to reach this one. Returns the listener and the addresses.
pub(crate) fn beside(local: IpAddr, places: &Places) -> io::Result<(Listener, Vec<IpAddr>)> {
    if let Some(&first) = places.listen_at.first() {
        // If an interface is named, only its addresses are used: the one by which this rank reached rank 0, if it is one of
        // them, because the other ranks have reached rank 0 too.
        let first = if places.listen_at.contains(&local) { local } else { first };
        return Ok((socket::listen(SocketAddr::new(first, 0))?, vec![first]));
    }
    if local.is_loopback() {
        // The job is on this node alone, and nobody else needs to reach it.
        return Ok((socket::listen(SocketAddr::new(local, 0))?, vec![local]));
    }
    let listener = socket::listen_everywhere(true)?;
    let v6 = listener.local_addr()?.is_ipv6();
    let mut addresses = vec![local];
    addresses
        .extend(places.others.iter().filter(|ip| !ip.is_loopback() && (v6 || ip.is_ipv4()) && **ip != local));
    addresses.truncate(MAX_ADDRESSES);
    Ok((listener, addresses))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_listens_at_the_address_of_the_named_interface_by_which_it_reached_rank_0() {
        let ips: [IpAddr; 2] = ["127.0.0.1", "127.0.0.2"].map(|ip| ip.parse().unwrap());
        let places = Places { listen_at: ips.to_vec(), ..Places::default() };
        for local in ips {
            let (listener, addresses) = beside(local, &places).unwrap();
            assert_eq!((listener.local_addr().unwrap().ip(), addresses), (local, vec![local]));
        }
        let (_, addresses) = beside("127.0.0.3".parse().unwrap(), &places).unwrap();
        assert_eq!(addresses, [ips[0]], "the address by which it came is of another interface");
    }
}
