use std::net::{IpAddr, SocketAddr};

use crate::{
    key::Key,
    wire::{Malformed, Reader, Wire},
};

use super::{
    Protocol,
    error::{Error, Result},
};

/// The name of an endpoint: random bytes, which are not secret.
pub type Name = [u8; 16];

/// The most IP addresses that an endpoint names; the best ones are kept.
pub(super) const MAX_ADDRESSES: usize = 16;

/// How to reach an endpoint. Any process that has this address can open links to the endpoint.
///
/// ```text
/// magic 4 | version 4 | name 16 | key 32 | port 2 | count 1 | count times: 4 or 6, then 4 or 16 bytes of IP
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// The endpoint's name.
    pub name: Name,
    /// The secret shared by all that may connect to the endpoint.
    pub key: Key,
    /// The IP addresses, best first; from 1 to 16.
    pub addresses: Vec<IpAddr>,
    /// The port on which the endpoint's process listens.
    pub port: u16,
}

impl Address {
    /// Returns the bytes that are sent to peers. They contain the key.
    #[must_use]
    pub fn encode(&self, protocol: &Protocol) -> Vec<u8> {
        let mut out = protocol.begin();
        let addresses = &self.addresses[..self.addresses.len().min(MAX_ADDRESSES)];
        (self.name, self.key.to_bytes(), self.port, addresses.len() as u8).put(&mut out);
        addresses.iter().for_each(|ip| ip.put(&mut out));
        out
    }

    /// Reads the bytes that [`Address::encode`] wrote. Nothing may follow them.
    ///
    /// # Errors
    /// [`Error::Version`] if a peer of another version wrote them, else [`Error::Malformed`].
    pub fn decode(protocol: &Protocol, bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes);
        let address = Self::read(protocol, &mut reader)?;
        reader.end()?;
        Ok(address)
    }

    /// Reads an address like [`Address::decode`], but more bytes may follow.
    ///
    /// # Errors
    /// The same as [`Address::decode`].
    pub fn read(protocol: &Protocol, reader: &mut Reader<'_>) -> Result<Self> {
        protocol.check(reader)?;
        let (name, key, port, count) = reader.take::<(Name, Key, u16, u8)>()?;
        if port == 0 || !(1..=MAX_ADDRESSES).contains(&count.into()) {
            return Err(Error::Malformed(Malformed("it has no port, or no or too many addresses")));
        }
        let addresses = (0..count).map(|_| reader.take()).collect::<Result<_, _>>()?;
        Ok(Self { name, key, addresses, port })
    }

    /// Returns the addresses to try, best first. If the peer is on this node, loopback comes first.
    #[must_use]
    pub fn candidates(&self, same_host: bool) -> Vec<SocketAddr> {
        let mut ips = self.addresses.clone();
        if same_host {
            ips.sort_by_key(|ip| !ip.is_loopback());
        }
        ips.into_iter().map(|ip| SocketAddr::new(ip, self.port)).collect()
    }
}
