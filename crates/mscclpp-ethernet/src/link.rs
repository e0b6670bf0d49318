//! A connection as the core sees it.

use std::sync::Arc;

use mscclpp_core::{
    Result,
    provider::{Link, Queue},
};

use mscclpp_net::key::Key;

use crate::{
    dial::dial_queue,
    hub::{Hub, LinkState},
    protocol::handshake::Request,
    sending,
};

pub(crate) struct EthernetLink {
    state: Arc<LinkState>,
    hub: Arc<Hub>,
    key: Key,
    /// What queues ask for.
    request: Request,
    max_waiting: Option<u32>,
}

impl EthernetLink {
    pub(crate) fn new(
        state: Arc<LinkState>,
        hub: Arc<Hub>,
        key: Key,
        request: Request,
        max_waiting: Option<u32>,
    ) -> Self {
        Self { state, hub, key, request, max_waiting }
    }
}

impl Link for EthernetLink {
    fn open_queue(&self) -> Result<Box<dyn Queue>> {
        let (stream, session) =
            dial_queue(self.state.address(), &self.key, &self.request).map_err(|error| {
                // What the link knows of the peer says more than that it cannot be connected to any more.
                self.state.monitor().check().err().unwrap_or_else(|| error.into())
            })?;
        Ok(sending::open(stream, session, &self.state, self.hub.shared(), self.max_waiting)?)
    }
}

impl Drop for EthernetLink {
    fn drop(&mut self) {
        self.hub.unwatch(self.state.id());
    }
}
