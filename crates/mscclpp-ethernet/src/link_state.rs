//! The state of a link, shared with its queues.

use std::sync::{Arc, Weak};

use mscclpp_core::{Error as CoreError, LinkMonitor};
use mscclpp_net::links::{LinkEnd, LinkEvents};
use parking_lot::Mutex;

use crate::error::Error;

/// A connection that carries data of a link, and is cut when the link ends.
pub(crate) trait Carrier: Send + Sync {
    fn cut(&self);
}

/// The state of a link from an endpoint of this process to a peer's. The queues share it with the link's watchers.
pub(crate) struct LinkState {
    monitor: LinkMonitor,
    carriers: Mutex<Vec<Weak<dyn Carrier>>>,
}

impl LinkState {
    pub(crate) fn new(monitor: LinkMonitor) -> Self {
        Self { monitor, carriers: Mutex::default() }
    }

    /// Registers `carrier`, to be cut when the link ends, or cuts it now if the link has ended.
    pub(crate) fn add_carrier(&self, carrier: &Arc<dyn Carrier>) {
        let mut carriers = self.carriers.lock();
        carriers.retain(|carrier| carrier.strong_count() > 0);
        carriers.push(Arc::downgrade(carrier));
        drop(carriers);
        // `end` fails the monitor before it locks the list: either it finds the carrier there, or this thread, which had
        // the lock later, sees the failure.
        if self.has_failed() {
            carrier.cut();
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.monitor.check().is_err()
    }

    pub(crate) fn monitor(&self) -> &LinkMonitor {
        &self.monitor
    }

    pub(crate) fn fail(&self, error: CoreError) {
        self.end(|monitor| monitor.fail(error));
    }

    fn end(&self, tell: impl FnOnce(&LinkMonitor)) {
        tell(&self.monitor);
        self.carriers.lock().drain(..).filter_map(|carrier| carrier.upgrade()).for_each(|it| it.cut());
    }
}

impl LinkEvents for LinkState {
    fn ended(&self, end: LinkEnd) {
        let error = match end {
            LinkEnd::Goodbye => return self.end(LinkMonitor::closed),
            LinkEnd::Lost(reason) => return self.end(|monitor| monitor.lost(reason)),
            LinkEnd::Failed(reason) => return self.end(|monitor| monitor.peer_failed(&reason)),
            LinkEnd::Refused { address, reason } => {
                Error::Refused { address, reason: LinkMonitor::printable(&reason) }
            }
            LinkEnd::Hostile { address, reason } => Error::Hostile { address, reason },
            LinkEnd::System(error) => error.into(),
        };
        self.fail(error.into());
    }
}
