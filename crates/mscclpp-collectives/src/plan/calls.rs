//! The requests of one call, planned.

use crate::{Kind, Request, Result, handle::Message};

use super::{
    exchange::{Plan, Planned, plan},
    messages::Messages,
};

/// A request for an exchange, and its plan.
pub(crate) type Exchange<'a, 'b> = (&'a Request<'b>, Plan);

/// The parts of a call, which are put into a stream in this order.
pub(crate) struct Calls<'a, 'b> {
    pub(crate) exchanges: Vec<Exchange<'a, 'b>>,
    /// The copies that are messages of this rank to itself: from where, and to where.
    pub(crate) own: Vec<(Message, Message)>,
    pub(crate) messages: Messages,
}

impl<'a, 'b> Calls<'a, 'b> {
    /// Plans the requests of `rank`. A barrier is done by `barrier`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for requests that can never be right.
    pub(crate) fn new(
        requests: &'a [Request<'b>],
        rank: usize,
        ranks: usize,
        barrier: &Request<'_>,
    ) -> Result<Self> {
        let mut messages = Messages::new(ranks);
        let mut exchanges = Vec::with_capacity(requests.len());
        for request in requests {
            let planned = if request.kind == Kind::Barrier { barrier } else { request };
            match plan(planned, rank, ranks)? {
                Planned::Nothing => {}
                Planned::Exchange(plan) => exchanges.push((request, plan)),
                Planned::Message { receives, peer, memory, bytes } => {
                    messages.add(peer, receives, Message { memory, bytes });
                }
            }
        }
        let own = messages.own(rank)?;
        Ok(Self { exchanges, own, messages })
    }
}
