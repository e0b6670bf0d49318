//! The code that a proxy runs for triggers.

use crate::{Error, FifoPosition, ProxyTrigger, Result};

/// Whether a proxy goes on after a trigger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyHandlerResult {
    /// The proxy goes on with the next trigger.
    Continue,
    /// The proxy does not go on: its thread ends, until the proxy is started again.
    Stop,
    /// There is no room for this trigger now: the proxy calls [`ProxyHandler::progress`] and hands it over again. It
    /// stays in the FIFO meanwhile, and so do the triggers after it.
    Retry,
}

/// Whether a handler waits for an operation that it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The handler waits for nothing: the proxy may nap.
    Idle,
    /// The handler waits: the proxy goes on asking, and does not nap meanwhile.
    Busy,
}

/// Handles triggers. A closure that takes a trigger is a handler.
pub trait ProxyHandler: Send + 'static {
    /// Handles the trigger at a position. Once this returns, a kernel's `sync` on the trigger returns. Must not block,
    /// because all later triggers wait.
    ///
    /// # Errors
    /// Any error ends the proxy for good.
    fn handle(&mut self, trigger: ProxyTrigger, position: FifoPosition) -> Result<ProxyHandlerResult>;

    /// Called when there are no triggers, at the latest after every 32 triggers, and after
    /// [`ProxyHandlerResult::Retry`]. So a handler may gather what triggers ask for, and start it here.
    ///
    /// # Errors
    /// The same as [`ProxyHandler::handle`].
    fn progress(&mut self) -> Result<Progress> {
        Ok(Progress::Idle)
    }

    /// Called once at a stop, when everything pushed before the stop has been handled. From then on `progress` must
    /// return [`Progress::Busy`] until everything that was started is complete.
    ///
    /// # Errors
    /// The same as [`ProxyHandler::handle`].
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }

    /// Called about every millisecond while there are no triggers, to check that all is well.
    ///
    /// # Errors
    /// The same as [`ProxyHandler::handle`].
    fn check(&mut self) -> Result<()> {
        Ok(())
    }

    /// Called when the proxy has failed; nothing else is called afterwards. Called on the proxy's thread, or, if none
    /// runs, on the thread that called [`Proxy::abort`](crate::Proxy::abort).
    fn failed(&mut self, error: &Error) {
        let _ = error;
    }
}

impl<F: FnMut(ProxyTrigger) -> ProxyHandlerResult + Send + 'static> ProxyHandler for F {
    fn handle(&mut self, trigger: ProxyTrigger, _position: FifoPosition) -> Result<ProxyHandlerResult> {
        Ok(self(trigger))
    }
}
