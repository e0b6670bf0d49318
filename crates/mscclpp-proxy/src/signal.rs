//! The dump on SIGUSR1.

use std::{fmt, io::Write as _, sync::Weak, thread::JoinHandle};

use signal_hook::{
    consts::SIGUSR1,
    iterator::{Handle, Signals},
};

use crate::{Error, ProxyService, Result, service::Inner};

/// As long as this is kept, SIGUSR1 makes this process write what its proxy services wait for to standard error.
///
/// Made by [`ProxyService::dump_on_sigusr1`]. Keeps no service.
#[must_use = "dropping it ends the dumps"]
pub struct DumpOnSignal {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl ProxyService {
    /// From now on, SIGUSR1 writes [`ProxyService::dump`] of this service to standard error (`kill -USR1 PID`), from a
    /// thread of its own. Other handlers of that signal that were installed through the `signal-hook` crate still run;
    /// the process's own default action, which would end it, does not, and is not put back.
    ///
    /// # Errors
    /// [`Error::System`] if the handler or the thread cannot be had.
    pub fn dump_on_sigusr1(&self) -> Result<DumpOnSignal> {
        let failed = |e: std::io::Error| Error::System {
            operation: "installing a handler of SIGUSR1".to_owned(),
            message: e.to_string(),
        };
        let mut signals = Signals::new([SIGUSR1]).map_err(failed)?;
        let handle = signals.handle();
        let service = std::sync::Arc::downgrade(&self.inner);
        let thread = std::thread::Builder::new()
            .name("mscclpp-dump".to_owned())
            // Ends when the handle is closed.
            .spawn(move || signals.forever().for_each(|_| dump(&service)))
            .map_err(failed)?;
        Ok(DumpOnSignal { handle, thread: Some(thread) })
    }
}

fn dump(service: &Weak<Inner>) {
    if let Some(service) = service.upgrade() {
        let text = service.dump(service.failure());
        // In one piece; nobody can be told that standard error is gone.
        let _ = std::io::stderr().lock().write_all(text.as_bytes());
    }
}

impl Drop for DumpOnSignal {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // It does not panic.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for DumpOnSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DumpOnSignal").finish_non_exhaustive()
    }
}
