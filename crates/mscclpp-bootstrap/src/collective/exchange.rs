//! One collective call on one rank, as a state machine: data goes up a tree from all ranks, or from one, and comes
//! down to all.
//!
//! It does not wait. It asks for the messages that it needs, and returns whose messages are missing.

use mscclpp_net::wire::Malformed;

use crate::{Error, Result};

/// The format of the messages of a kind of call.
pub trait Envelope {
    /// Encodes a message with a part of the call, or with the departure of a rank in its place. Returns any other
    /// error.
    fn seal(&self, part: &Result<Vec<u8>>) -> Result<Vec<u8>>;
    /// Decodes a message of `peer`: its part of the call, or an error.
    fn open(&self, peer: usize, message: Vec<u8>) -> Result<Vec<u8>>;
}

/// The position of a rank in the tree of a call.
pub struct TreePosition {
    pub parent: Option<usize>,
    /// The ranks directly below that send data up.
    pub senders: Vec<usize>,
    /// Whether this rank sends data up.
    pub sends: bool,
    pub children: Vec<usize>,
}

/// The next need of an [`Exchange`].
pub enum Next {
    /// The messages of these ranks are needed.
    Await(Vec<usize>),
    /// Nothing is needed: these bytes came down.
    Done(Vec<u8>),
}

pub struct Exchange<E> {
    pub envelope: E,
    position: TreePosition,
    /// The data to send up: this rank's own part followed by those from below; or the departure of a rank.
    up: Result<Vec<u8>>,
    sent_up: bool,
    down: Option<Result<Vec<u8>>>,
}

impl<E: Envelope> Exchange<E> {
    pub fn new(envelope: E, position: TreePosition, own: Vec<u8>) -> Self {
        Self { envelope, position, up: Ok(own), sent_up: false, down: None }
    }

    /// Advances the call as far as it can; `post` sends a message to a rank.
    ///
    /// # Errors
    /// The departure of a rank, once it has been passed on.
    fn advance(&mut self, mut post: impl FnMut(usize, Vec<u8>)) -> Result<Next> {
        if !self.position.senders.is_empty() {
            return Ok(Next::Await(self.position.senders.clone()));
        }
        if !std::mem::replace(&mut self.sent_up, true) {
            match self.position.parent {
                None => self.down = Some(std::mem::replace(&mut self.up, Ok(Vec::new()))),
                Some(parent) if self.position.sends => post(parent, self.envelope.seal(&self.up)?),
                Some(_) => {}
            }
        }
        match (self.down.take(), self.position.parent) {
            (Some(down), _) => {
                let message = self.envelope.seal(&down)?;
                for &child in &self.position.children {
                    post(child, message.clone());
                }
                down.map(Next::Done)
            }
            // A departure seen on the way up comes back down as the same error, unless the parent is gone.
            (None, parent) => Ok(Next::Await(parent.into_iter().collect())),
        }
    }

    /// Advances until the call is over, or until `take` has no message of some ranks. Returns those ranks.
    ///
    /// # Errors
    /// The departure of a rank, once it has been passed on; or a failure of the whole job, which all ranks hear of by
    /// other means.
    pub fn run(
        &mut self,
        mut post: impl FnMut(usize, Vec<u8>),
        mut take: impl FnMut(usize) -> Result<Option<Vec<u8>>>,
    ) -> Result<Next> {
        loop {
            let awaited = match self.advance(&mut post)? {
                Next::Await(awaited) => awaited,
                done @ Next::Done(_) => return Ok(done),
            };
            let mut missing = Vec::new();
            for peer in awaited {
                match take(peer).transpose() {
                    Some(outcome) => self.take(peer, outcome)?,
                    None => missing.push(peer),
                }
            }
            if !missing.is_empty() {
                return Ok(Next::Await(missing));
            }
        }
    }

    /// Takes the message of `peer`, or the error of the wait for it.
    ///
    /// # Errors
    /// A failure of the whole job, which all ranks hear of by other means.
    fn take(&mut self, peer: usize, outcome: Result<Vec<u8>>) -> Result<()> {
        let part = match outcome.and_then(|message| self.envelope.open(peer, message)) {
            Err(error) if !is_departure(&error) => return Err(error),
            part => part,
        };
        let before = self.position.senders.len();
        self.position.senders.retain(|&sender| sender != peer);
        if self.position.senders.len() == before {
            self.down = Some(part);
            return Ok(());
        }
        match (&mut self.up, part) {
            (Ok(gathered), Ok(part)) => gathered.extend_from_slice(&part),
            // The other messages are still taken, because they belong to this call.
            (up @ Ok(_), Err(departure)) => *up = Err(departure),
            (Err(_), _) => {}
        }
        Ok(())
    }
}

/// Returns whether an error is a departure. Any other error ends the whole job: all ranks hear of it by other means,
/// and collectives do not carry it.
fn is_departure(error: &Error) -> bool {
    matches!(error, Error::PeerClosed { .. })
}

/// Returns the error that a peer has sent something that is no message of a collective.
pub fn broken(peer: usize, error: Malformed) -> Error {
    Error::PeerLost {
        rank: peer,
        detail: format!("it sent a collective message that breaks the protocol: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, VecDeque};

    use super::*;
    use crate::collective::call::{Call, Operation, contribution, contributions};
    use crate::protocol::tree;

    /// The messages on their way, by receiver and sender.
    type Mail = BTreeMap<(usize, usize), VecDeque<Vec<u8>>>;

    /// Runs a call on `n` ranks in one thread. The rank `gone` does not take part.
    fn run(n: usize, gone: Option<usize>, call: impl Fn(usize) -> Exchange<Call>) -> Vec<Result<Vec<u8>>> {
        let mut mail = Mail::new();
        let mut ranks: Vec<_> = (0..n).map(|rank| Some(call(rank))).collect();
        let mut outcomes: Vec<Option<Result<Vec<u8>>>> = (0..n).map(|_| None).collect();
        if let Some(gone) = gone {
            ranks[gone] = None;
        }
        let mut moved = true;
        while moved {
            moved = false;
            for me in 0..n {
                let Some(exchange) = &mut ranks[me] else { continue };
                let mut posted = Vec::new();
                let next = exchange.run(
                    |to, bytes| posted.push((to, bytes)),
                    |peer| match mail.get_mut(&(me, peer)).and_then(VecDeque::pop_front) {
                        None if gone == Some(peer) => Err(Error::PeerClosed { rank: peer }),
                        message => Ok(message),
                    },
                );
                moved |= !posted.is_empty();
                for (to, bytes) in posted {
                    mail.entry((to, me)).or_default().push_back(bytes);
                }
                outcomes[me] = match next {
                    Ok(Next::Await(_)) => continue,
                    Ok(Next::Done(down)) => Some(Ok(down)),
                    Err(error) => Some(Err(error)),
                };
                ranks[me] = None;
            }
        }
        assert!(mail.iter().all(|((to, _), messages)| messages.is_empty() || gone == Some(*to)));
        let stuck = |rank: usize| gone != Some(rank) && outcomes[rank].is_none();
        assert!(!(0..n).any(stuck), "some rank waits for ever");
        outcomes.into_iter().flatten().collect()
    }

    fn gather(rank: usize, n: usize) -> Exchange<Call> {
        let own = contribution(rank, &[rank as u8]);
        Call { operation: Operation::AllGather, number: 0, rank, n }.exchange(own)
    }

    fn broadcast(rank: usize, n: usize, root: usize) -> Exchange<Call> {
        let own = if rank == root { vec![7, 8] } else { Vec::new() };
        Call { operation: Operation::Broadcast { root: root as u32 }, number: 0, rank, n }.exchange(own)
    }

    #[test]
    fn all_hear_all() {
        for n in 1..40 {
            for down in run(n, None, |rank| gather(rank, n)) {
                let all = contributions(&down.unwrap(), n).unwrap();
                assert!(all.iter().enumerate().all(|(rank, bytes)| *bytes == [rank as u8]));
            }
            for root in 0..n {
                let outcomes = run(n, None, |rank| broadcast(rank, n, root));
                assert!(outcomes.into_iter().all(|down| down.unwrap() == [7, 8]));
            }
        }
    }

    #[test]
    fn a_rank_that_has_left_is_named_to_all() {
        for n in 2..20 {
            for gone in 0..n {
                let outcomes = run(n, Some(gone), |rank| gather(rank, n));
                assert_eq!(outcomes.len(), n - 1);
                let named =
                    |outcome: &Result<_>| matches!(outcome, Err(Error::PeerClosed { rank }) if *rank == gone);
                assert!(outcomes.iter().all(named), "{n} ranks without {gone}");
            }
        }
    }

    #[test]
    fn what_ends_the_job_ends_the_call_at_once() {
        assert_eq!(tree::parent(2), Some(0));
        let mut exchange = gather(0, 3);
        let lost = Error::PeerLost { rank: 2, detail: String::new() };
        assert!(matches!(exchange.take(2, Err(lost)), Err(Error::PeerLost { rank: 2, .. })));
    }
}
