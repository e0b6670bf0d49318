//! The content of the [handshake](crate::handshake) between two ends of a TCP connection: the endpoint it is for, and
//! why it is refused.
//!
//! ```text
//! Hello   magic 4 | version 4 | nonce 32 | endpoint 16 | from 16 | link 8 | purpose 1
//! Accept  nothing
//! Reject  reason 1, and of another version: version 4
//! Refuse  reason
//! ```
//! The key is the endpoint's. In every version a hello begins with the same fields, up to the endpoint, so that both
//! sides can prove themselves even if their versions differ, and the error for a mismatch names both versions.

use crate::{
    frame::FrameReader,
    handshake::{Claim, Failure, Frame, Initiator, Responder, Session},
    key::{Key, Nonce},
    wire::{Malformed, Reader, Wire},
    wire_enum, wire_struct,
};

use super::{address::Name, protocol::Protocol};

/// The largest payload of a frame: the most that a stranger can make this side keep.
const MAX_PAYLOAD: usize = 256;

/// Makes a reader for the frames of a handshake.
pub(super) fn reader() -> FrameReader {
    FrameReader::new(MAX_PAYLOAD)
}

/// The purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A link, which lives as long as the two ends do.
    Link,
    /// A connection that carries a transport's data.
    Data,
}

wire_enum!(Purpose or "a connection is for no known purpose" { 1 => Link, 2 => Data });

/// The request of the side that connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    /// The endpoint wanted.
    pub(super) endpoint: Name,
    /// The endpoint of the side that connects. This is claimed, not proved: any process that knows the key of the
    /// wanted endpoint may claim it.
    pub(super) from: Name,
    /// The number of the link, one for each link of `from`. Data connections have the number of their link.
    pub(super) link: u64,
    pub(super) purpose: Purpose,
}

wire_struct!(Request { endpoint, from, link, purpose });

impl Request {
    /// Returns whether both requests were made for the same link.
    pub(super) fn is_of_the_link_of(&self, other: &Self) -> bool {
        (self.endpoint, self.from, self.link) == (other.endpoint, other.from, other.link)
    }

    /// Returns whether this asks for a link from the endpoint that `theirs` leads to, back to the one that `theirs`
    /// comes from.
    pub(super) fn is_way_back_of(&self, theirs: &Self) -> bool {
        (self.from, self.endpoint) == (theirs.endpoint, theirs.from)
    }

    /// Returns the hello for this request. `nonce` must never be used again.
    pub(super) fn hello(&self, protocol: &Protocol, nonce: Nonce) -> Vec<u8> {
        let mut hello = protocol.begin();
        nonce.put(&mut hello);
        self.put(&mut hello);
        hello
    }
}

/// The reasons why a handshake ended without a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("it does not speak this protocol")]
    Foreign,
    #[error(
        "it speaks version {theirs} of the protocol, this side version {ours}; use one version of the library"
    )]
    Version { theirs: u32, ours: u32 },
    #[error("it does not know the endpoint: that was closed, or is elsewhere")]
    Unknown,
    #[error("its key is not ours")]
    Key,
    #[error("it belongs to no link here; the link was closed meanwhile")]
    NoLink,
    #[error("it has as many connections as it takes")]
    Full,
}

impl Refusal {
    fn code(self) -> u8 {
        match self {
            Self::Foreign => 1,
            Self::Version { .. } => 2,
            Self::Unknown => 3,
            Self::Key => 4,
            Self::NoLink => 5,
            Self::Full => 6,
        }
    }

    /// Returns the bytes that tell a member why it is rejected.
    fn rejection(self) -> Vec<u8> {
        let version = if let Self::Version { ours, .. } = self { &ours.to_le_bytes()[..] } else { &[] };
        [&[self.code()], version].concat()
    }

    /// Reads why a member rejects this side.
    fn of_rejection(said: &[u8], ours: u32) -> Result<Self, Malformed> {
        let mut reader = Reader::new(said);
        let refusal = match reader.take::<u8>()? {
            2 => Self::Version { theirs: reader.take()?, ours },
            5 => Self::NoLink,
            6 => Self::Full,
            _ => Self::Foreign,
        };
        reader.end()?;
        Ok(refusal)
    }
}

impl From<Malformed> for Refusal {
    fn from(_: Malformed) -> Self {
        Self::Foreign
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Key | Failure::Refused(4) => Self::Key,
            // Without a proof this is only a hint for the error message.
            Failure::Refused(3) => Self::Unknown,
            Failure::Malformed(_) | Failure::Refused(_) => Self::Foreign,
            Failure::Full(_) => Self::Full,
        }
    }
}

/// Takes the answer to the hello, on the side that connected and speaks this `version`.
pub(super) fn conclude(version: u32, initiator: Initiator, answer: &Frame) -> Result<Session, Refusal> {
    let session = initiator.session();
    let answer = initiator.conclude(answer)?;
    if answer.accepted { Ok(session) } else { Err(Refusal::of_rejection(answer.said, version)?) }
}

/// Takes the hello, on the side that listened. `key_of` returns the key of an endpoint; `admit` decides about a peer
/// that has proved itself. The returned bytes are to be sent in either case.
pub(super) fn answer(
    protocol: &Protocol,
    responder: &Responder,
    hello: &Frame,
    key_of: impl FnOnce(&Name) -> Option<Key>,
    admit: impl FnOnce(&Request) -> Result<(), Refusal>,
) -> (Vec<u8>, Result<(Request, Session), Refusal>) {
    let proved = || -> Result<_, Refusal> {
        let claim = Claim::of(hello)?;
        let mut reader = Reader::new(claim.said);
        let version = protocol.version_of(&mut reader)?;
        reader.take::<Nonce>()?;
        let request = reader.rest();
        let key = key_of(&reader.take()?).ok_or(Refusal::Unknown)?;
        Ok((responder.verify(&key, &claim)?, version, request))
    };
    let (verified, theirs, request) = match proved() {
        Ok(proved) => proved,
        Err(refusal) => return (Responder::refusal(refusal.code()), Err(refusal)),
    };
    let (session, ours) = (verified.session(), protocol.version);
    let asked = if theirs == ours { Ok(()) } else { Err(Refusal::Version { theirs, ours }) };
    let asked = asked.and_then(|()| Ok(Request::parse(request)?));
    match asked.and_then(|request| admit(&request).map(|()| request)) {
        Ok(request) => (verified.accept(&[]), Ok((request, session))),
        Err(refusal) => (verified.reject(&refusal.rejection()), Err(refusal)),
    }
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
