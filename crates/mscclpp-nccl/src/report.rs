//! Lines for the user, on standard error, as `MSCCLPP_NCCL_DEBUG` or `NCCL_DEBUG` asks for.

use std::{ffi::OsString, process, sync::OnceLock};

use crate::env::Env;

/// Which lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// None.
    Nothing,
    /// What fails.
    Warn,
    /// Each communicator, and at its end what was called.
    Info,
}

/// The level of the environment. NCCL's other levels are the next one here; a value that is none counts as none, as for NCCL.
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

/// Whether lines about communicators are written.
pub(crate) fn is_info() -> bool {
    of_process() >= Level::Info
}

/// A line about something that failed.
pub(crate) fn warn(text: &str) {
    if of_process() >= Level::Warn {
        always(text);
    }
}

/// A line about what goes on.
pub(crate) fn info(text: &str) {
    if is_info() {
        always(text);
    }
}

/// A line that is written whatever the level is, and not again.
pub(crate) fn once(text: &str) {
    static WRITTEN: OnceLock<()> = OnceLock::new();
    WRITTEN.get_or_init(|| always(text));
}

/// A line that is written whatever the level is. Takes no lock, which a forked child might find locked for ever.
pub(crate) fn always(text: &str) {
    let line = format!("mscclpp-nccl [{}] {text}\n", process::id());
    // SAFETY: the bytes live until it returns. If nobody reads standard error, there is nobody else to tell.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}

/// Says once which of NCCL's variables mean nothing here, and starts the log of the layers below.
pub(crate) fn begin() {
    static BEGUN: OnceLock<()> = OnceLock::new();
    BEGUN.get_or_init(|| {
        // Without it, or with a malformed variable, lines about waits go to standard error.
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
