//! Collectives over point-to-point messages: up a binary tree and down again, in `2 log2 n` steps, sending each message
//! to at most three neighbours. The same code runs over sockets and over the queues of
//! [`LocalBootstrap`](crate::LocalBootstrap).
//!
//! # When a rank has left
//! A rank that finds a neighbour gone sends the error on, in place of data, so that no rank waits for what can no longer
//! come: up to the root and from there down to all; below a rank whose parent is gone, down. All ranks learn of it, and
//! name the rank that left.

use std::collections::BTreeMap;

use crate::inbox::Channel;
use crate::protocol::tree;
use crate::{Error, Party, Result};
use mscclpp_net::wire::{Malformed, Reader};

/// Moves the messages of collectives.
pub(crate) trait Carrier {
    fn rank(&self) -> usize;
    fn n_ranks(&self) -> usize;
    /// Queues a message; does not wait for it to be sent. One to a rank that is gone is lost.
    fn post(&self, peer: usize, channel: Channel, tag: u64, bytes: Vec<u8>);
    /// Waits for a message.
    fn take(&self, peer: usize, channel: Channel, tag: u64) -> Result<Vec<u8>>;
}

/// Which collective a message belongs to. Ranks that call different ones, or in another order, find out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Call {
    operation: Operation,
    number: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
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

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.operation {
            Operation::AllGather => write!(f, "all_gather"),
            Operation::Barrier => write!(f, "barrier"),
            Operation::Broadcast { root } => write!(f, "broadcast from rank {root}"),
        }?;
        write!(f, " as its collective call number {}", self.number)
    }
}

const DATA: u8 = 0;
const CLOSED: u8 = 1;
/// The bytes before the data: operation, root, number, status, rank that left.
const HEADER: usize = 1 + 4 + 8 + 1 + 4;

/// One collective call at a time.
pub(crate) struct Collectives {
    next: u64,
}

impl Collectives {
    pub(crate) fn new() -> Self {
        Self { next: 0 }
    }

    fn begin(&mut self, operation: Operation) -> Call {
        let number = self.next;
        self.next += 1;
        Call { operation, number }
    }

    pub(crate) fn barrier(&mut self, carrier: &impl Carrier) -> Result<()> {
        let call = self.begin(Operation::Barrier);
        let mut nothing = Vec::new();
        let up = gather_up(carrier, call, &mut nothing);
        spread_down(carrier, call, up, nothing).map(drop)
    }

    pub(crate) fn all_gather(&mut self, carrier: &impl Carrier, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let call = self.begin(Operation::AllGather);
        let (rank, n) = (carrier.rank(), carrier.n_ranks());
        let mut gathered = Vec::with_capacity(12 + bytes.len());
        put_contribution(&mut gathered, rank, bytes);
        let up = gather_up(carrier, call, &mut gathered);
        let all = spread_down(carrier, call, up, gathered)?;
        contributions(&all, n).map_err(|e| broken(tree::parent(rank).unwrap_or(0), e))
    }

    pub(crate) fn broadcast(
        &mut self,
        carrier: &impl Carrier,
        bytes: &mut Vec<u8>,
        root: usize,
    ) -> Result<()> {
        let call = self.begin(Operation::Broadcast { root: root as u32 });
        let rank = carrier.rank();
        // The data first goes up from its root to rank 0; the ranks beside that way only wait for it to come down.
        let source = tree::child_towards(rank, root);
        let carried = if rank == root {
            Ok(bytes.clone())
        } else if let Some(child) = source {
            expect(carrier, child, call)
        } else {
            Ok(Vec::new())
        };
        if let (true, Some(parent)) = (rank == root || source.is_some(), tree::parent(rank)) {
            let bytes = match &carried {
                Ok(data) => call.message(data),
                Err(error) => call.departure(error)?,
            };
            carrier.post(parent, Channel::Tree, 0, bytes);
        }
        let (up, at_root) = match carried {
            Ok(data) => (Ok(()), data),
            Err(error) => (Err(error), Vec::new()),
        };
        *bytes = spread_down(carrier, call, up, at_root)?;
        Ok(())
    }
}

/// Adds to `gathered` what the children send, and sends all of it on to the parent.
fn gather_up(carrier: &impl Carrier, call: Call, gathered: &mut Vec<u8>) -> Result<()> {
    let mut outcome = Ok(());
    for child in tree::children(carrier.rank(), carrier.n_ranks()) {
        match expect(carrier, child, call) {
            Ok(body) => gathered.extend_from_slice(&body),
            // The other child's message is still taken: it belongs to this call.
            Err(error) if is_departure(&error) => outcome = Err(error),
            Err(error) => return Err(error),
        }
    }
    if let Some(parent) = tree::parent(carrier.rank()) {
        let bytes = match &outcome {
            Ok(()) => call.message(gathered),
            Err(error) => call.departure(error)?,
        };
        carrier.post(parent, Channel::Tree, 0, bytes);
    }
    outcome
}

/// The way down: the root begins with `at_root`, or with what failed on the way up; everyone passes it on.
fn spread_down(carrier: &impl Carrier, call: Call, up: Result<()>, at_root: Vec<u8>) -> Result<Vec<u8>> {
    let down = match (tree::parent(carrier.rank()), up) {
        (None, up) => up.map(|()| at_root),
        (Some(_), Err(error)) if !is_departure(&error) => Err(error),
        // A departure met on the way up comes back down as the same error, unless the parent is gone.
        (Some(parent), _) => expect(carrier, parent, call),
    };
    let message = match &down {
        Ok(body) => call.message(body),
        Err(error) => call.departure(error)?,
    };
    for child in tree::children(carrier.rank(), carrier.n_ranks()) {
        carrier.post(child, Channel::Tree, 0, message.clone());
    }
    down
}

/// Any error but this one ends the whole job, of which all hear by other means; collectives do not carry it.
fn is_departure(error: &Error) -> bool {
    matches!(error, Error::PeerClosed { .. })
}

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

    fn message(self, body: &[u8]) -> Vec<u8> {
        let mut out = self.header(DATA, 0);
        out.reserve_exact(body.len());
        out.extend_from_slice(body);
        out
    }

    /// What to send in place of data when a rank has left; gives any other error back.
    fn departure(self, error: &Error) -> Result<Vec<u8>> {
        match error {
            Error::PeerClosed { rank } => Ok(self.header(CLOSED, *rank)),
            other => Err(other.clone()),
        }
    }
}

/// Waits for the message of this call from a neighbour.
fn expect(carrier: &impl Carrier, peer: usize, call: Call) -> Result<Vec<u8>> {
    let mut message = carrier.take(peer, Channel::Tree, 0)?;
    let (theirs, status, rank) = parse_header(&message).map_err(|e| broken(peer, e))?;
    if theirs != call {
        return Err(Error::Mismatch {
            what: "collective calls".to_owned(),
            ours: Box::new(Party { rank: carrier.rank(), address: None, value: call.to_string() }),
            theirs: Box::new(Party { rank: peer, address: None, value: theirs.to_string() }),
        });
    }
    match status {
        DATA => {
            message.drain(..HEADER);
            Ok(message)
        }
        _ => Err(Error::PeerClosed { rank: if rank < carrier.n_ranks() { rank } else { peer } }),
    }
}

fn parse_header(message: &[u8]) -> Result<(Call, u8, usize), Malformed> {
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

fn put_contribution(out: &mut Vec<u8>, rank: usize, bytes: &[u8]) {
    out.extend((rank as u32).to_le_bytes());
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn contributions(gathered: &[u8], n: usize) -> Result<Vec<Vec<u8>>, Malformed> {
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

fn broken(peer: usize, error: Malformed) -> Error {
    Error::PeerLost {
        rank: peer,
        detail: format!("it sent a collective message that breaks the protocol: {error}"),
    }
}

/// A barrier among some ranks, along a tree of their own. `members` is sorted and contains the caller.
pub(crate) fn group_barrier(carrier: &impl Carrier, members: &[usize], tag: u64) -> Result<()> {
    let n = members.len();
    let at = members.binary_search(&carrier.rank()).unwrap_or(0);
    let receive = |index: usize| -> Result<()> {
        let message = carrier.take(members[index], Channel::Group, tag)?;
        let mut reader = Reader::new(&message);
        match reader.u8().and_then(|status| Ok((status, reader.u32()?))) {
            Ok((DATA, _)) => Ok(()),
            Ok((_, rank)) => Err(Error::PeerClosed { rank: rank as usize }),
            Err(error) => Err(broken(members[index], error)),
        }
    };
    let post = |index: usize, outcome: &Result<()>| -> Result<()> {
        let (status, rank) = match outcome {
            Ok(()) => (DATA, 0),
            Err(Error::PeerClosed { rank }) => (CLOSED, *rank as u32),
            Err(error) => return Err(error.clone()),
        };
        let mut message = vec![status];
        message.extend(rank.to_le_bytes());
        carrier.post(members[index], Channel::Group, tag, message);
        Ok(())
    };
    let mut outcome = Ok(());
    for child in tree::children(at, n) {
        let received = receive(child);
        outcome = outcome.and(received);
    }
    if let Some(parent) = tree::parent(at) {
        post(parent, &outcome)?;
        outcome = receive(parent);
    }
    for child in tree::children(at, n) {
        post(child, &outcome)?;
    }
    outcome
}
