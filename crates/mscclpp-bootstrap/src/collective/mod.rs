//! Collectives over point-to-point messages: up a binary tree and down again, in `2 log2 n` steps, in which each rank
//! sends to at most three neighbours. A call is a state machine that does not wait ([`exchange`]); this module has
//! the waits of callers. The same code runs over sockets and over the queues of
//! [`LocalBootstrap`](crate::LocalBootstrap).
//!
//! # When a rank has left
//! A rank that finds a neighbour gone sends the error on in place of data, so that no rank waits for data that can no
//! longer come. The error goes up to the root and from there down to all. Below a rank whose parent is gone, it goes
//! down. All ranks learn of it, and name the rank that left.
//!
//! # When time is up
//! A rank cannot take back a contribution that it has sent up, because the others use it. So a call that runs out of
//! time stays as it is, and the same call, made again, continues from there.

pub mod call;
pub mod exchange;
pub mod group;

use call::{Call, Operation};
use exchange::{Envelope, Exchange, Next};
use group::Group;

use crate::inbox::{Channel, Stream, Wait};
use crate::protocol::tree;
use crate::{Error, Result};

/// Moves the messages of a rank.
pub trait Carrier {
    fn rank(&self) -> usize;
    fn n_ranks(&self) -> usize;
    /// Queues a message; does not wait for it to be sent. A message to a rank that is gone is lost.
    fn post(&self, peer: usize, channel: Channel, tag: u64, bytes: Vec<u8>);
    /// Waits for a message. Returns `None` if the time of the wait is up. `what` describes the wait.
    fn take(&self, stream: Stream, wait: &mut Wait, what: &dyn Fn() -> String) -> Result<Option<Vec<u8>>>;
    /// Ends the job for all ranks.
    fn fail(&self, error: &Error);
}

/// The collective calls of a rank, of which one runs at a time.
#[derive(Default)]
pub struct Collectives {
    next: u64,
    /// A call that ran out of time. The next call must be the same, and continues it.
    unfinished: Option<Exchange<Call>>,
}

impl Collectives {
    /// Begins a call, or continues the one that ran out of time, which has its `own` part already.
    pub fn call(
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
            Next::Done(down) => Ok(down),
            Next::Await(missing) => {
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

/// Waits for some ranks at a barrier. The caller is one of them. `members` is sorted.
pub fn group_barrier(carrier: &impl Carrier, members: Vec<usize>, wait: &mut Wait) -> Result<()> {
    let mut exchange = Group::new(members).exchange(carrier.rank());
    let (tag, members) = (exchange.envelope.tag(), exchange.envelope.members().to_vec());
    let whom = |peer| format!("rank {peer}: group_barrier of the ranks {members:?}");
    match run(&mut exchange, carrier, wait, (Channel::Group, tag), &whom)? {
        Next::Done(_) => Ok(()),
        Next::Await(missing) => {
            let operation = missing.first().map_or_else(String::new, |&peer| whom(peer));
            Err(wait.timed_out(operation, missing))
        }
    }
}

/// Advances a call until it is over, or time is up. `whom` describes for whom it waits.
fn run<E: Envelope>(
    exchange: &mut Exchange<E>,
    carrier: &impl Carrier,
    wait: &mut Wait,
    (channel, tag): (Channel, u64),
    whom: &dyn Fn(usize) -> String,
) -> Result<Next> {
    let post = |peer, bytes| carrier.post(peer, channel, tag, bytes);
    exchange.run(post, |peer| carrier.take(Stream { peer, channel, tag }, wait, &|| whom(peer)))
}

/// Returns those of `ranks` that have nobody below them: they are themselves the cause that their message is missing.
fn leaves(ranks: &[usize], n: usize) -> Vec<usize> {
    ranks.iter().copied().filter(|&rank| tree::children(rank, n).next().is_none()).collect()
}

/// Describes the rank whose message rank `me` waits for, and the ranks that may be the cause of the wait.
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
