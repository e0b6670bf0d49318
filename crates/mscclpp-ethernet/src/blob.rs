//! The parts of endpoints and regions that travel to peers.
//!
//! ```text
//! endpoint:  magic 4 | version 4 | name 16 | key 32 | port 2 | count 1 | count times: 4 or 6, then 4 or 16 bytes of IP
//! region:    magic 4 | version 4 | region id 8 | length 8 | its address modulo 8
//! ```
//! Whoever has an endpoint's blob can write into every region of its owner whose id it knows too.

use std::net::{IpAddr, SocketAddr};

use mscclpp_net::{
    key::Key,
    wire::{Malformed, Reader, put_ip},
};

use crate::{
    error::{Error, Result},
    protocol::{
        begin, front,
        handshake::{Name, Refusal},
    },
};

/// The most addresses that an endpoint names; the best ones.
pub(crate) const MAX_ADDRESSES: usize = 16;

/// Reads a blob to its end: what begins it, and with `parse` what follows.
fn read<T>(
    bytes: &[u8],
    what: &'static str,
    parse: impl FnOnce(&mut Reader<'_>) -> Result<T, Malformed>,
) -> Result<T> {
    let malformed = |Malformed(problem)| Error::Malformed { what, problem };
    let mut reader = Reader::new(bytes);
    front(&mut reader).map_err(|refusal| match refusal {
        Refusal::Version { theirs } => Error::Version { theirs },
        _ => malformed(Malformed("it was not made by this transport")),
    })?;
    let value = parse(&mut reader).map_err(malformed)?;
    reader.end().map_err(malformed)?;
    Ok(value)
}

/// How an endpoint is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EndpointBlob {
    pub(crate) name: Name,
    pub(crate) key: Key,
    /// Best first, at most [`MAX_ADDRESSES`].
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) port: u16,
}

impl EndpointBlob {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = begin();
        out.extend(self.name);
        out.extend(self.key.to_bytes());
        out.extend(self.port.to_le_bytes());
        out.push(self.addresses.len() as u8);
        self.addresses.iter().for_each(|ip| put_ip(&mut out, ip));
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        read(bytes, "an endpoint", |reader| {
            let (name, key) = (reader.array()?, Key::from_bytes(reader.array()?));
            let (port, count) = (reader.u16()?, usize::from(reader.u8()?));
            if port == 0 || !(1..=MAX_ADDRESSES).contains(&count) {
                return Err(Malformed("it has no port, or no or too many addresses"));
            }
            let addresses = (0..count).map(|_| reader.ip()).collect::<Result<_, _>>()?;
            Ok(Self { name, key, addresses, port })
        })
    }

    /// Where to try, best first. Of a peer on this very host loopback is the best.
    pub(crate) fn candidates(&self, same_host: bool) -> Vec<SocketAddr> {
        let mut ips = self.addresses.clone();
        if same_host {
            ips.sort_by_key(|ip| !ip.is_loopback());
        }
        ips.into_iter().map(|ip| SocketAddr::new(ip, self.port)).collect()
    }
}

/// How a region is named in frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RegionBlob {
    pub(crate) id: u64,
    pub(crate) len: u64,
    /// Its address modulo 8: where in it words are aligned.
    pub(crate) misalignment: u8,
}

impl RegionBlob {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut out = begin();
        out.extend(self.id.to_le_bytes());
        out.extend(self.len.to_le_bytes());
        out.push(self.misalignment);
        out
    }

    /// `id` and `len` are what the envelope around the blob says.
    pub(crate) fn decode(bytes: &[u8], id: u64, len: u64) -> Result<Self> {
        read(bytes, "a registered memory", |reader| {
            let (own_id, own_len, misalignment) = (reader.u64()?, reader.u64()?, reader.u8()?);
            if misalignment >= 8 {
                return Err(Malformed("its address modulo 8 is 8 or more"));
            }
            match (own_id, own_len) == (id, len) {
                true => Ok(Self { id, len, misalignment }),
                false => Err(Malformed("it is of another region than what it came in")),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> EndpointBlob {
        EndpointBlob {
            name: [1; 16],
            key: Key::from_bytes([2; 32]),
            addresses: vec![
                "192.0.2.1".parse().unwrap(),
                "fd00::1".parse().unwrap(),
                "127.0.0.1".parse().unwrap(),
            ],
            port: 4711,
        }
    }

    #[test]
    fn blobs_survive_their_journey() {
        let blob = endpoint();
        assert_eq!(EndpointBlob::decode(&blob.encode()).unwrap(), blob);
        let blob = RegionBlob { id: 5, len: 6, misalignment: 7 };
        assert_eq!(RegionBlob::decode(&blob.encode(), 5, 6).unwrap(), blob);
        for (id, len) in [(4, 6), (5, 7)] {
            assert!(RegionBlob::decode(&blob.encode(), id, len).is_err());
        }
    }

    #[test]
    fn truncated_extended_and_of_another_version() {
        let (endpoint, region) =
            (endpoint().encode(), RegionBlob { id: 5, len: 6, misalignment: 0 }.encode());
        for len in 0..endpoint.len() {
            assert!(EndpointBlob::decode(&endpoint[..len]).is_err(), "{len} bytes of an endpoint");
        }
        for len in 0..region.len() {
            assert!(RegionBlob::decode(&region[..len], 5, 6).is_err(), "{len} bytes of a region");
        }
        assert!(EndpointBlob::decode(&[&endpoint[..], &[0]].concat()).is_err());
        assert!(RegionBlob::decode(&[&region[..], &[0]].concat(), 5, 6).is_err());
        let mut newer = endpoint;
        newer[4] += 1;
        let text = EndpointBlob::decode(&newer).unwrap_err().to_string();
        assert!(text.contains("version 2") && text.contains("version 1"), "{text}");
    }

    #[test]
    fn a_peer_on_this_host_is_tried_at_loopback_first() {
        let first = |same_host| endpoint().candidates(same_host)[0].to_string();
        assert_eq!((first(false), first(true)), ("192.0.2.1:4711".to_owned(), "127.0.0.1:4711".to_owned()));
    }

    #[test]
    fn a_key_is_never_shown() {
        assert!(format!("{:?}", endpoint()).contains("hidden"));
    }
}
