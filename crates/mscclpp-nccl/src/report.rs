//! Lines for the user, of which `MSCCLPP_NCCL_DEBUG` or `NCCL_DEBUG` sets the level: on standard error, or in the file of
//! `NCCL_DEBUG_FILE`.

use std::{
    fs::{self, File},
    io,
    os::fd::AsRawFd,
    process,
    sync::OnceLock,
};

use crate::{
    env::{Env, Level},
    files::{self, Files},
};

/// The file of `NCCL_DEBUG_FILE`, once the first call of the library has opened it.
static FILE: OnceLock<Option<File>> = OnceLock::new();

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
    let to = FILE.get().and_then(Option::as_ref).map_or(libc::STDERR_FILENO, AsRawFd::as_raw_fd);
    // SAFETY: the bytes live until `write` returns. Its failure is ignored: there is no other place to report to.
    unsafe { libc::write(to, line.as_ptr().cast(), line.len()) };
}

/// Opens the file of `NCCL_DEBUG_FILE`, in whose name `%h` is the name of the node and `%p` the number of the process.
fn open_file() -> Option<File> {
    let name = files::lookup("NCCL_DEBUG_FILE").filter(|name| !name.is_empty())?;
    let path = name.to_string_lossy().replace("%h", &node()).replace("%p", &process::id().to_string());
    let opened: io::Result<File> = File::options().create(true).append(true).open(&path);
    opened.inspect_err(|error| always(&format!("NCCL_DEBUG_FILE: opening {path}: {error}"))).ok()
}

/// The name of the node.
pub(crate) fn node() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// Starts the log of the layers below, and reports which variables have no effect, or another one than they say. Later calls do
/// nothing.
pub(crate) fn begin() {
    static BEGUN: OnceLock<()> = OnceLock::new();
    BEGUN.get_or_init(|| {
        let opened = open_file();
        FILE.get_or_init(|| opened);
        if let Ok(Env { version, .. }) = Env::of_process()
            && of_process() >= Level::Version
        {
            let [major, minor, patch] = [version / 10_000, version / 100 % 100, version % 100];
            always(&format!(
                "NCCL version {major}.{minor}.{patch}, by mscclpp {}",
                env!("CARGO_PKG_VERSION")
            ));
        }
        if let Some(file) = &Files::of_process().unreadable {
            warn(&format!("a configuration file cannot be read: {file}"));
        }
        if let Ok(env) = Env::of_process() {
            env.notes.iter().for_each(|note| warn(note));
        }
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
