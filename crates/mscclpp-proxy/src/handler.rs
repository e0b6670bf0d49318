//! What a proxy does with triggers.

use crate::{Error, FifoPosition, ProxyTrigger, Result};

/// Whether a proxy goes on after a trigger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyHandlerResult {
    /// With the next trigger.
    Continue,
    /// Not: its thread ends, until the proxy is started again.
    Stop,
    /// With the same trigger, which there is no room for now: the proxy calls [`ProxyHandler::progress`] and hands it
    /// over again. It stays in the FIFO meanwhile, and so do those behind it.
    Retry,
}

/// Whether a handler waits for something that it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// No: the proxy may nap.
    Idle,
    /// Yes: the proxy goes on asking, and does not nap meanwhile.
    Busy,
}

/// What is done with triggers. Closures of a trigger are handlers.
pub trait ProxyHandler: Send + 'static {
    /// Handles the trigger of a position; afterwards a kernel's `sync` on it returns. Must not block: all triggers
    /// behind it wait.
    ///
    /// # Errors
    /// What ends the proxy for good.
    fn handle(&mut self, trigger: ProxyTrigger, position: FifoPosition) -> Result<ProxyHandlerResult>;

    /// Called when there are no triggers, after every 32 of them at the latest, and after [`ProxyHandlerResult::Retry`]. So
    /// a handler may gather what triggers ask for, and start it here.
    ///
    /// # Errors
    /// As [`ProxyHandler::handle`].
    fn progress(&mut self) -> Result<Progress> {
        Ok(Progress::Idle)
    }

    /// Called once at a stop, when everything that was pushed before it has been handled: from now on `progress` is to
    /// say [`Progress::Busy`] until all that was started is complete.
    ///
    /// # Errors
    /// As [`ProxyHandler::handle`].
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }

    /// Called every millisecond or so while there are no triggers: is all well?
    ///
    /// # Errors
    /// As [`ProxyHandler::handle`].
    fn check(&mut self) -> Result<()> {
        Ok(())
    }

    /// The proxy has failed; nothing else is called afterwards. On the proxy's thread, or, where none runs, on the one
    /// that called [`crate::Proxy::abort`].
    fn failed(&mut self, error: &Error) {
        let _ = error;
    }
}

impl<F: FnMut(ProxyTrigger) -> ProxyHandlerResult + Send + 'static> ProxyHandler for F {
    fn handle(&mut self, trigger: ProxyTrigger, _position: FifoPosition) -> Result<ProxyHandlerResult> {
        Ok(self(trigger))
    }
}
