//! What ends the waits of a semaphore's kernels, and what they say of themselves.

use std::sync::{
    OnceLock,
    atomic::{AtomicU32, Ordering},
};

use crate::{Error, LinkMonitor, Result, monitor::Abortable, protocol::StatusWords, slab::StatusBlock};

/// What ends the waits of a semaphore and says why.
///
/// The connection's monitor aborts this and not the semaphore. Meanwhile a thread of the transport holds it. If that were
/// the semaphore, the thread might become its last owner, and would have to close its own connection. The thread does not
/// become the last owner of this either: a semaphore that is dropped waits until the monitor has let go of it. To free
/// it, a driver may wait for kernels, whose waits only that thread can end.
pub(crate) struct Waits {
    pub(crate) status: StatusBlock,
    aborted: OnceLock<Error>,
    /// Says who the peer is.
    monitor: LinkMonitor,
}

/// In the word `refused`: `ReasonTriggerRange` of the headers, which comes with an abort.
const TRIGGER_RANGE: u32 = 2;
/// `ReasonNoPort`, which comes with an abort, too.
const NO_PORT: u32 = 3;

impl Waits {
    pub(crate) fn new(status: StatusBlock, monitor: LinkMonitor) -> Self {
        Self { status, aborted: OnceLock::new(), monitor }
    }

    /// Why they were ended, by the host or because the connection failed.
    pub(crate) fn aborted(&self) -> Option<&Error> {
        self.aborted.get()
    }

    /// See [`Semaphore::failure`](crate::Semaphore::failure).
    pub(crate) fn failure(&self) -> Option<Error> {
        if let Some(error) = self.aborted.get() {
            return Some(error.clone());
        }
        // Pairs with the kernel's release; no other order is needed.
        let refused = self.status.words().ok()?.refused.load(Ordering::Acquire);
        let reason = match refused {
            TRIGGER_RANGE => {
                "with an offset or size of 4 GiB or more, or a memory id of 512 or more; register larger memory in pieces"
            }
            NO_PORT => {
                "whose handle it had made of a semaphore's own handle; make it of the `semaphore_` of a port channel's handle"
            }
            _ => return None,
        };
        Some(Error::TriggerRefused { peer: self.monitor.label(), reason })
    }

    /// Whether a wait of a kernel, or another call, has said something of itself.
    pub(crate) fn have_said_something(&self) -> bool {
        self.status.words().is_ok_and(|StatusWords { timed_out, aborted, refused, .. }| {
            [timed_out, aborted, refused].into_iter().any(|word| word.load(Ordering::Relaxed) != 0)
        })
    }

    /// As [`Semaphore::check`](crate::Semaphore::check), but an abort, or a connection that has failed or was closed, only counts if a wait of a
    /// kernel ended with it: a peer that is done may leave.
    pub(crate) fn check(&self) -> Result<()> {
        let status = self.status.words()?;
        // The kernel is complete, which orders its store before.
        let has_ended_a_wait = status.aborted.load(Ordering::Relaxed) != 0;
        // The request that the kernel has seen, so this sees it too, and with it the reason, which was set before.
        status.abort.load(Ordering::Acquire);
        match self.failure() {
            Some(error) if has_ended_a_wait || matches!(error, Error::TriggerRefused { .. }) => Err(error),
            _ => self.check_bounds(),
        }
    }

    /// What kernels said of themselves since the last call.
    pub(crate) fn check_bounds(&self) -> Result<()> {
        let peer = || self.monitor.label();
        // Pairs with the kernel's store of 1; the kernel is complete, so nothing else needs ordering.
        // A reason other than 1 stays: it came with an abort, after `failure` was asked.
        let happened =
            |word: &AtomicU32| word.compare_exchange(1, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let status = self.status.words()?;
        // Whoever was refused may have made others wait in vain: this is the cause.
        let (refused, timed_out) = (happened(status.refused), happened(status.timed_out));
        if refused {
            let reason = "a kernel used LL128 packets where lines need not arrive whole (MemoryChannel::check_lines \
                          says why), by threads that are no whole warps or with memory that is not global, or packets \
                          at an address that is no multiple of their size";
            return Err(Error::PacketsRefused { peer: peer(), reason: reason.to_owned() });
        }
        match timed_out {
            true => Err(Error::DeviceWaitTimedOut { peer: peer() }),
            false => Ok(()),
        }
    }
}

impl Abortable for Waits {
    fn abort(&self, reason: &Error) {
        // The reason first: who sees the abort through the word can read why. The first one stays.
        let _ = self.aborted.set(reason.clone());
        if let Ok(status) = self.status.words() {
            status.abort.store(1, Ordering::Release);
        }
    }
}
