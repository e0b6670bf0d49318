//! Lines for the user on standard error, of which `MSCCLPP_NCCL_DEBUG` or `NCCL_DEBUG` sets the level.

use std::{ffi::OsString, process, sync::OnceLock};

use crate::env::Env;

/// Which lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// No lines.
    Nothing,
    /// Failures.
    Warn,
    /// Failures, a line for each communicator, and one at its end with statistics of its calls.
    Info,
}

/// The level that the environment sets. NCCL's other levels map to the nearest of these. Other values mean no lines, as in NCCL.
pub(crate) fn level(lookup: impl Fn(&'static str) -> Option<OsString>) -> Level {
    let set = |name| lookup(name).filter(|value| !value.is_empty());
    let Some(value) = set("MSCCLPP_NCCL_DEBUG").or_else(|| set("NCCL_DEBUG")) else { return Level::Nothing };
    match value.to_string_lossy().to_ascii_uppercase().as_str() {
        "INFO" | "ABORT" | "TRACE" => Level::Info,
        "WARN" => Level::Warn,
        _ => Level::Nothing,
    }
}

fn of_process() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(|| level(std::env::var_os))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_variable_goes_before_nccls() {
        let of = |own: &'static str, nccl: &'static str| {
            level(move |name| Some(if name == "NCCL_DEBUG" { nccl } else { own }.into()))
        };
        assert_eq!(of("", "INFO"), Level::Info);
        assert_eq!(of("warn", "INFO"), Level::Warn);
        assert_eq!(of("", "VERSION"), Level::Nothing);
        assert_eq!(of("", "TRACE"), Level::Info);
        assert_eq!(level(|_| None), Level::Nothing);
    }
}
