//! Collectives over point-to-point messages: up a binary tree and down again, in `2 log2 n` steps, sending each message
//! to at most three neighbours. A call is a machine that does not wait ([`exchange`]); here are the waits of callers. The same
//! code runs over sockets and over the queues of [`LocalBootstrap`](crate::LocalBootstrap).
//!
//! # When a rank has left
//! A rank that finds a neighbour gone sends the error on, in place of data, so that no rank waits for what can no longer
//! come: up to the root and from there down to all; below a rank whose parent is gone, down. All ranks learn of it, and
//! name the rank that left.
//!
//! # When time is up
//! A rank whose part has gone up cannot take it back: the others go on with it. So a call whose time is up stays as it is,
//! and the same call, made again, goes on from there.

pub(crate) mod call;
pub(crate) mod exchange;
pub(crate) mod group;

pub(crate) use call::check;

use call::{Call, Operation, contributions, put_contribution};
use exchange::{Envelope, Exchange, Next};
use group::Group;
use mscclpp_net::wire::Malformed;

use crate::inbox::{Channel, Stream, Wait};
use crate::member::Member;
use crate::protocol::tree;
use crate::{Error, Result};

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
    unfinished: Option<Exchange<Call>>,
}

impl Collectives {
    pub(crate) fn new() -> Self {
        Self { next: 0, unfinished: None }
    }

    pub(crate) fn barrier(&mut self, carrier: &impl Carrier, wait: &mut Wait) -> Result<()> {
        self.call(carrier, wait, Operation::Barrier, Vec::new).map(drop)
    }

    pub(crate) fn all_gather(
        &mut self,
        carrier: &impl Carrier,
        wait: &mut Wait,
        bytes: &[u8],
    ) -> Result<Vec<Vec<u8>>> {
        let (rank, n) = (carrier.rank(), carrier.n_ranks());
        let own = || {
            let mut own = Vec::with_capacity(12 + bytes.len());
            put_contribution(&mut own, rank, bytes);
            own
        };
        let all = self.call(carrier, wait, Operation::AllGather, own)?;
        contributions(&all, n).map_err(|e| broken(tree::parent(rank).unwrap_or(0), e))
    }

    pub(crate) fn broadcast(
        &mut self,
        carrier: &impl Carrier,
        wait: &mut Wait,
        bytes: &mut Vec<u8>,
        root: usize,
    ) -> Result<()> {
        let own = || if carrier.rank() == root { bytes.clone() } else { Vec::new() };
        *bytes = self.call(carrier, wait, Operation::Broadcast { root: root as u32 }, own)?;
        Ok(())
    }

    /// Begins a call, or goes on with the one whose time was up. That one has its `own` part already.
    fn call(
        &mut self,
        carrier: &impl Carrier,
        wait: &mut Wait,
        operation: Operation,
        own: impl FnOnce() -> Vec<u8>,
    ) -> Result<Vec<u8>> {
        let is_same = |unfinished: &mut Exchange<Call>| unfinished.envelope.operation == operation;
        let mut exchange = match self.unfinished.take_if(is_same) {
            Some(unfinished) => unfinished,
            None => self.begin(carrier, operation)?.exchange(own()),
        };
        let call = exchange.envelope;
        let (me, n) = (carrier.rank(), carrier.n_ranks());
        let whom = |peer| format!("{}: {}", awaited(peer, me, n), call.operation);
        match run(&mut exchange, carrier, wait, (Channel::Tree, 0), &whom)? {
            Step::Done(down) => Ok(down),
            Step::Late(missing) => {
                let first = missing.first().map_or_else(String::new, |&peer| awaited(peer, me, n));
                let operation = format!("{}, waiting for {first},", call.operation);
                self.unfinished = Some(exchange);
                Err(wait.timed_out(operation, leaves(&missing, n)))
            }
        }
    }

    fn begin(&mut self, carrier: &impl Carrier, operation: Operation) -> Result<Call> {
        if let Some(Exchange { envelope, .. }) = &self.unfinished {
            return Err(Error::InvalidArgument(format!(
                "{operation}: {} of this rank timed out and is unfinished; repeat that call first, as the other ranks \
                 are in it",
                envelope.operation
            )));
        }
        let number = self.next;
        self.next += 1;
        Ok(Call { operation, number, rank: carrier.rank(), n: carrier.n_ranks() })
    }
}

/// A barrier among some ranks, of which the caller is one. `members` is sorted.
pub(crate) fn group_barrier(carrier: &impl Carrier, members: Vec<usize>, wait: &mut Wait) -> Result<()> {
    let mut exchange = Group::new(members).exchange(carrier.rank());
    let (tag, members) = (exchange.envelope.tag(), exchange.envelope.members().to_vec());
    let whom = |peer| format!("rank {peer}: group_barrier of the ranks {members:?}");
    match run(&mut exchange, carrier, wait, (Channel::Group, tag), &whom)? {
        Step::Done(_) => Ok(()),
        Step::Late(missing) => {
            let operation = missing.first().map_or_else(String::new, |&peer| whom(peer));
            Err(wait.timed_out(operation, missing))
        }
    }
}

/// What became of a call.
enum Step {
    /// This came down.
    Done(Vec<u8>),
    /// Time is up, and nothing has come from these ranks.
    Late(Vec<usize>),
}

/// Goes on with a call until it is over, or time is up. `whom` says for whom it waits.
fn run<E: Envelope>(
    exchange: &mut Exchange<E>,
    carrier: &impl Carrier,
    wait: &mut Wait,
    (channel, tag): (Channel, u64),
    whom: &dyn Fn(usize) -> String,
) -> Result<Step> {
    loop {
        let awaited = match exchange.advance(|peer, bytes| carrier.post(peer, channel, tag, bytes))? {
            Next::Done(down) => return Ok(Step::Done(down)),
            Next::Await(awaited) => awaited,
        };
        let mut late = Vec::new();
        for peer in awaited {
            match carrier.take(Stream { peer, channel, tag }, wait, &|| whom(peer)) {
                Ok(None) => late.push(peer),
                Ok(Some(message)) => exchange.take(peer, Ok(message))?,
                Err(error) => exchange.take(peer, Err(error))?,
            }
        }
        if !late.is_empty() {
            return Ok(Step::Late(late));
        }
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

fn broken(peer: usize, error: Malformed) -> Error {
    Error::PeerLost {
        rank: peer,
        detail: format!("it sent a collective message that breaks the protocol: {error}"),
    }
}
