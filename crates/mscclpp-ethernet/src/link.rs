//! The implementation of the core's [`Link`].

use std::sync::Arc;

use mscclpp_core::{
    Result,
    provider::{Link, Queue, TokenMemory},
};
use mscclpp_net::links;

use crate::{
    error::{Error, SystemCall},
    hub::Hub,
    link_state::LinkState,
    sending, socket,
};

pub(crate) struct EthernetLink {
    pub(crate) state: Arc<LinkState>,
    pub(crate) link: links::Link,
    pub(crate) hub: Arc<Hub>,
    pub(crate) max_waiting: Option<u32>,
    pub(crate) tokens: TokenMemory,
}

impl Link for EthernetLink {
    fn open_queue(&self) -> Result<Box<dyn Queue>> {
        let connection = self.link.open_data().map_err(|error| {
            // The link's reason for the peer's failure says more than an error that the peer cannot be connected to.
            self.state.monitor().check().err().unwrap_or_else(|| Error::from(error).into())
        })?;
        socket::SENDER.apply(&connection.stream).during("setting up a connection").map_err(Error::from)?;
        let suspicions = self.link.suspicions();
        Ok(sending::open(connection, &self.state, suspicions, &self.hub.settings, self.max_waiting)?)
    }

    /// Tokens in host memory are stored when all copies to devices are complete, tokens on a device behind them in its stream.
    fn token_memory(&self) -> Result<TokenMemory> {
        Ok(self.tokens)
    }

    fn tell_failure(&self, reason: &str) {
        self.link.tell_failure(reason.to_owned());
    }
}
