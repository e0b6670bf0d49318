//! What a rank's callers and its thread share.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use crate::inbox::{Inbox, Stream};
use crate::protocol::table::Table;
use crate::tcp::poller::Waker;
use crate::tcp::service::Written;
use crate::{Error, Result};

/// What a caller wants of the thread.
pub(crate) enum Command {
    /// Send a message; `written` is set when it is with the system.
    Send { stream: Stream, bytes: Vec<u8>, written: Option<Written> },
    /// See that there is a connection to a peer, so that its end is noticed.
    Open { peer: usize },
    /// Fail the job.
    Fail(Error),
    /// Say goodbye and end.
    Close,
}

/// See the module.
///
/// A command is queued before the eventfd is set, and the thread clears the eventfd before it takes the queue: a command
/// is either taken in this turn, or its eventfd is still set for the next.
pub(crate) struct Shared {
    pub(crate) inbox: Arc<Inbox>,
    commands: Mutex<Vec<Command>>,
    waker: Waker,
    table: OnceLock<Arc<Table>>,
    finished: AtomicBool,
}

impl Shared {
    pub(crate) fn new(inbox: Arc<Inbox>) -> Result<Self> {
        Ok(Self {
            inbox,
            commands: Mutex::new(Vec::new()),
            waker: Waker::new().map_err(|e| Error::io("making an eventfd", e))?,
            table: OnceLock::new(),
            finished: AtomicBool::new(false),
        })
    }

    pub(crate) fn command(&self, command: Command) {
        self.commands.lock().push(command);
        self.waker.wake();
    }

    pub(crate) fn take_commands(&self) -> Vec<Command> {
        std::mem::take(&mut *self.commands.lock())
    }

    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// All ranks are connected.
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
