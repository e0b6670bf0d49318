//! The state between a rank's callers and its thread: commands one way, and the outcome of the job the other way.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use mscclpp_net::event_loop::Commands;

use crate::Result;
use crate::inbox::Inbox;
use crate::job::Command;
use crate::protocol::table::Table;

pub(crate) struct Order {
    pub(crate) command: Command,
    /// The peer of a send whose caller waits until the message is written. The flag is set when the thread takes the
    /// message: see [`Inbox::begin_send`].
    pub(crate) begun: Option<(usize, Arc<AtomicBool>)>,
}

/// The state that a rank's callers and its thread share.
pub(crate) struct Shared {
    pub(crate) inbox: Arc<Inbox>,
    orders: Arc<Commands<Order>>,
    table: OnceLock<Arc<Table>>,
    finished: AtomicBool,
}

impl Shared {
    pub(crate) fn new(inbox: Arc<Inbox>) -> Result<Self> {
        Ok(Self {
            inbox,
            orders: Arc::new(Commands::new()?),
            table: OnceLock::new(),
            finished: AtomicBool::new(false),
        })
    }

    pub(crate) fn command(&self, command: Command) {
        self.orders.send(Order { command, begun: None });
    }

    pub(crate) fn order(&self, order: Order) {
        self.orders.send(order);
    }

    pub(crate) fn orders(&self) -> &Arc<Commands<Order>> {
        &self.orders
    }

    pub(crate) fn set_formed(&self, table: Arc<Table>) {
        self.inbox.update(|| {
            let _ = self.table.set(table);
        });
    }

    pub(crate) fn is_formed(&self) -> bool {
        self.table.get().is_some()
    }

    pub(crate) fn table(&self) -> Option<&Arc<Table>> {
        self.table.get()
    }

    pub(crate) fn set_finished(&self) {
        self.inbox.update(|| self.finished.store(true, Ordering::Release));
    }

    /// Waits until the thread has ended, or the deadline passes.
    pub(crate) fn wait_finished(&self, deadline: Instant) {
        self.inbox.wait_for(deadline, || self.is_finished());
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }
}
