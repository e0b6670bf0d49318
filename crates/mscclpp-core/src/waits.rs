//! The status words of a semaphore, which end the waits of kernels and tell how they ended.

use std::sync::{
    OnceLock,
    atomic::{AtomicU32, Ordering},
};

use crate::{Error, LinkMonitor, Result, monitor::Abortable, protocol::StatusWords, slab::StatusBlock};

/// The status words of a semaphore, and the reason why it was aborted.
///
/// The connection's monitor aborts this object and not the semaphore. During the abort a thread of the transport
/// holds the object. If it held the semaphore, the thread might become its last owner, and would have to close its
/// own connection. The thread does not become the last owner of this object either: a semaphore that is dropped waits
/// until the monitor has released it. Freeing its memory may wait for kernels, whose waits only that thread can end.
pub(crate) struct Waits {
    pub(crate) status: StatusBlock,
    aborted: OnceLock<Error>,
    /// The connection's monitor, which knows the peer's label.
    monitor: LinkMonitor,
}

/// The value of the word `refused` for `ReasonTriggerRange` of the headers, which comes with an abort.
const TRIGGER_RANGE: u32 = 2;
/// The value for `ReasonNoPort`, which comes with an abort, too.
const NO_PORT: u32 = 3;

impl Waits {
    pub(crate) fn new(status: StatusBlock, monitor: LinkMonitor) -> Self {
        Self { status, aborted: OnceLock::new(), monitor }
    }

    /// The reason why waits were ended, by the host or because the connection failed.
    pub(crate) fn aborted(&self) -> Option<&Error> {
        self.aborted.get()
    }

    /// Returns the error that [`Semaphore::failure`](crate::Semaphore::failure) reports.
    pub(crate) fn failure(&self) -> Option<Error> {
        if let Some(error) = self.aborted.get() {
            return Some(error.clone());
        }
        // Pairs with the kernel's release; nothing else needs ordering.
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

    /// Whether a wait of a kernel, or another call, has set one of its status words.
    pub(crate) fn have_said_something(&self) -> bool {
        self.status.words().is_ok_and(|StatusWords { timed_out, aborted, refused, .. }| {
            [timed_out, aborted, refused].into_iter().any(|word| word.load(Ordering::Relaxed) != 0)
        })
    }

    /// The same as [`Semaphore::check`](crate::Semaphore::check), but an abort, or a connection that has failed or
    /// was closed, only counts if a wait of a kernel ended because of it: a peer that is done may leave.
    pub(crate) fn check(&self) -> Result<()> {
        let status = self.status.words()?;
        // The kernel is complete, so its store comes before this load.
        let has_ended_a_wait = status.aborted.load(Ordering::Relaxed) != 0;
        // The kernel saw the abort request, so this load sees it too, and with it the reason, which was set before.
        status.abort.load(Ordering::Acquire);
        match self.failure() {
            Some(error) if has_ended_a_wait || matches!(error, Error::TriggerRefused { .. }) => Err(error),
            _ => self.check_bounds(),
        }
    }

    /// Reports, once, waits that timed out and packets that were refused since the last call.
    pub(crate) fn check_bounds(&self) -> Result<()> {
        let peer = || self.monitor.label();
        // Pairs with the kernel's store of 1; the kernel is complete, so nothing else needs ordering. Values above 1 are
        // left: they come together with an abort, and `failure` reports them, if not in this call then in the next.
        let happened =
            |word: &AtomicU32| word.compare_exchange(1, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let status = self.status.words()?;
        // A refused call may have made other waits time out, so it is reported as the cause.
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
        // The reason is set first, so that it is there for whoever sees the abort in the word. The first reason
        // stays.
        let _ = self.aborted.set(reason.clone());
        if let Ok(status) = self.status.words() {
            status.abort.store(1, Ordering::Release);
        }
    }
}
