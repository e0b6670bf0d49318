//! The state between a rank's callers and its thread: commands one way, and the outcome of the job the other way.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mscclpp_net::event_loop::Commands;

use crate::Result;
use crate::inbox::Inbox;
use crate::job::{Command, LONGEST_LINGER};
use crate::protocol::table::Table;

/// The side of a rank's reactor that callers hold: they give it commands, and find the outcome of the job.
pub(crate) struct ReactorHandle {
    pub(crate) inbox: Arc<Inbox>,
    commands: Arc<Commands<Command>>,
    table: OnceLock<Arc<Table>>,
    finished: AtomicBool,
}

impl ReactorHandle {
    pub(crate) fn new(inbox: Arc<Inbox>) -> Result<Self> {
        Ok(Self {
            inbox,
            commands: Arc::new(Commands::new()?),
            table: OnceLock::new(),
            finished: AtomicBool::new(false),
        })
    }

    /// Gives the job a command.
    pub(crate) fn command(&self, command: Command) {
        self.commands.send(command);
    }

    pub(crate) fn commands(&self) -> &Arc<Commands<Command>> {
        &self.commands
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

    /// Lets the rank leave, and waits until its thread has ended, which takes little more than [`LONGEST_LINGER`] at most.
    pub(crate) fn close(&self) {
        self.command(Command::Close);
        let deadline = Instant::now() + LONGEST_LINGER + Duration::from_secs(1);
        self.inbox.wait_for(deadline, || self.is_finished());
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }
}
