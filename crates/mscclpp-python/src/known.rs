//! The connections through which the memory of peers is mapped.

use std::process;

use mscclpp::{Connection, channels::WeakConnection};
use parking_lot::Mutex;

/// The connections of this program, through which a peer's memory is mapped when its address is asked for. Each has
/// the process that made it, because a forked child has none of its parent's.
static KNOWN: Mutex<Vec<(u32, WeakConnection)>> = Mutex::new(Vec::new());

pub(crate) fn remember(connection: &Connection) {
    let mut all = KNOWN.lock();
    all.retain(|(_, known)| !known.is_closed());
    if !all.iter().any(|(_, known)| known.is(connection)) {
        all.push((process::id(), connection.downgrade()));
    }
}

/// Returns the connections of this process that are open.
pub(crate) fn all() -> Vec<Connection> {
    let all = KNOWN.lock();
    let ours = all.iter().filter(|(process, _)| *process == process::id());
    ours.filter_map(|(_, known)| known.upgrade()).collect()
}
