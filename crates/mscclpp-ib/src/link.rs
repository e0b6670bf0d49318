//! The link of this transport, as the core uses it.

use std::sync::Arc;

use mscclpp_core::{
    Result as CoreResult,
    provider::{Link, Queue, TokenMemory},
};
use mscclpp_net::links;

use crate::{
    error::Error,
    hub::Hub,
    ordering::TokenPlan,
    sender::SendQueue,
    side::{EndpointPair, LinkState},
};

/// A link from an endpoint of this process to a peer's.
pub(crate) struct IbLink {
    state: Arc<LinkState>,
    ends: EndpointPair,
    link: links::Link,
    hub: Arc<Hub>,
}

impl IbLink {
    pub(crate) fn new(state: Arc<LinkState>, ends: EndpointPair, link: links::Link, hub: Arc<Hub>) -> Self {
        state.set_failures(link.failures());
        hub.watch_link(&state);
        Self { state, ends, link, hub }
    }
}

impl Link for IbLink {
    fn open_queue(&self) -> CoreResult<Box<dyn Queue>> {
        match SendQueue::open(&self.state, &self.link, &self.hub) {
            Ok(queue) => Ok(Box::new(queue)),
            // The link's own reason is more precise than the failure to open a queue.
            Err(error) => {
                Err(self.state.check().err().unwrap_or_else(|| error.over(self.state.side.transport)))
            }
        }
    }

    fn token_memory(&self) -> CoreResult<TokenMemory> {
        let side = &self.state.side;
        match side.tokens(self.state.mode) {
            TokenPlan::OnDevice => Ok(TokenMemory::Device),
            TokenPlan::OnHost | TokenPlan::OnHostAfterFlush => Ok(TokenMemory::PinnedHost),
            TokenPlan::Refuse(reason) => {
                let gpu = side.gpu.as_ref().map_or(String::new(), |(gpu, _)| format!("{gpu} with "));
                Err(Error::Incompatible(format!("{gpu}{}: {reason}", side.adapter.name()))
                    .over(side.transport))
            }
        }
    }

    fn progress_inbound(&self) -> bool {
        self.hub.progress_inbound(&self.ends)
    }

    fn tell_failure(&self, reason: &str) {
        self.link.tell_failure(reason.to_owned());
    }
}
