use std::{
    net::SocketAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use mscclpp_core::{Error as CoreError, LinkMonitor, Transport};
use parking_lot::Mutex;

use crate::{error::Error, protocol::handshake::Name, sending::SendConnection};

/// A link from an endpoint of this process to a peer's, as the hub and the queues share it.
pub(crate) struct LinkState {
    id: u64,
    local: Name,
    remote: Name,
    /// Where the peer listens.
    address: SocketAddr,
    monitor: LinkMonitor,
    /// The connections that carry its data.
    connections: Mutex<Vec<Weak<SendConnection>>>,
    over: AtomicBool,
}

/// How a link ends.
#[derive(Debug)]
pub(crate) enum LinkEnd {
    /// The peer closed its endpoint.
    Goodbye,
    /// The peer is gone.
    Lost(String),
    /// The peer refused what this side sent.
    Refused(String),
    /// This side refused what the peer sent.
    Hostile(String),
}

impl LinkState {
    pub(crate) fn new(id: u64, local: Name, remote: Name, address: SocketAddr, monitor: LinkMonitor) -> Self {
        Self {
            id,
            local,
            remote,
            address,
            monitor,
            connections: Mutex::default(),
            over: AtomicBool::new(false),
        }
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Whether it is the way back from `remote` to `local`.
    pub(crate) fn joins(&self, local: &Name, remote: &Name) -> bool {
        (&self.local, &self.remote) == (local, remote)
    }

    /// Cuts `connection` when the link ends, at once if it has.
    pub(crate) fn carries(&self, connection: &Arc<SendConnection>) {
        let mut connections = self.connections.lock();
        connections.retain(|connection| connection.strong_count() > 0);
        connections.push(Arc::downgrade(connection));
        drop(connections);
        // `end` sets this before it looks at the list: one of the two sees the other.
        if self.over.load(Ordering::SeqCst) {
            connection.cut();
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.over.load(Ordering::SeqCst) || self.monitor.check().is_err()
    }

    pub(crate) fn monitor(&self) -> &LinkMonitor {
        &self.monitor
    }

    pub(crate) fn end(&self, end: LinkEnd) {
        let address = self.address;
        match end {
            LinkEnd::Goodbye => self.monitor.closed(),
            LinkEnd::Lost(reason) => self.monitor.lost(format_args!("{reason}; it was at {address}")),
            LinkEnd::Refused(reason) => self.fail(transport(Error::Refused { address, reason })),
            LinkEnd::Hostile(reason) => self.fail(transport(Error::Hostile { address, reason })),
        }
        self.cut();
    }

    pub(crate) fn fail(&self, error: CoreError) {
        self.monitor.fail(error);
        self.cut();
    }

    fn cut(&self) {
        self.over.store(true, Ordering::SeqCst);
        for connection in self.connections.lock().drain(..).filter_map(|connection| connection.upgrade()) {
            connection.cut();
        }
    }
}

fn transport(error: Error) -> CoreError {
    CoreError::transport(Transport::ETHERNET, error)
}
