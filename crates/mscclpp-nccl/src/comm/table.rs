//! The communicators of this process, and the handles by which C code names them.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
    time::Duration,
};

use parking_lot::RwLock;

use super::Comm;
use crate::{abi::Handle, answers, failure::Failure, pointers};

/// The communicators of this process, by handle.
static COMMS: LazyLock<RwLock<HashMap<usize, Arc<Comm>>>> = LazyLock::new(RwLock::default);

/// Adds a communicator to the table, and returns its handle.
pub(crate) fn add(comm: &Arc<Comm>) -> Handle {
    let handle = pointers::next_handle();
    COMMS.write().insert(handle.addr(), Arc::clone(comm));
    handle
}

/// The communicator of a handle.
///
/// # Errors
/// [`Code::INVALID_ARGUMENT`](crate::abi::Code::INVALID_ARGUMENT) if there is none.
/// [`Code::INVALID_USAGE`](crate::abi::Code::INVALID_USAGE) in a forked child, where the table may be locked for ever.
pub(crate) fn of(handle: Handle) -> Result<Arc<Comm>, Failure> {
    answers::check_process()?;
    COMMS.read().get(&handle.addr()).cloned().ok_or_else(|| unknown(handle))
}

/// The communicator of which a handle is a window.
///
/// # Errors
/// [`Code::INVALID_ARGUMENT`](crate::abi::Code::INVALID_ARGUMENT) if there is none.
pub(crate) fn with_window(window: Handle) -> Result<Arc<Comm>, Failure> {
    let comms = COMMS.read();
    let comm = comms.values().find(|comm| comm.registrations.windows.lock().contains_key(&window.addr()));
    comm.cloned().ok_or_else(|| Failure::argument(format!("`window` is {window:p}, which is no window")))
}

/// Removes a handle from the table, and returns its communicator.
///
/// # Errors
/// The same as of [`of`].
pub(crate) fn remove(handle: Handle) -> Result<Arc<Comm>, Failure> {
    COMMS.write().remove(&handle.addr()).ok_or_else(|| unknown(handle))
}

/// All communicators of the table.
pub(crate) fn all() -> Vec<Arc<Comm>> {
    COMMS.read().values().cloned().collect()
}

/// Removes all handles from the table and returns their communicators, when the process ends. Returns none if another thread
/// holds the table's lock for longer than 100 milliseconds.
pub(crate) fn remove_all() -> Vec<Arc<Comm>> {
    let comms = COMMS.try_write_for(Duration::from_millis(100));
    comms.map(|mut comms| comms.drain().map(|(_, comm)| comm).collect()).unwrap_or_default()
}

fn unknown(handle: Handle) -> Failure {
    Failure::argument(match handle.is_null() {
        true => "`comm` is NULL".to_owned(),
        false => format!("`comm` is {handle:p}, which is no communicator: it was destroyed, or never made"),
    })
}
