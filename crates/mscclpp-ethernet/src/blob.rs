//! The parts of endpoints and regions that travel to peers.
//!
//! ```text
//! endpoint:  magic 4 | version 4 | name 16 | key 32 | port 2 | count 1 | count times: 4 or 6, then 4 or 16 bytes of IP
//! region:    magic 4 | version 4 | region id 8 | length 8 | its address modulo 8
//! ```
//! Whoever has an endpoint's blob can write into every region of its owner whose id it knows too.

use std::net::{IpAddr, SocketAddr};

use crate::{
    error::{Error, Result},
    interface::MAX_ADDRESSES,
    protocol::{Fields, MAGIC, VERSION, handshake::Name, key::Key},
};

fn begin() -> Vec<u8> {
    [&MAGIC[..], &VERSION.to_le_bytes()].concat()
}

fn front(fields: &mut Fields<'_>, what: &'static str) -> Result<()> {
    if fields.array() != Some(MAGIC) {
        return Err(Error::Malformed { what, problem: "it was not made by this transport" });
    }
    match fields.u32() {
        Some(VERSION) => Ok(()),
        Some(theirs) => Err(Error::Version { theirs }),
        None => Err(Error::Malformed { what, problem: "it ends in the middle" }),
    }
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

const ENDPOINT: &str = "an endpoint";
const REGION: &str = "a registered memory";

impl EndpointBlob {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = begin();
        out.extend(self.name);
        out.extend(self.key.to_bytes());
        out.extend(self.port.to_le_bytes());
        out.push(self.addresses.len() as u8);
        for ip in &self.addresses {
            match ip {
                IpAddr::V4(ip) => {
                    out.push(4);
                    out.extend(ip.octets());
                }
                IpAddr::V6(ip) => {
                    out.push(6);
                    out.extend(ip.octets());
                }
            }
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut fields = Fields(bytes);
        front(&mut fields, ENDPOINT)?;
        let malformed = |problem| Error::Malformed { what: ENDPOINT, problem };
        let cut = || malformed("it ends in the middle");
        let name = fields.array().ok_or_else(cut)?;
        let key = Key::from_bytes(fields.array().ok_or_else(cut)?);
        let port = fields.u16().ok_or_else(cut)?;
        let count = usize::from(fields.u8().ok_or_else(cut)?);
        if port == 0 || !(1..=MAX_ADDRESSES).contains(&count) {
            return Err(malformed("it has no port, or no or too many addresses"));
        }
        let mut addresses = Vec::with_capacity(count);
        for _ in 0..count {
            let ip = match fields.u8().ok_or_else(cut)? {
                4 => fields.array::<4>().map(IpAddr::from),
                6 => fields.array::<16>().map(IpAddr::from),
                _ => return Err(malformed("it has an address of an unknown family")),
            };
            addresses.push(ip.ok_or_else(cut)?);
        }
        match fields.0 {
            [] => Ok(Self { name, key, addresses, port }),
            _ => Err(malformed("something is left over behind it")),
        }
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
        let mut fields = Fields(bytes);
        front(&mut fields, REGION)?;
        let malformed = |problem| Error::Malformed { what: REGION, problem };
        let (Some(own_id), Some(own_len), Some(misalignment @ 0..8), []) =
            (fields.u64(), fields.u64(), fields.u8(), fields.0)
        else {
            return Err(malformed("it does not have the fields it should"));
        };
        match (own_id, own_len) == (id, len) {
            true => Ok(Self { id, len, misalignment }),
            false => Err(malformed("it is of another region than what it came in")),
        }
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
