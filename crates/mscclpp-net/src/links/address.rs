use std::net::{IpAddr, SocketAddr};

use crate::{
    key::Key,
    wire::{Malformed, Reader, put_ip},
};

use super::{
    Name, Protocol,
    error::{Error, Result},
};

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
    /// The bytes that are sent to peers. They hold the key.
    #[must_use]
    pub fn encode(&self, protocol: &Protocol) -> Vec<u8> {
        let mut out = protocol.begin();
        out.extend(self.name);
        out.extend(self.key.to_bytes());
        out.extend(self.port.to_le_bytes());
        let addresses = &self.addresses[..self.addresses.len().min(MAX_ADDRESSES)];
        out.push(addresses.len() as u8);
        addresses.iter().for_each(|ip| put_ip(&mut out, ip));
        out
    }

    /// Reads what [`Address::encode`] wrote. Nothing may follow it.
    ///
    /// # Errors
    /// [`Error::Version`] if a peer of another version wrote it, else [`Error::Malformed`].
    pub fn decode(protocol: &Protocol, bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes);
        let address = Self::read(protocol, &mut reader)?;
        reader.end()?;
        Ok(address)
    }

    /// Like [`Address::decode`], but more bytes may follow.
    ///
    /// # Errors
    /// As for [`Address::decode`].
    pub fn read(protocol: &Protocol, reader: &mut Reader<'_>) -> Result<Self> {
        protocol.check(reader)?;
        let (name, key) = (reader.array()?, Key::from_bytes(reader.array()?));
        let (port, count) = (reader.u16()?, usize::from(reader.u8()?));
        if port == 0 || !(1..=MAX_ADDRESSES).contains(&count) {
            return Err(Error::Malformed(Malformed("it has no port, or no or too many addresses")));
        }
        let addresses = (0..count).map(|_| reader.ip()).collect::<Result<_, _>>()?;
        Ok(Self { name, key, addresses, port })
    }

    /// The addresses to try, best first. If the peer is on this host, loopback comes first.
    #[must_use]
    pub fn candidates(&self, same_host: bool) -> Vec<SocketAddr> {
        let mut ips = self.addresses.clone();
        if same_host {
            ips.sort_by_key(|ip| !ip.is_loopback());
        }
        ips.into_iter().map(|ip| SocketAddr::new(ip, self.port)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::tests::PROTOCOL;

    fn address() -> Address {
        let addresses = ["192.0.2.1", "fd00::1", "127.0.0.1"].map(|ip| ip.parse().unwrap());
        Address { name: [1; 16], key: Key::from_bytes([2; 32]), addresses: addresses.to_vec(), port: 4711 }
    }

    #[test]
    fn an_address_survives_its_journey() {
        let bytes = address().encode(&PROTOCOL);
        assert_eq!(Address::decode(&PROTOCOL, &bytes).unwrap(), address());
        let longer = [&bytes[..], b"rest"].concat();
        let mut reader = Reader::new(&longer);
        assert_eq!(Address::read(&PROTOCOL, &mut reader).unwrap(), address());
        assert_eq!(reader.rest(), b"rest");
    }

    #[test]
    fn truncated_extended_and_of_another_version() {
        let bytes = address().encode(&PROTOCOL);
        let error = |bytes: &[u8]| Address::decode(&PROTOCOL, bytes).unwrap_err();
        for len in 0..bytes.len() {
            assert!(matches!(error(&bytes[..len]), Error::Malformed(_)), "{len} bytes");
        }
        assert!(matches!(error(&[&bytes[..], &[0]].concat()), Error::Malformed(_)));
        let with = |at: usize, byte: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            error(&bytes)
        };
        assert!(matches!(with(0, b'x'), Error::Malformed(_)));
        for count in [0, 17, 255] {
            assert!(matches!(with(58, count), Error::Malformed(_)), "{count} addresses");
        }
        let text = with(4, 2).to_string();
        assert!(text.contains("version 2 of the Test protocol") && text.contains("version 1"), "{text}");
    }

    #[test]
    fn no_more_addresses_are_written_than_are_read() {
        let many = Address { addresses: vec![[127, 0, 0, 1].into(); 300], ..address() };
        let read = Address::decode(&PROTOCOL, &many.encode(&PROTOCOL)).unwrap();
        assert_eq!(read.addresses.len(), MAX_ADDRESSES);
    }

    #[test]
    fn a_peer_on_this_host_is_tried_at_loopback_first() {
        let first = |same_host| address().candidates(same_host)[0].to_string();
        assert_eq!((first(false), first(true)), ("192.0.2.1:4711".to_owned(), "127.0.0.1:4711".to_owned()));
    }

    #[test]
    fn a_key_is_never_shown() {
        assert!(format!("{:?}", address()).contains("hidden"));
    }
}
