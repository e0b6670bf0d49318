//! The messages sent over the Unix socket, and the parts of endpoints and regions that are sent to peers.
//!
//! Every message has a fixed layout, shown at each type, and is parsed from slices with bounds.

use mscclpp_net::wire::{Malformed, Reader, Wire};

use crate::error::{Error, Result};

/// The version of the formats, raised with every change of a layout here.
const VERSION: u8 = 2;
const MAGIC: [u8; 4] = *b"MSCI";
/// The longest socket name that is accepted; those made here have 40 bytes.
const MAX_ADDRESS: usize = 64;

/// Proves that a request comes from a process to which an endpoint or a region was sent.
pub(crate) type Token = [u8; 16];

/// A number by which peers know an endpoint. It is not a secret.
pub(crate) type Name = u64;

/// A peer's request.
///
/// ```text
/// magic 4 | version 1 | kind 1 | token 16 | number 8
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    /// Opens a connection that shows when the endpoint's process goes, or fails. `from` is the name of the asking
    /// endpoint.
    Link { token: Token, from: Name },
    /// Asks for the handle of an exported allocation.
    Fetch { token: Token, id: u64 },
}

impl Request {
    pub(crate) const LEN: usize = 30;

    pub(crate) fn encode(self) -> [u8; Self::LEN] {
        let (kind, token, id) = match self {
            Self::Link { token, from } => (1, token, from),
            Self::Fetch { token, id } => (2, token, id),
        };
        let mut out = [0; Self::LEN];
        out[..4].copy_from_slice(&MAGIC);
        out[4] = VERSION;
        out[5] = kind;
        out[6..22].copy_from_slice(&token);
        out[22..].copy_from_slice(&id.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> std::result::Result<Self, Refusal> {
        let mut reader = Reader::new(bytes);
        if reader.take() != Ok(MAGIC) {
            return Err(Refusal::Malformed);
        }
        if reader.take() != Ok(VERSION) {
            return Err(Refusal::Version);
        }
        let fields = || {
            let (kind, token, id) = Wire::parse(reader.rest())?;
            match kind {
                1_u8 => Ok(Self::Link { token, from: id }),
                2 => Ok(Self::Fetch { token, id }),
                _ => Err(Malformed("it is of no known kind")),
            }
        };
        fields().map_err(|_| Refusal::Malformed)
    }
}

/// The reason why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    Malformed = 1,
    Version = 2,
    Unknown = 3,
    User = 4,
}

impl Refusal {
    fn reason(code: u8) -> &'static str {
        match code {
            1 => "it could not read the request",
            2 => "it speaks another version of this protocol; use one version of the library everywhere",
            3 => "it knows no such endpoint or region: it was dropped, or the token is wrong",
            4 => "it belongs to another user",
            _ => "it gave a reason that this version does not know",
        }
    }
}

/// The answer to a request.
///
/// ```text
/// magic 4 | version 1 | status 1 (0 yes, else a refusal) | handle kind 1 | handle 64
/// ```
/// A file descriptor travels beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) handle: Handle,
}

/// The handle of an allocation, or the part of it that is bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handle {
    None,
    FileDescriptor,
    Ipc([u8; 64]),
    Fabric([u8; 64]),
}

impl Reply {
    pub(crate) const LEN: usize = 71;

    pub(crate) fn encode(answer: std::result::Result<Self, Refusal>) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..4].copy_from_slice(&MAGIC);
        out[4] = VERSION;
        match answer {
            Err(refusal) => out[5] = refusal as u8,
            Ok(Self { handle }) => {
                let (kind, bytes) = match handle {
                    Handle::None => (0, [0; 64]),
                    Handle::FileDescriptor => (1, [0; 64]),
                    Handle::Ipc(bytes) => (2, bytes),
                    Handle::Fabric(bytes) => (3, bytes),
                };
                out[6] = kind;
                out[7..].copy_from_slice(&bytes);
            }
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let malformed = Error::Malformed { what: "an answer", problem: "it is not of this protocol" };
        let mut reader = Reader::new(bytes);
        if reader.take() != Ok(MAGIC) {
            return Err(malformed);
        }
        let Ok((version, status)) = reader.take::<(u8, u8)>() else {
            return Err(malformed);
        };
        if version != VERSION {
            return Err(Error::Refused { reason: Refusal::reason(Refusal::Version as u8) });
        }
        if status != 0 {
            return Err(Error::Refused { reason: Refusal::reason(status) });
        }
        let Ok((kind, handle)) = Wire::parse(reader.rest()) else {
            return Err(malformed);
        };
        let handle = match kind {
            0_u8 => Handle::None,
            1 => Handle::FileDescriptor,
            2 => Handle::Ipc(handle),
            3 => Handle::Fabric(handle),
            _ => return Err(malformed),
        };
        Ok(Self { handle })
    }
}

/// The transport's part of an endpoint.
///
/// ```text
/// version 1 | token 16 | name 8 | address n
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EndpointBlob {
    pub(crate) token: Token,
    pub(crate) name: Name,
    pub(crate) address: String,
}

impl EndpointBlob {
    pub(crate) fn encode(&self) -> Vec<u8> {
        [&[VERSION][..], &self.token, &self.name.to_le_bytes(), self.address.as_bytes()].concat()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let ((token, name), address) = part(bytes, "an endpoint")?;
        Ok(Self { token, name, address })
    }
}

/// The transport's part of a region.
///
/// ```text
/// version 1 | token 16 | allocation's id 8 | its size 8 | offset of the region in it 8 | address n
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RegionBlob {
    pub(crate) token: Token,
    pub(crate) allocation: u64,
    pub(crate) allocation_size: u64,
    pub(crate) offset: u64,
    pub(crate) address: String,
}

impl RegionBlob {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend(self.token);
        for number in [self.allocation, self.allocation_size, self.offset] {
            out.extend(number.to_le_bytes());
        }
        out.extend(self.address.as_bytes());
        out
    }

    /// Reads the part of a region and checks that `len` bytes of the region lie inside the allocation.
    pub(crate) fn decode(bytes: &[u8], len: u64) -> Result<Self> {
        let what = "a region";
        let (fields, address) = part(bytes, what)?;
        let (token, allocation, allocation_size, offset): (_, _, u64, u64) = fields;
        if offset.checked_add(len).is_none_or(|end| end > allocation_size) {
            return Err(Error::Malformed { what, problem: "it reaches past the end of its allocation" });
        }
        Ok(Self { token, allocation, allocation_size, offset, address })
    }
}

/// Reads the transport's part of an object: the version, fields, and an address.
fn part<T: Wire>(bytes: &[u8], what: &'static str) -> Result<(T, String)> {
    let mut reader = Reader::new(bytes);
    if reader.take() != Ok(VERSION) {
        return Err(Error::Malformed { what, problem: "it is of another version of this transport" });
    }
    let fields = reader.take().map_err(|_| Error::Malformed { what, problem: "it ends in the middle" })?;
    Ok((fields, address(reader.rest(), what)?))
}

fn address(bytes: &[u8], what: &'static str) -> Result<String> {
    let plain = bytes.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-');
    match std::str::from_utf8(bytes) {
        Ok(address) if plain && (1..=MAX_ADDRESS).contains(&address.len()) => Ok(address.to_owned()),
        _ => Err(Error::Malformed { what, problem: "its socket name is none of this transport's" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips() {
        for request in
            [Request::Link { token: [7; 16], from: 8 }, Request::Fetch { token: [9; 16], id: u64::MAX - 1 }]
        {
            assert_eq!(Request::decode(&request.encode()), Ok(request));
        }
        for handle in [Handle::None, Handle::FileDescriptor, Handle::Ipc([3; 64]), Handle::Fabric([4; 64])] {
            assert_eq!(Reply::decode(&Reply::encode(Ok(Reply { handle }))).unwrap(), Reply { handle });
        }
        let endpoint = EndpointBlob { token: [1; 16], name: 9, address: "mscclpp-0".to_owned() };
        assert_eq!(EndpointBlob::decode(&endpoint.encode()).unwrap(), endpoint);
        let region = RegionBlob {
            token: [2; 16],
            allocation: 5,
            allocation_size: 100,
            offset: 40,
            address: "mscclpp-1".to_owned(),
        };
        assert_eq!(RegionBlob::decode(&region.encode(), 60).unwrap(), region);
        assert!(RegionBlob::decode(&region.encode(), 61).is_err());
        assert!(RegionBlob::decode(&region.encode(), u64::MAX).is_err());
    }

    #[test]
    fn the_bytes_are_those_of_version_2() {
        let head = *b"MSCI\x02";
        let numbers = [[8, 0, 0, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0, 0], [7, 0, 0, 0, 0, 0, 0, 0x80]];
        let [from, id, offset] = [8, 0x100, 0x8000_0000_0000_0007];
        let link = [&head[..], &[1], &[5; 16], &numbers[0]].concat();
        assert_eq!(Request::Link { token: [5; 16], from }.encode().to_vec(), link);
        let fetch = [&head[..], &[2], &[6; 16], &numbers[1]].concat();
        assert_eq!(Request::Fetch { token: [6; 16], id }.encode().to_vec(), fetch);
        assert_eq!(fetch.len(), Request::LEN);
        for (answer, status, kind, bytes) in [
            (Err(Refusal::Malformed), 1, 0, [0; 64]),
            (Err(Refusal::Version), 2, 0, [0; 64]),
            (Err(Refusal::Unknown), 3, 0, [0; 64]),
            (Err(Refusal::User), 4, 0, [0; 64]),
            (Ok(Handle::None), 0, 0, [0; 64]),
            (Ok(Handle::FileDescriptor), 0, 1, [0; 64]),
            (Ok(Handle::Ipc([3; 64])), 0, 2, [3; 64]),
            (Ok(Handle::Fabric([4; 64])), 0, 3, [4; 64]),
        ] {
            let expected = [&head[..], &[status, kind], &bytes].concat();
            assert_eq!(Reply::encode(answer.map(|handle| Reply { handle })).to_vec(), expected);
            assert_eq!(expected.len(), Reply::LEN);
        }
        let endpoint = EndpointBlob { token: [1; 16], name: from, address: "mscclpp-0".to_owned() };
        assert_eq!(endpoint.encode(), [&[2][..], &[1; 16], &numbers[0], b"mscclpp-0"].concat());
        let address = "mscclpp-1".to_owned();
        let region = RegionBlob { token: [2; 16], allocation: from, allocation_size: id, offset, address };
        let expected = [&[2][..], &[2; 16], numbers.as_flattened(), b"mscclpp-1"].concat();
        assert_eq!(region.encode(), expected);
    }

    #[test]
    fn what_is_cut_short_or_changed_is_refused_in_words() {
        let request = Request::Fetch { token: [9; 16], id: 1 }.encode();
        for len in 0..request.len() {
            assert!(Request::decode(&request[..len]).is_err());
        }
        let mut newer = request;
        newer[4] += 1;
        assert_eq!(Request::decode(&newer), Err(Refusal::Version));
        let refused = Reply::decode(&Reply::encode(Err(Refusal::Unknown))).unwrap_err();
        assert!(refused.to_string().contains("knows no such endpoint"));
        let reply = Reply::encode(Ok(Reply { handle: Handle::None }));
        for len in 0..reply.len() {
            assert!(Reply::decode(&reply[..len]).is_err());
        }
        let endpoint = EndpointBlob { token: [1; 16], name: 9, address: "mscclpp-0".to_owned() }.encode();
        for len in 0..26 {
            assert!(EndpointBlob::decode(&endpoint[..len]).is_err());
        }
        assert!(EndpointBlob::decode(&[&endpoint[..], b"/../x"].concat()).is_err());
        assert!(EndpointBlob::decode(&[&endpoint[..], &[b'a'; 64]].concat()).is_err());
    }
}
