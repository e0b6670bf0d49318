//! The messages between hubs, and the addresses by which hubs find each other. A stranger may have made up anything that is
//! read here.

use std::{
    io::{self, Read, Write},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixStream},
    },
    time::Duration,
};

use mscclpp::errors::CoreError;

/// The longest time that a hub may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
pub(crate) const GOODBYE: [u8; 1] = *b"G";
/// The byte before the reason why an endpoint's owner has failed. Two bytes with the reason's length follow, and its text.
pub(crate) const FAILED: [u8; 1] = *b"F";
const YES: u8 = b'Y';
const YES_UNALIGNED: u8 = b'U';
pub(crate) const NO: u8 = b'N';

/// The address of an endpoint or a region: the hub, a key that strangers do not have, and a number. It is sent to peers as
/// the blob.
#[derive(Clone, Copy)]
pub(crate) struct Address {
    pub(crate) hub: [u8; 16],
    pub(crate) key: [u8; 16],
    pub(crate) id: u64,
}

impl Address {
    /// The length of an address in bytes.
    pub(crate) const LEN: usize = 40;

    pub(crate) fn encode(&self) -> Vec<u8> {
        [&self.hub[..], &self.key, &self.id.to_le_bytes()].concat()
    }

    pub(crate) fn decode(bytes: &[u8], what: &'static str) -> Result<Self, CoreError> {
        let parse = || {
            let (hub, rest) = bytes.split_first_chunk()?;
            let (key, rest) = rest.split_first_chunk()?;
            let id = u64::from_le_bytes(rest.try_into().ok()?);
            Some(Self { hub: *hub, key: *key, id })
        };
        parse().ok_or_else(|| CoreError::Malformed {
            what,
            problem: format!("its part of Post has {} bytes, not {}", bytes.len(), Self::LEN),
        })
    }

    /// The address of the hub's socket.
    pub(crate) fn socket(&self) -> io::Result<SocketAddr> {
        SocketAddr::from_abstract_name(format!("post-{:032x}", u128::from_be_bytes(self.hub)))
    }

    /// Connects to the hub and sends it the key and the hello. If the hub agrees, returns the socket, and whether the region
    /// that it was asked for is aligned. Otherwise the error is the reason.
    pub(crate) fn dial(&self, hello: Hello) -> Result<(UnixStream, bool), String> {
        let call = || -> io::Result<(UnixStream, u8)> {
            let mut stream = UnixStream::connect_addr(&self.socket()?)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            stream.write_all(&hello.encode(&self.key))?;
            let mut answer = [0];
            stream.read_exact(&mut answer)?;
            stream.set_read_timeout(None)?;
            stream.set_write_timeout(None)?;
            Ok((stream, answer[0]))
        };
        match call() {
            Ok((stream, YES)) => Ok((stream, true)),
            Ok((stream, YES_UNALIGNED)) => Ok((stream, false)),
            Ok(_) => Err("its process knows no such endpoint or region: it was dropped".to_owned()),
            Err(error) => Err(format!("its process does not answer: {error}")),
        }
    }
}

/// A caller's first message, of 33 bytes: a kind, the key, two numbers.
#[derive(Clone, Copy)]
pub(crate) enum Hello {
    /// A request for a link to an endpoint, from another.
    Link { id: u64, from: u64 },
    /// A question whether there is a region of that length.
    Region { id: u64, len: u64 },
    /// A request for a queue to an endpoint.
    Queue { id: u64 },
}

impl Hello {
    fn encode(self, key: &[u8; 16]) -> Vec<u8> {
        let (kind, id, len) = match self {
            Self::Link { id, from } => (b'L', id, from),
            Self::Region { id, len } => (b'R', id, len),
            Self::Queue { id } => (b'Q', id, 0),
        };
        [&[kind][..], key, &id.to_le_bytes(), &len.to_le_bytes()].concat()
    }

    /// Reads a caller's hello, within a few seconds. Returns none if it is not a hello, or does not have the key.
    pub(crate) fn read(stream: &mut UnixStream, key: &[u8; 16]) -> Option<Self> {
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        let mut bytes = [0; 33];
        stream.read_exact(&mut bytes).ok()?;
        stream.set_read_timeout(None).ok()?;
        let (kind, rest) = bytes.split_first()?;
        let (theirs, rest) = rest.split_first_chunk::<16>()?;
        let (id, len) = rest.split_first_chunk()?;
        let (id, len) = (u64::from_le_bytes(*id), u64::from_le_bytes(len.try_into().ok()?));
        match kind {
            _ if theirs != key => None,
            b'L' => Some(Self::Link { id, from: len }),
            b'R' => Some(Self::Region { id, len }),
            b'Q' => Some(Self::Queue { id }),
            _ => None,
        }
    }
}

/// The answer to a hello.
pub(crate) fn yes(aligned: bool) -> [u8; 1] {
    [if aligned { YES } else { YES_UNALIGNED }]
}

/// A message of a queue, of 25 bytes, followed by the data of a write.
#[derive(Clone, Copy)]
pub(crate) enum Frame {
    Write {
        region: u64,
        offset: u64,
        len: u64,
    },
    Update {
        region: u64,
        offset: u64,
        value: u64,
    },
    /// A request for an answer with the ticket.
    Flush {
        ticket: u64,
    },
}

impl Frame {
    pub(crate) fn encode(self) -> [u8; 25] {
        let (kind, numbers) = match self {
            Self::Write { region, offset, len } => (b'W', [region, offset, len]),
            Self::Update { region, offset, value } => (b'U', [region, offset, value]),
            Self::Flush { ticket } => (b'F', [ticket, 0, 0]),
        };
        let mut bytes = [0; 25];
        bytes[0] = kind;
        for (place, number) in bytes[1..].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Reads the next frame. Returns none at the end, and for other bytes.
    pub(crate) fn read(stream: &mut UnixStream) -> Option<Self> {
        let mut bytes = [0; 25];
        stream.read_exact(&mut bytes).ok()?;
        let number = |i: usize| u64::from_le_bytes(bytes[1 + 8 * i..][..8].try_into().expect("8 bytes"));
        let [a, b, c] = [number(0), number(1), number(2)];
        match bytes[0] {
            b'W' => Some(Self::Write { region: a, offset: b, len: c }),
            b'U' => Some(Self::Update { region: a, offset: b, value: c }),
            b'F' => Some(Self::Flush { ticket: a }),
            _ => None,
        }
    }
}
