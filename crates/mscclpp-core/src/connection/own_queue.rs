//! The queue for the operations of a connection itself.

use std::time::Duration;

use crate::{
    Result,
    provider::{Operation, Queue},
};

/// How long an operation waits for room in the queue.
pub(crate) const ROOM_TIMEOUT: Duration = Duration::from_secs(30);

/// The queue for the operations of a connection itself.
pub(super) struct OwnQueue {
    pub(super) queue: Box<dyn Queue>,
    /// The last flush's ticket, and whether no operation was submitted after it.
    ticket: u64,
    pub(super) is_flushed: bool,
}

impl OwnQueue {
    pub(super) fn new(queue: Box<dyn Queue>) -> Self {
        Self { queue, ticket: 0, is_flushed: true }
    }

    /// Returns the ticket of a flush behind everything submitted so far; `None` if there is no room for it now.
    pub(super) fn request_flush(&mut self) -> Result<Option<u64>> {
        // Nothing new is submitted if nothing came after the last flush, so that flushes which time out and are
        // repeated do not pile up.
        if !self.is_flushed {
            // SAFETY: a flush has no memory.
            let taken = unsafe { self.queue.submit(&[Operation::Flush { ticket: self.ticket + 1 }])? };
            if taken == 0 {
                self.queue.progress()?;
                return Ok(None);
            }
            self.ticket += 1;
            self.is_flushed = true;
        }
        Ok(Some(self.ticket))
    }
}
