use std::{net::SocketAddr, sync::Arc};

use crate::key::Key;

use super::{
    Command, DataConnection, Links, Shared,
    dial::dial,
    error::Result,
    handshake::{Purpose, Request},
};

/// A link to a peer's endpoint. Keeps alive the [`Links`] that made it. When the link is dropped, they stop watching
/// it; an event that was noticed before may still be reported.
pub struct Link {
    pub(super) links: Arc<Links>,
    pub(super) request: Request,
    pub(super) key: Key,
    pub(super) address: SocketAddr,
}

impl Link {
    /// Where the peer listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Opens a connection that carries data, to the peer's [`Acceptor`](super::Acceptor). Blocks for at most about 10
    /// s.
    ///
    /// # Errors
    /// If the peer is gone, no longer has this link, or takes no more connections.
    pub fn open_data(&self) -> Result<DataConnection> {
        let request = Request { purpose: Purpose::Data, ..self.request };
        let (stream, session, _) = dial(self.links.shared.protocol, &[self.address], &self.key, &request)?;
        Ok(DataConnection::new(stream, &session.initiator, &session.responder))
    }

    /// Tells the peer that this side has failed, on its links to the endpoint that this link comes from; they end. At most
    /// 480 bytes of `reason` are said. Never blocks.
    pub fn tell_failure(&self, reason: String) {
        self.failures().tell(reason);
    }

    /// A way to tell the peer so, for threads that must not keep the link alive.
    #[must_use]
    pub fn failures(&self) -> Failures {
        Failures { shared: self.links.shared.clone(), request: self.request }
    }

    /// A way to report problems with the link, for threads that must not keep it alive.
    #[must_use]
    pub fn suspicions(&self) -> Suspicions {
        Suspicions { shared: self.links.shared.clone(), link: self.request.link }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.links.shared.commands.send(Command::Unwatch { link: self.request.link });
    }
}

/// Tells the peer of a link that this side has failed. Does not keep the link alive.
#[derive(Clone)]
pub struct Failures {
    shared: Arc<Shared>,
    request: Request,
}

impl Failures {
    /// As [`Link::tell_failure`].
    pub fn tell(&self, reason: String) {
        self.shared.commands.send(Command::TellFailure { request: self.request, reason });
    }
}

/// Takes reports that something is wrong with a link. Does not keep the link alive.
#[derive(Clone)]
pub struct Suspicions {
    shared: Arc<Shared>,
    link: u64,
}

impl Suspicions {
    /// Reports that something went wrong between the two ends, such as a data connection that broke. The link then has
    /// one second to end for a reason of its own, such as a goodbye that is still on its way. After that the peer
    /// counts as lost, for the first reason reported. Never blocks.
    pub fn report(&self, reason: String) {
        self.shared.commands.send(Command::Suspect { link: self.link, reason });
    }
}
