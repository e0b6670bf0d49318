use std::{
    net::SocketAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use mscclpp_core::{Error as CoreError, LinkMonitor};
use mscclpp_net::links::{LinkEnd, LinkEvents};
use parking_lot::Mutex;

use crate::{error::Error, frame::Fault, sending::SendConnection};

/// A link from an endpoint of this process to a peer's. Shared by the queues and by those who watch the link.
pub(crate) struct LinkState {
    monitor: LinkMonitor,
    /// The connections that carry its data.
    connections: Mutex<Vec<Weak<SendConnection>>>,
    over: AtomicBool,
}

impl LinkState {
    pub(crate) fn new(monitor: LinkMonitor) -> Self {
        Self { monitor, connections: Mutex::default(), over: AtomicBool::new(false) }
    }

    /// Cuts `connection` when the link ends, or at once if it has ended.
    pub(crate) fn carries(&self, connection: &Arc<SendConnection>) {
        let mut connections = self.connections.lock();
        connections.retain(|connection| connection.strong_count() > 0);
        connections.push(Arc::downgrade(connection));
        drop(connections);
        // `cut` sets this before it looks at the list: one of the two sees the other.
        if self.over.load(Ordering::SeqCst) {
            connection.cut();
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.over.load(Ordering::SeqCst) || self.monitor.check().is_err()
    }

    pub(crate) fn monitor(&self) -> &LinkMonitor {
        &self.monitor
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

impl LinkEvents for LinkState {
    fn ended(&self, end: LinkEnd) {
        let hostile = |address: SocketAddr, reason: String| Error::Hostile { address, reason };
        let error = match end {
            LinkEnd::Goodbye => {
                self.monitor.closed();
                self.cut();
                return;
            }
            LinkEnd::Lost(reason) => {
                self.monitor.lost(reason);
                self.cut();
                return;
            }
            LinkEnd::Failed(reason) => {
                self.monitor.peer_failed(&reason);
                self.cut();
                return;
            }
            LinkEnd::Refused { address, complaint } => match Fault::of(complaint) {
                Some(fault) => Error::Refused { address, reason: fault.to_string() },
                None => hostile(address, format!("it complained of what is unknown here: {complaint}")),
            },
            LinkEnd::Hostile { address, reason } => hostile(address, reason),
            LinkEnd::System(error) => error.into(),
        };
        self.fail(error.into());
    }
}
