//! Lines for the user on standard error, of which `MSCCLPP_NCCL_DEBUG` or `NCCL_DEBUG` sets the level.

use std::{process, sync::OnceLock};

use crate::env::{Env, Level};

fn of_process() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(Level::of_process)
}

/// Whether lines of [`info`] are written.
pub(crate) fn is_info() -> bool {
    of_process() >= Level::Info
}

/// Writes a line about something that failed.
pub(crate) fn warn(text: &str) {
    if of_process() >= Level::Warn {
        always(text);
    }
}

/// Writes a line of information.
pub(crate) fn info(text: &str) {
    if is_info() {
        always(text);
    }
}

/// Writes a line at every level, at the first call only.
pub(crate) fn once(text: &str) {
    static WRITTEN: OnceLock<()> = OnceLock::new();
    WRITTEN.get_or_init(|| always(text));
}

/// Writes a line at every level. Takes no lock, as in a forked child a lock may be held for ever.
pub(crate) fn always(text: &str) {
    let line = format!("mscclpp-nccl [{}] {text}\n", process::id());
    // SAFETY: the bytes live until `write` returns. Its failure is ignored: there is no other place to report to.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}

/// Starts the log of the layers below, and reports which of NCCL's variables are ignored. Later calls do nothing.
pub(crate) fn begin() {
    static BEGUN: OnceLock<()> = OnceLock::new();
    BEGUN.get_or_init(|| {
        // If the log cannot be started, the layers below write to standard error.
        if let Err(error) = mscclpp::log::init() {
            warn(&format!("no log of the layers below: {error}"));
        }
        let ignored = Env::ignored();
        if !ignored.is_empty() {
            info(&format!("ignored: {}", ignored.join(", ")));
        }
    });
}
