use std::{net::SocketAddr, sync::Arc};

use crate::key::Key;

use super::{
    Command, DataConnection, Links, Shared,
    dial::dial,
    error::Result,
    handshake::{Purpose, Request},
};

/// A link to a peer's endpoint. Keeps the [`Links`] that it was made by; they stop watching it when it is dropped. What
/// has been noticed until then may still be told.
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

    /// Opens a connection that carries data, to the peer's [`Acceptor`](super::Acceptor). Blocks, for at most about 10 s.
    ///
    /// # Errors
    /// If the peer is gone, has no link any more, or takes no more connections.
    pub fn open_data(&self) -> Result<DataConnection> {
        let request = Request { purpose: Purpose::Data, ..self.request };
        let (stream, session, _) = dial(self.links.shared.protocol, &[self.address], &self.key, &request)?;
        Ok(DataConnection::dialled(stream, &session))
    }

    /// What threads that must not keep the link report to it.
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

/// Takes reports that something is wrong with a link. Does not keep it.
#[derive(Clone)]
pub struct Suspicions {
    shared: Arc<Shared>,
    link: u64,
}

impl Suspicions {
    /// Something went wrong between the two ends, such as a connection with data that broke. The link has a second to end
    /// for a reason of its own, as a goodbye that is still on its way. After that the peer counts as lost for the first
    /// reason that was reported. Never blocks.
    pub fn report(&self, reason: String) {
        self.shared.commands.send(Command::Suspect { link: self.link, reason });
    }
}
