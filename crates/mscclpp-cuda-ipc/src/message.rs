//! The messages sent over the Unix socket, and the parts of endpoints and regions that are sent to peers.
//!
//! Every message has a fixed layout, shown at each type, and is parsed from slices with bounds.

use mscclpp_net::{
    wire::{Reader, Wire},
    wire_enum,
};

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

wire_enum!(Request or "it is of no known kind" { 1 => Link { token, from }, 2 => Fetch { token, id } });

impl Request {
    pub(crate) const LEN: usize = 30;

    pub(crate) fn encode(self) -> Vec<u8> {
        [&MAGIC[..], &[VERSION], &self.to_bytes()].concat()
    }

    pub(crate) fn decode(bytes: &[u8]) -> std::result::Result<Self, Refusal> {
        let mut reader = Reader::new(bytes);
        if reader.take() != Ok(MAGIC) {
            return Err(Refusal::Malformed);
        }
        if reader.take() != Ok(VERSION) {
            return Err(Refusal::Version);
        }
        Self::parse(reader.rest()).map_err(|_| Refusal::Malformed)
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

/// The answer to a request: the handle of an allocation, or the part of it that is bytes.
///
/// ```text
/// magic 4 | version 1 | status 1 (0 yes, else a refusal) | handle kind 1 | handle 64
/// ```
/// A file descriptor travels beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handle {
    None,
    FileDescriptor,
    Ipc([u8; 64]),
    Fabric([u8; 64]),
}

impl Handle {
    pub(crate) const LEN: usize = 71;

    pub(crate) fn encode(answer: std::result::Result<Self, Refusal>) -> Vec<u8> {
        let (status, kind, bytes) = match answer {
            Err(refusal) => (refusal as u8, 0_u8, [0; 64]),
            Ok(Self::None) => (0, 0, [0; 64]),
            Ok(Self::FileDescriptor) => (0, 1, [0; 64]),
            Ok(Self::Ipc(bytes)) => (0, 2, bytes),
            Ok(Self::Fabric(bytes)) => (0, 3, bytes),
        };
        (MAGIC, VERSION, status, kind, bytes).to_bytes()
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
        match Wire::parse(reader.rest()) {
            Ok((0_u8, _)) => Ok(Self::None),
            Ok((1, _)) => Ok(Self::FileDescriptor),
            Ok((2, bytes)) => Ok(Self::Ipc(bytes)),
            Ok((3, bytes)) => Ok(Self::Fabric(bytes)),
            _ => Err(malformed),
        }
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
        let fields = (VERSION, self.token, self.name).to_bytes();
        [&fields, self.address.as_bytes()].concat()
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
        let fields = (VERSION, self.token, self.allocation, self.allocation_size, self.offset).to_bytes();
        [&fields, self.address.as_bytes()].concat()
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
            assert_eq!(Handle::decode(&Handle::encode(Ok(handle))).unwrap(), handle);
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
        assert_eq!(Request::Link { token: [5; 16], from }.encode(), link);
        let fetch = [&head[..], &[2], &[6; 16], &numbers[1]].concat();
        assert_eq!(Request::Fetch { token: [6; 16], id }.encode(), fetch);
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
            assert_eq!(Handle::encode(answer), expected);
            assert_eq!(expected.len(), Handle::LEN);
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
        let refused = Handle::decode(&Handle::encode(Err(Refusal::Unknown))).unwrap_err();
        assert!(refused.to_string().contains("knows no such endpoint"));
        let reply = Handle::encode(Ok(Handle::None));
        for len in 0..reply.len() {
            assert!(Handle::decode(&reply[..len]).is_err());
        }
        let endpoint = EndpointBlob { token: [1; 16], name: 9, address: "mscclpp-0".to_owned() }.encode();
        for len in 0..26 {
            assert!(EndpointBlob::decode(&endpoint[..len]).is_err());
        }
        assert!(EndpointBlob::decode(&[&endpoint[..], b"/../x"].concat()).is_err());
        assert!(EndpointBlob::decode(&[&endpoint[..], &[b'a'; 64]].concat()).is_err());
    }
}
