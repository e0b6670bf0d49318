//! The objects that graphs need, while they are being captured.
//!
//! Through an event, a stream may join a capture that another stream has begun. So the needs of a captured launch are
//! noted under the driver's number of the capture, which is never used twice in a process. Only streams that may be part
//! of a capture are asked ([`DriverStream::may_be_captured`]).
//!
//! A capture that was begun outside this library makes a graph that is not ours. It is given a *user object* of the
//! driver, which lives as long as the graph, its copies and their launches, and which holds the owners. At its end, the
//! driver calls a function, which must not call the driver; dropping an owner may. So that function only puts the owners
//! aside, and they are dropped when memory is allocated, a stream is found idle, or a thread asks for it.

use std::{collections::HashMap, ffi::c_void};

use parking_lot::Mutex;

use super::DriverStream;
use crate::Owner;

/// The driver's number of a capture.
pub(crate) type CaptureId = u64;

/// The objects that one graph needs.
#[derive(Default)]
pub(crate) struct Needs {
    /// The objects among the arguments of its kernels: the graph and its launches keep them.
    pub(crate) owners: Vec<Owner>,
    /// The modules of its kernels: the graph keeps them. Its launches need not, as unloading a module waits for them.
    pub(crate) modules: Vec<Owner>,
}

/// The captures in progress that were begun here, and what graphs of others do not need any more.
pub(crate) struct Captures {
    needs: Mutex<Option<HashMap<CaptureId, Needs>>>,
    /// Locked only to put something in or to take all out.
    freed: Mutex<Vec<Owner>>,
}

/// The owners that the launches of one stream gave to the graph of a capture in progress.
#[derive(Default)]
pub(crate) struct Given {
    capture: CaptureId,
    /// Addresses of owners. The graph keeps these, so they are no others while the capture goes on.
    owners: Vec<*const ()>,
}

// SAFETY: the addresses are only compared.
unsafe impl Send for Given {}

/// The content of a user object.
struct Held {
    owners: Vec<Owner>,
    captures: &'static Captures,
}

impl Captures {
    /// None yet.
    pub(crate) const fn new() -> Self {
        Self { needs: Mutex::new(None), freed: Mutex::new(Vec::new()) }
    }

    pub(crate) fn begin(&self, id: CaptureId) {
        self.needs.lock().get_or_insert_default().insert(id, Needs::default());
    }

    /// Takes the objects that the graph needs.
    pub(crate) fn end(&self, id: CaptureId) -> Needs {
        self.needs.lock().as_mut().and_then(|needs| needs.remove(&id)).unwrap_or_default()
    }

    /// Notes what the launch that `stream` was just given needs, if it was captured; a graph of others is given that. Returns
    /// whether it was captured.
    pub(crate) fn note(
        &'static self,
        stream: &impl DriverStream,
        given: &Mutex<Given>,
        owners: &[Owner],
        modules: &[Owner],
    ) -> bool {
        if !stream.may_be_captured() {
            return false;
        }
        let Some((id, graph)) = stream.capture() else { return false };
        if let Some(needs) = self.needs.lock().as_mut().and_then(|all| all.get_mut(&id)) {
            extend(&mut needs.owners, owners);
            extend(&mut needs.modules, modules);
            return true;
        }
        let mut given = given.lock();
        if given.capture != id {
            *given = Given { capture: id, owners: Vec::new() };
        }
        let mut new: Vec<Owner> = Vec::new();
        for owner in owners.iter().chain(modules) {
            if !given.owners.contains(&address(owner)) {
                given.owners.push(address(owner));
                new.push(owner.clone());
            }
        }
        if new.is_empty() {
            return true;
        }
        let held = Box::into_raw(Box::new(Held { owners: new, captures: self }));
        // SAFETY: `released` takes what was made here, once.
        unsafe { stream.give_to_graph(graph, held.cast(), released) };
        true
    }

    /// Drops what graphs of others do not need any more.
    pub(crate) fn sweep(&self) {
        let freed = std::mem::take(&mut *self.freed.lock());
        drop(freed);
    }
}

/// Called by the driver, in any thread, when the graph and its launches are gone.
///
/// # Safety
/// `held` is a `Held` that was given to a graph, and is given back once.
unsafe extern "C" fn released(held: *mut c_void) {
    // SAFETY: the caller's promise.
    let Held { mut owners, captures } = *unsafe { Box::from_raw(held.cast::<Held>()) };
    captures.freed.lock().append(&mut owners);
}

fn address(owner: &Owner) -> *const () {
    (&raw const **owner).cast()
}

/// Adds the owners that are not in the list yet.
fn extend(list: &mut Vec<Owner>, owners: &[Owner]) {
    for owner in owners {
        if !list.iter().any(|known| address(known) == address(owner)) {
            list.push(owner.clone());
        }
    }
}
