//! The messages of collectives: which call each belongs to, and what it carries.

use std::collections::BTreeMap;
use std::fmt;

use crate::{Error, Result};
use mscclpp_net::wire::{Malformed, Reader};

/// Which collective a message belongs to. Ranks that call different ones, or in another order, find out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) operation: Operation,
    pub(super) number: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    AllGather,
    Barrier,
    Broadcast { root: u32 },
}

impl Operation {
    fn code(self) -> (u8, u32) {
        match self {
            Self::AllGather => (1, 0),
            Self::Barrier => (2, 0),
            Self::Broadcast { root } => (3, root),
        }
    }

    fn from_code(code: (u8, u32)) -> Result<Self, Malformed> {
        match code {
            (1, 0) => Ok(Self::AllGather),
            (2, 0) => Ok(Self::Barrier),
            (3, root) => Ok(Self::Broadcast { root }),
            _ => Err(Malformed("it is of no known collective")),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllGather => write!(f, "all_gather"),
            Self::Barrier => write!(f, "barrier"),
            Self::Broadcast { root } => write!(f, "broadcast from rank {root}"),
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.number + 1;
        write!(f, "{} (call {number} of barrier, all_gather and broadcast)", self.operation)
    }
}

pub(super) const DATA: u8 = 0;
pub(super) const CLOSED: u8 = 1;
/// The bytes before the data: operation, root, number, status, rank that left.
pub(super) const HEADER: usize = 1 + 4 + 8 + 1 + 4;

impl Call {
    fn header(self, status: u8, rank: usize) -> Vec<u8> {
        let (code, root) = self.operation.code();
        let mut out = vec![code];
        out.extend(root.to_le_bytes());
        out.extend(self.number.to_le_bytes());
        out.push(status);
        out.extend((rank as u32).to_le_bytes());
        out
    }

    pub(super) fn message(self, body: &[u8]) -> Vec<u8> {
        let mut out = self.header(DATA, 0);
        out.reserve_exact(body.len());
        out.extend_from_slice(body);
        out
    }

    /// What to send in place of data when a rank has left; gives any other error back.
    pub(super) fn departure(self, error: &Error) -> Result<Vec<u8>> {
        match error {
            Error::PeerClosed { rank } => Ok(self.header(CLOSED, *rank)),
            other => Err(other.clone()),
        }
    }
}

pub(super) fn parse_header(message: &[u8]) -> Result<(Call, u8, usize), Malformed> {
    let mut reader = Reader::new(message);
    let operation = Operation::from_code((reader.u8()?, reader.u32()?))?;
    let call = Call { operation, number: reader.u64()? };
    Ok((call, reader.u8()?, reader.u32()? as usize))
}

/// Parses a message in every way one can be, for the fuzz targets.
pub(crate) fn check(message: &[u8]) {
    if parse_header(message).is_ok() {
        let _ = contributions(&message[HEADER..], 2);
    }
}

pub(super) fn put_contribution(out: &mut Vec<u8>, rank: usize, bytes: &[u8]) {
    out.extend((rank as u32).to_le_bytes());
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}

pub(super) fn contributions(gathered: &[u8], n: usize) -> Result<Vec<Vec<u8>>, Malformed> {
    let mut found = BTreeMap::new();
    let mut reader = Reader::new(gathered);
    while !reader.rest().is_empty() {
        let rank = reader.u32()? as usize;
        let length = usize::try_from(reader.u64()?).map_err(|_| Malformed("a contribution is too long"))?;
        found.insert(rank, reader.bytes(length)?.to_vec());
    }
    if found.len() != n || found.keys().next_back() != Some(&(n - 1)) {
        return Err(Malformed("contributions of some ranks are missing"));
    }
    Ok(found.into_values().collect())
}
