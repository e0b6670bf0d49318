//! Between a rank's callers and its thread: commands one way, and what became of the job the other way.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use mscclpp_net::event_loop::Commands;

use crate::inbox::{Inbox, Stream};
use crate::protocol::table::Table;
use crate::tcp::service::Written;
use crate::{Error, Result};

/// What a caller wants of the thread.
pub(crate) enum Command {
    /// Send a message.
    Send { stream: Stream, bytes: Vec<u8>, sent: Option<Sent> },
    /// See that there is a connection to a peer, so that its end is noticed.
    Open { peer: usize },
    /// Fail the job.
    Fail(Error),
    /// Say goodbye and end.
    Close,
}

/// How far a message is that a caller waits for.
pub(crate) struct Sent {
    /// Set when the thread looks after it: see [`Inbox::begin_send`].
    pub(crate) taken: Arc<AtomicBool>,
    /// Set when it is with the system.
    pub(crate) written: Written,
}

/// What a rank's callers and its thread share.
pub(crate) struct Shared {
    pub(crate) inbox: Arc<Inbox>,
    commands: Arc<Commands<Command>>,
    table: OnceLock<Arc<Table>>,
    finished: AtomicBool,
}

impl Shared {
    pub(crate) fn new(inbox: Arc<Inbox>) -> Result<Self> {
        Ok(Self {
            inbox,
            commands: Arc::new(Commands::new()?),
            table: OnceLock::new(),
            finished: AtomicBool::new(false),
        })
    }

    pub(crate) fn command(&self, command: Command) {
        self.commands.send(command);
    }

    pub(crate) fn commands(&self) -> &Arc<Commands<Command>> {
        &self.commands
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
