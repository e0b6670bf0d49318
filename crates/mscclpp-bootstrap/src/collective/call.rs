//! The messages of collectives: which call each belongs to, and what it carries.

use std::collections::BTreeMap;
use std::fmt;

use super::exchange::{Envelope, Exchange, TreePosition, broken};
use crate::protocol::tree;
use crate::{Error, Party, Result};
use mscclpp_net::wire::{Malformed, Reader, Wire};

/// The collective that a message belongs to, and the rank whose call it is. Ranks notice by it when they call
/// different collectives, or in a different order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    pub operation: Operation,
    pub number: u64,
    pub rank: usize,
    pub n: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    AllGather,
    Barrier,
    Broadcast { root: u32 },
}

impl Operation {
    pub fn name(self) -> &'static str {
        match self {
            Self::AllGather => "all_gather",
            Self::Barrier => "barrier",
            Self::Broadcast { .. } => "broadcast",
        }
    }
}

impl Wire for Operation {
    fn put(&self, out: &mut Vec<u8>) {
        let code = match *self {
            Self::AllGather => (1_u8, 0),
            Self::Barrier => (2, 0),
            Self::Broadcast { root } => (3, root),
        };
        code.put(out);
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        match reader.take::<(u8, u32)>()? {
            (1, 0) => Ok(Self::AllGather),
            (2, 0) => Ok(Self::Barrier),
            (3, root) => Ok(Self::Broadcast { root }),
            _ => Err(Malformed("it is of no known collective")),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        if let Self::Broadcast { root } = self { write!(f, " from rank {root}") } else { Ok(()) }
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
/// The bytes before the data: operation and root, number, status, and the rank that left if the status says that one did.
type Header = (Operation, u64, u8, usize);
/// The number of bytes of a [`Header`].
const HEADER: usize = 1 + 4 + 8 + 1 + 4;

impl Call {
    /// Makes the exchange of this rank, which contributes `own`.
    pub fn exchange(self, own: Vec<u8>) -> Exchange<Self> {
        let Self { rank, n, .. } = self;
        let children: Vec<usize> = tree::children(rank, n).collect();
        let (senders, sends) = match self.operation {
            Operation::AllGather | Operation::Barrier => (children.clone(), true),
            // The data goes up from its root to rank 0. Ranks that are not on this path only wait for it to come
            // down.
            Operation::Broadcast { root } => {
                let source = tree::child_towards(rank, root as usize);
                (source.into_iter().collect(), source.is_some() || rank == root as usize)
            }
        };
        Exchange::new(self, TreePosition { parent: tree::parent(rank), senders, sends, children }, own)
    }

    fn header(self, status: u8, rank: usize) -> Vec<u8> {
        (self.operation, self.number, status, rank).to_bytes()
    }
}

impl Envelope for Call {
    fn seal(&self, part: &Result<Vec<u8>>) -> Result<Vec<u8>> {
        match part {
            Ok(body) => {
                let mut out = self.header(DATA, 0);
                out.reserve_exact(body.len());
                out.extend_from_slice(body);
                Ok(out)
            }
            Err(error) => Ok(self.header(CLOSED, departed(error)?)),
        }
    }

    fn open(&self, peer: usize, mut message: Vec<u8>) -> Result<Vec<u8>> {
        let header = Reader::new(&message).take::<Header>();
        let (operation, number, status, rank) = header.map_err(|error| broken(peer, error))?;
        if (operation, number) != (self.operation, self.number) {
            let theirs = Self { operation, number, rank: peer, n: self.n };
            let party = |call: Self| Party { rank: call.rank, address: None, value: call.to_string() };
            return Err(Error::Mismatch {
                what: "collective calls".to_owned(),
                ours: Box::new(party(*self)),
                theirs: Box::new(party(theirs)),
            });
        }
        match status {
            DATA => {
                message.drain(..HEADER);
                Ok(message)
            }
            _ => Err(Error::PeerClosed { rank: if rank < self.n { rank } else { peer } }),
        }
    }
}

/// Returns the rank that left, if the error says that one did; otherwise returns the error.
pub(super) fn departed(error: &Error) -> Result<usize> {
    match error {
        Error::PeerClosed { rank } => Ok(*rank),
        other => Err(other.clone()),
    }
}

/// Parses a message in every possible way, for the fuzz targets.
pub fn check(message: &[u8]) {
    if Reader::new(message).take::<Header>().is_ok() {
        let _ = contributions(&message[HEADER..], 2);
    }
}

/// Encodes the contribution of a rank to an all_gather.
pub fn contribution(rank: usize, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(12 + bytes.len());
    (rank, bytes.len() as u64).put(&mut out);
    out.extend_from_slice(bytes);
    out
}

pub fn contributions(gathered: &[u8], n: usize) -> Result<Vec<Vec<u8>>, Malformed> {
    let mut found = BTreeMap::new();
    let mut reader = Reader::new(gathered);
    while !reader.rest().is_empty() {
        let (rank, length) = reader.take::<(usize, u64)>()?;
        let length = usize::try_from(length).map_err(|_| Malformed("a contribution is too long"))?;
        found.insert(rank, reader.bytes(length)?.to_vec());
    }
    if found.len() != n || found.keys().next_back() != Some(&(n - 1)) {
        return Err(Malformed("contributions of some ranks are missing"));
    }
    Ok(found.into_values().collect())
}
