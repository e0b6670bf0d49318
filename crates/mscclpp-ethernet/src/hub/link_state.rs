use std::{
    net::SocketAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use mscclpp_core::{Error as CoreError, LinkMonitor, Transport};
use parking_lot::Mutex;

use crate::{error::Error, protocol::handshake::Name, sending::Lane};

/// A link from an endpoint of this process to a peer's, as the hub and the queues share it.
pub(crate) struct LinkState {
    id: u64,
    local: Name,
    remote: Name,
    /// Where the peer listens.
    address: SocketAddr,
    monitor: LinkMonitor,
    /// The connections that carry its data.
    lanes: Mutex<Vec<Weak<Lane>>>,
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
        Self { id, local, remote, address, monitor, lanes: Mutex::default(), over: AtomicBool::new(false) }
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Whether it is the way back from `remote` to `local`.
    pub(crate) fn joins(&self, local: &Name, remote: &Name) -> bool {
        (&self.local, &self.remote) == (local, remote)
    }

    /// Cuts `lane` when the link ends, at once if it has.
    pub(crate) fn carries(&self, lane: &Arc<Lane>) {
        let mut lanes = self.lanes.lock();
        lanes.retain(|lane| lane.strong_count() > 0);
        lanes.push(Arc::downgrade(lane));
        drop(lanes);
        // `end` sets this before it looks at the list: one of the two sees the other.
        if self.over.load(Ordering::SeqCst) {
            lane.cut();
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
        for lane in self.lanes.lock().drain(..).filter_map(|lane| lane.upgrade()) {
            lane.cut();
        }
    }
}

fn transport(error: Error) -> CoreError {
    CoreError::transport(Transport::ETHERNET, error)
}
