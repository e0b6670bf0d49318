//! One collective call on one rank, as a machine: something goes up a tree from all ranks, or from one, and comes down to all.
//!
//! It does not wait. It asks for the messages that it needs, and says of whom one is missing, and what to send.

use crate::{Error, Result};

/// What the messages of a kind of call look like.
pub(crate) trait Envelope {
    /// A message with a part of the call, or with the departure of a rank in its place. Gives any other error back.
    fn seal(&self, part: &Result<Vec<u8>>) -> Result<Vec<u8>>;
    /// What a message of `peer` has.
    fn open(&self, peer: usize, message: Vec<u8>) -> Result<Vec<u8>>;
}

/// Where a rank is in the tree of a call.
pub(crate) struct Place {
    pub(crate) parent: Option<usize>,
    /// Those below who send something up.
    pub(crate) senders: Vec<usize>,
    /// Whether this rank sends something up.
    pub(crate) sends: bool,
    pub(crate) children: Vec<usize>,
}

/// What an [`Exchange`] needs next.
pub(crate) enum Next {
    /// Messages from these ranks.
    Await(Vec<usize>),
    /// Nothing: this is what came down.
    Done(Vec<u8>),
}

pub(crate) struct Exchange<E> {
    pub(crate) envelope: E,
    place: Place,
    /// What goes up: what has come from below behind this rank's own part; or the departure of a rank.
    up: Result<Vec<u8>>,
    sent_up: bool,
    down: Option<Result<Vec<u8>>>,
}

impl<E: Envelope> Exchange<E> {
    pub(crate) fn new(envelope: E, place: Place, own: Vec<u8>) -> Self {
        Self { envelope, place, up: Ok(own), sent_up: false, down: None }
    }

    /// Goes as far as it can; `post` sends a message to a rank.
    ///
    /// # Errors
    /// The departure of a rank, once it has been passed on.
    fn advance(&mut self, mut post: impl FnMut(usize, Vec<u8>)) -> Result<Next> {
        if !self.place.senders.is_empty() {
            return Ok(Next::Await(self.place.senders.clone()));
        }
        if !std::mem::replace(&mut self.sent_up, true) {
            match self.place.parent {
                None => self.down = Some(std::mem::replace(&mut self.up, Ok(Vec::new()))),
                Some(parent) if self.place.sends => post(parent, self.envelope.seal(&self.up)?),
                Some(_) => {}
            }
        }
        match (self.down.take(), self.place.parent) {
            (Some(down), _) => {
                let message = self.envelope.seal(&down)?;
                for &child in &self.place.children {
                    post(child, message.clone());
                }
                down.map(Next::Done)
            }
            // A departure met on the way up comes back down as the same error, unless the parent is gone.
            (None, parent) => Ok(Next::Await(parent.into_iter().collect())),
        }
    }

    /// Goes on until the call is over, or messages are missing that `take` does not give: then it says of whom.
    ///
    /// # Errors
    /// The departure of a rank, once it has been passed on; or what ends the call here and now, of which all hear by other means.
    pub(crate) fn run(
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

    /// What came of the wait for a message of `peer`.
    ///
    /// # Errors
    /// What ends the call here and now. All hear of it by other means.
    fn take(&mut self, peer: usize, outcome: Result<Vec<u8>>) -> Result<()> {
        let part = match outcome.and_then(|message| self.envelope.open(peer, message)) {
            Err(error) if !is_departure(&error) => return Err(error),
            part => part,
        };
        let before = self.place.senders.len();
        self.place.senders.retain(|&sender| sender != peer);
        if self.place.senders.len() == before {
            self.down = Some(part);
            return Ok(());
        }
        match (&mut self.up, part) {
            (Ok(gathered), Ok(part)) => gathered.extend_from_slice(&part),
            // The other messages are still taken: they belong to this call.
            (up @ Ok(_), Err(departure)) => *up = Err(departure),
            (Err(_), _) => {}
        }
        Ok(())
    }
}

/// Any error but this one ends the whole job, of which all hear by other means; collectives do not carry it.
fn is_departure(error: &Error) -> bool {
    matches!(error, Error::PeerClosed { .. })
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, VecDeque};

    use super::*;
    use crate::collective::call::{Call, Operation, contribution, contributions};
    use crate::protocol::tree;

    /// Messages on their way, by receiver and sender.
    type Mail = BTreeMap<(usize, usize), VecDeque<Vec<u8>>>;

    /// Runs a call on `n` ranks in one thread, with `gone` not taking part.
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
