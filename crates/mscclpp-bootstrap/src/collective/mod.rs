//! Collectives over point-to-point messages: up a binary tree and down again, in `2 log2 n` steps, sending each message
//! to at most three neighbours. The same code runs over sockets and over the queues of
//! [`LocalBootstrap`](crate::LocalBootstrap).
//!
//! # When a rank has left
//! A rank that finds a neighbour gone sends the error on, in place of data, so that no rank waits for what can no longer
//! come: up to the root and from there down to all; below a rank whose parent is gone, down. All ranks learn of it, and
//! name the rank that left.
//!
//! # When time is up
//! A rank whose part has gone up cannot take it back: the others go on with it. So a call whose time is up stays as it is,
//! and the same call, made again, goes on from there.

mod call;

pub(crate) use call::check;

use call::{CLOSED, Call, DATA, HEADER, Operation, contributions, parse_header, put_contribution};

use crate::inbox::{Channel, Stream, Wait};
use crate::member::Member;
use crate::protocol::tree;
use crate::{Error, Party, Result};
use mscclpp_net::wire::{Malformed, Reader};

/// Moves the messages of a rank.
pub(crate) trait Carrier {
    fn member(&self) -> &Member;
    fn rank(&self) -> usize {
        self.member().rank
    }
    fn n_ranks(&self) -> usize {
        self.member().n_ranks
    }
    /// Queues a message; does not wait for it to be sent. One to a rank that is gone is lost.
    fn post(&self, peer: usize, channel: Channel, tag: u64, bytes: Vec<u8>);
    /// Waits for a message; `None` when the time of the wait is up. `what` says what is waited for.
    fn take(&self, stream: Stream, wait: &mut Wait, what: &dyn Fn() -> String) -> Result<Option<Vec<u8>>>;
    /// Ends the job for all ranks.
    fn fail(&self, error: &Error);
}

/// One collective call at a time.
pub(crate) struct Collectives {
    next: u64,
    /// A call whose time was up. The next call must be the same, and goes on with it.
    unfinished: Option<Gathering>,
}

/// A call in which something goes up to the root from all ranks and comes down to all again.
struct Gathering {
    call: Call,
    /// What has come from below, and this rank's own.
    gathered: Vec<u8>,
    /// The children whose part has not come.
    awaited: Vec<usize>,
    /// The departure of a rank, if one was met on the way up.
    up: Result<()>,
    sent_up: bool,
}

/// What became of a step of a call.
enum Step<T> {
    Done(T),
    /// Time is up; the error says so.
    Late(Error),
}

impl Collectives {
    pub(crate) fn new() -> Self {
        Self { next: 0, unfinished: None }
    }

    fn begin(&mut self, operation: Operation) -> Result<Call> {
        if let Some(Gathering { call, .. }) = &self.unfinished {
            return Err(Error::InvalidArgument(format!(
                "{operation}: {} of this rank timed out and is unfinished; repeat that call first, as the other ranks \
                 are in it",
                call.operation
            )));
        }
        let number = self.next;
        self.next += 1;
        Ok(Call { operation, number })
    }

    pub(crate) fn barrier(&mut self, carrier: &impl Carrier, wait: &mut Wait) -> Result<()> {
        self.gather(carrier, wait, Operation::Barrier, Vec::new()).map(drop)
    }

    pub(crate) fn all_gather(
        &mut self,
        carrier: &impl Carrier,
        wait: &mut Wait,
        bytes: &[u8],
    ) -> Result<Vec<Vec<u8>>> {
        let (rank, n) = (carrier.rank(), carrier.n_ranks());
        let mut own = Vec::with_capacity(12 + bytes.len());
        put_contribution(&mut own, rank, bytes);
        let all = self.gather(carrier, wait, Operation::AllGather, own)?;
        contributions(&all, n).map_err(|e| broken(tree::parent(rank).unwrap_or(0), e))
    }

    /// Begins a call, or goes on with the one whose time was up. That one has its `own` part already.
    fn gather(
        &mut self,
        carrier: &impl Carrier,
        wait: &mut Wait,
        operation: Operation,
        own: Vec<u8>,
    ) -> Result<Vec<u8>> {
        let mut gathering = match self.unfinished.take_if(|unfinished| unfinished.call.operation == operation)
        {
            Some(unfinished) => unfinished,
            None => Gathering {
                call: self.begin(operation)?,
                gathered: own,
                awaited: tree::children(carrier.rank(), carrier.n_ranks()).collect(),
                up: Ok(()),
                sent_up: false,
            },
        };
        match gathering.advance(carrier, wait)? {
            Step::Done(all) => Ok(all),
            Step::Late(error) => {
                self.unfinished = Some(gathering);
                Err(error)
            }
        }
    }

    pub(crate) fn broadcast(
        &mut self,
        carrier: &impl Carrier,
        wait: &mut Wait,
        bytes: &mut Vec<u8>,
        root: usize,
    ) -> Result<()> {
        let call = self.begin(Operation::Broadcast { root: root as u32 })?;
        let rank = carrier.rank();
        // The data first goes up from its root to rank 0; the ranks beside that way only wait for it to come down.
        let source = tree::child_towards(rank, root);
        let carried = if rank == root {
            Ok(bytes.clone())
        } else if let Some(child) = source {
            in_time(expect(carrier, child, call, wait))
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
        let down = match tree::parent(rank) {
            None => carried,
            Some(_) if carried.as_ref().is_err_and(|error| !is_departure(error)) => carried,
            // A departure met on the way up comes back down as the same error, unless the parent is gone.
            Some(parent) => in_time(expect(carrier, parent, call, wait)),
        };
        pass_down(carrier, call, &down)?;
        *bytes = down?;
        Ok(())
    }
}

impl Gathering {
    /// Takes what the children send, sends all of it on to the parent, and passes on what comes down: the root begins with
    /// all of it, or with what failed on the way up.
    fn advance(&mut self, carrier: &impl Carrier, wait: &mut Wait) -> Result<Step<Vec<u8>>> {
        let call = self.call;
        let mut late = None;
        for child in std::mem::take(&mut self.awaited) {
            match expect(carrier, child, call, wait) {
                Ok(Step::Done(body)) => self.gathered.extend_from_slice(&body),
                Ok(Step::Late(error)) => {
                    self.awaited.push(child);
                    late.get_or_insert(error);
                }
                // The other child's message is still taken: it belongs to this call.
                Err(error) if is_departure(&error) => self.up = Err(error),
                Err(error) => return Err(error),
            }
        }
        if let Some(late) = late {
            return Ok(Step::Late(late.missing_too(&leaves(&self.awaited, carrier.n_ranks()))));
        }
        let down = match tree::parent(carrier.rank()) {
            None => match std::mem::replace(&mut self.up, Ok(())) {
                Ok(()) => Ok(std::mem::take(&mut self.gathered)),
                Err(departure) => Err(departure),
            },
            Some(parent) => {
                if !std::mem::replace(&mut self.sent_up, true) {
                    let bytes = match &self.up {
                        Ok(()) => call.message(&self.gathered),
                        Err(departure) => call.departure(departure)?,
                    };
                    carrier.post(parent, Channel::Tree, 0, bytes);
                }
                // A departure met on the way up comes back down as the same error, unless the parent is gone.
                match expect(carrier, parent, call, wait) {
                    Ok(Step::Late(error)) => return Ok(Step::Late(error)),
                    Ok(Step::Done(all)) => Ok(all),
                    Err(error) => Err(error),
                }
            }
        };
        pass_down(carrier, call, &down)?;
        down.map(Step::Done)
    }
}

/// Sends the children what came down, or the departure that came in its place.
fn pass_down(carrier: &impl Carrier, call: Call, down: &Result<Vec<u8>>) -> Result<()> {
    let message = match down {
        Ok(body) => call.message(body),
        Err(error) => call.departure(error)?,
    };
    for child in tree::children(carrier.rank(), carrier.n_ranks()) {
        carrier.post(child, Channel::Tree, 0, message.clone());
    }
    Ok(())
}

/// Any error but this one ends the whole job, of which all hear by other means; collectives do not carry it.
fn is_departure(error: &Error) -> bool {
    matches!(error, Error::PeerClosed { .. })
}

/// What a wait came to that has no end but a message or an error.
fn in_time<T>(outcome: Result<Step<T>>) -> Result<T> {
    match outcome? {
        Step::Done(value) => Ok(value),
        Step::Late(error) => Err(error),
    }
}

/// Those of `ranks` that nobody is below: what they have not sent is missing because of them, and not of others.
fn leaves(ranks: &[usize], n: usize) -> Vec<usize> {
    ranks.iter().copied().filter(|&rank| tree::children(rank, n).next().is_none()).collect()
}

/// Whose message rank `me` waits for, and who may be behind that.
fn awaited(peer: usize, me: usize, n: usize) -> String {
    const SHOWN: usize = 6;
    if tree::parent(me) == Some(peer) {
        return format!("rank {peer}, which waits for others");
    }
    let below: Vec<String> = tree::below(peer, n).take(SHOWN + 1).map(|rank| rank.to_string()).collect();
    match below.len() {
        0 => format!("rank {peer}"),
        1..=SHOWN => format!("rank {peer}, or one behind it ({})", below.join(", ")),
        _ => format!("rank {peer}, or one behind it ({}, ...)", below[..SHOWN].join(", ")),
    }
}

/// Waits for the message of this call from a neighbour.
fn expect(carrier: &impl Carrier, peer: usize, call: Call, wait: &mut Wait) -> Result<Step<Vec<u8>>> {
    let (me, n) = (carrier.rank(), carrier.n_ranks());
    let stream = Stream { peer, channel: Channel::Tree, tag: 0 };
    let message = carrier.take(stream, wait, &|| format!("{}: {}", awaited(peer, me, n), call.operation))?;
    let Some(mut message) = message else {
        let operation = format!("{}, waiting for {},", call.operation, awaited(peer, me, n));
        return Ok(Step::Late(wait.timed_out(operation, Vec::new())));
    };
    let (theirs, status, rank) = parse_header(&message).map_err(|e| broken(peer, e))?;
    if theirs != call {
        return Err(Error::Mismatch {
            what: "collective calls".to_owned(),
            ours: Box::new(Party { rank: me, address: None, value: call.to_string() }),
            theirs: Box::new(Party { rank: peer, address: None, value: theirs.to_string() }),
        });
    }
    match status {
        DATA => {
            message.drain(..HEADER);
            Ok(Step::Done(message))
        }
        _ => Err(Error::PeerClosed { rank: if rank < n { rank } else { peer } }),
    }
}

fn broken(peer: usize, error: Malformed) -> Error {
    Error::PeerLost {
        rank: peer,
        detail: format!("it sent a collective message that breaks the protocol: {error}"),
    }
}

/// A barrier among some ranks, along a tree of their own. `members` is sorted and contains the caller.
pub(crate) fn group_barrier(
    carrier: &impl Carrier,
    members: &[usize],
    tag: u64,
    wait: &mut Wait,
) -> Result<()> {
    let n = members.len();
    let at = members.binary_search(&carrier.rank()).unwrap_or(0);
    let mut receive = |index: usize| -> Result<()> {
        let peer = members[index];
        let what = || format!("rank {peer}: group_barrier of the ranks {members:?}");
        let message = carrier.take(Stream { peer, channel: Channel::Group, tag }, wait, &what)?;
        let message = message.ok_or_else(|| wait.timed_out(what(), vec![peer]))?;
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
