use std::{net::SocketAddr, sync::Arc};

use crate::key::Key;

use super::{
    Command, DataConnection, Links, LinksState,
    dial::dial,
    error::Result,
    handshake::{Purpose, Request},
};

/// A link to a peer's endpoint. It keeps alive the [`Links`] that made it. Dropping it ends the watch; an event that
/// was noticed before may still be reported.
pub struct Link {
    pub(super) links: Arc<Links>,
    pub(super) request: Request,
    pub(super) key: Key,
    pub(super) address: SocketAddr,
}

impl Link {
    /// Returns the address at which the peer listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Opens a connection that carries data to the peer's [`Acceptor`](super::Acceptor). Blocks for at most about 10
    /// seconds.
    ///
    /// # Errors
    /// If the peer is gone, no longer has this link, or takes no more connections.
    pub fn open_data(&self) -> Result<DataConnection> {
        let request = Request { purpose: Purpose::Data, ..self.request };
        let (stream, session, _) = dial(self.links.shared.protocol, &[self.address], &self.key, &request)?;
        Ok(DataConnection::new(stream, &session.initiator, &session.responder))
    }

    /// Tells the peer that this side has failed, on the peer's links to the endpoint that this link comes from, which
    /// then end. At most 480 bytes of `reason` are sent. Never blocks.
    pub fn tell_failure(&self, reason: String) {
        self.failures().tell(reason);
    }

    /// Returns a handle that does the same as [`Link::tell_failure`], for threads that must not keep the link alive.
    #[must_use]
    pub fn failures(&self) -> Failures {
        Failures { shared: self.links.shared.clone(), request: self.request }
    }

    /// Returns a handle to report problems with the link, for threads that must not keep it alive.
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

/// A handle to tell the peer of a link that this side has failed. It does not keep the link alive.
#[derive(Clone)]
pub struct Failures {
    shared: Arc<LinksState>,
    request: Request,
}

impl Failures {
    /// The same as [`Link::tell_failure`].
    pub fn tell(&self, reason: String) {
        self.shared.commands.send(Command::TellFailure { request: self.request, reason });
    }
}

/// A handle to report that something is wrong with a link. It does not keep the link alive.
#[derive(Clone)]
pub struct Suspicions {
    shared: Arc<LinksState>,
    link: u64,
}

impl Suspicions {
    /// Reports that something went wrong between the two ends, such as a data connection that broke. The link then
    /// has one second to end for a reason of its own, such as a goodbye that is still on its way. After that the peer
    /// counts as lost, for the first reason reported. Never blocks.
    pub fn report(&self, reason: String) {
        self.shared.commands.send(Command::Suspect { link: self.link, reason });
    }
}
