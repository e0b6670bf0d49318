//! What the two ends of a handshake say: who wants what, and why not.

use crate::protocol::frame;
use mscclpp_net::key::Nonce;
use mscclpp_net::wire::{MAX_TEXT, Malformed, Reader, put_text};
use sha2::{Digest, Sha256};

/// The version of all that follows the handshake.
///
/// 2: a rank that joins at an address names the job of its launcher, and may be told that it is another.
pub(crate) const PROTOCOL_VERSION: u32 = 2;

pub(crate) type JobId = [u8; 16];

/// A job that meets at an address, as its launcher calls it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LaunchedJob {
    pub(crate) name: String,
    /// Follows from the name.
    pub(crate) id: JobId,
}

impl LaunchedJob {
    pub(crate) fn new(name: String) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"mscclpp-bootstrap launched job\0");
        hash.update(name.as_bytes());
        let digest = hash.finalize();
        Self { name, id: std::array::from_fn(|i| digest[i]) }
    }
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To join the job at rank 0.
    Join,
    /// To be the edge between a rank and its parent.
    Tree,
    /// To exchange messages with a peer.
    Peer,
}

/// What the initiator says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) version: u32,
    pub(crate) secret: bool,
    pub(crate) purpose: Purpose,
    /// To join at an address: that of the [`LaunchedJob`], or zero if the launcher has given it no name. Else the job's own.
    pub(crate) job: JobId,
    pub(crate) n_ranks: u32,
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) nonce: Nonce,
}

impl Hello {
    pub(crate) fn payload(&self) -> Vec<u8> {
        let mut out = self.version.to_le_bytes().to_vec();
        out.push(u8::from(self.secret));
        out.push(match self.purpose {
            Purpose::Join => 1,
            Purpose::Tree => 2,
            Purpose::Peer => 3,
        });
        out.extend(self.job);
        out.extend(self.n_ranks.to_le_bytes());
        out.extend(self.from.to_le_bytes());
        out.extend(self.to.to_le_bytes());
        out.extend(self.nonce);
        out
    }

    pub(crate) fn parse(payload: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(payload);
        let hello = Self {
            version: reader.u32()?,
            secret: reader.flag()?,
            purpose: match reader.u8()? {
                1 => Purpose::Join,
                2 => Purpose::Tree,
                3 => Purpose::Peer,
                _ => return Err(Malformed("a connection is for no known purpose")),
            },
            job: reader.array()?,
            n_ranks: reader.u32()?,
            from: reader.u32()?,
            to: reader.u32()?,
            nonce: reader.array()?,
        };
        reader.end()?;
        Ok(hello)
    }
}

/// Why a member that proved itself is not let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// The two sides differ in something; what the responder has, with its address as it knows it.
    Mismatch { what: String, theirs: String },
    /// The rank came already, from this address.
    Duplicate { first: String },
    /// All ranks are there.
    Complete { n_ranks: u32 },
    /// The one asked for is not here; somebody else listens.
    WrongPlace { here: u32 },
    /// Another job of a launcher meets here; what it is called.
    OtherJob { theirs: String },
}

impl Rejection {
    pub(crate) fn payload(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Mismatch { what, theirs } => {
                out.push(1);
                put_text(&mut out, what);
                put_text(&mut out, theirs);
            }
            Self::Duplicate { first } => {
                out.push(2);
                put_text(&mut out, first);
            }
            Self::Complete { n_ranks } => {
                out.push(3);
                out.extend(n_ranks.to_le_bytes());
            }
            Self::WrongPlace { here } => {
                out.push(4);
                out.extend(here.to_le_bytes());
            }
            Self::OtherJob { theirs } => {
                out.push(5);
                put_text(&mut out, theirs);
            }
        }
        out
    }

    pub(crate) fn parse(payload: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(payload);
        let rejection = match reader.u8()? {
            1 => Self::Mismatch { what: reader.text()?, theirs: reader.text()? },
            2 => Self::Duplicate { first: reader.text()? },
            3 => Self::Complete { n_ranks: reader.u32()? },
            4 => Self::WrongPlace { here: reader.u32()? },
            5 => Self::OtherJob { theirs: reader.text()? },
            _ => return Err(Malformed("a rejection is for no known reason")),
        };
        reader.end()?;
        Ok(rejection)
    }
}

const _: () =
    assert!(2 * (MAX_TEXT + 2) + 1 + 32 <= frame::MAX_HANDSHAKE, "a rejection fits a handshake's frame");
