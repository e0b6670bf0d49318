//! What graphs need while they are being captured.
//!
//! Through an event, a stream may join a capture that another stream has begun. So the needs of a captured launch are
//! noted under the driver's number of the capture, which is never used twice in a process. While no capture that was
//! begun here is in progress, a launch only checks that there is none.
//!
//! A capture that was begun outside this library makes a graph that is not ours, and keeps nothing alive.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;

use super::DriverStream;
use crate::Owner;

/// The driver's number of a capture.
pub(crate) type CaptureId = u64;

/// What one graph needs.
#[derive(Default)]
pub(crate) struct Needs {
    /// The objects among the arguments of its kernels: the graph and its launches keep them.
    pub(crate) owners: Vec<Owner>,
    /// The modules of its kernels: the graph keeps them. Its launches need not, as unloading a module waits for them.
    pub(crate) modules: Vec<Owner>,
}

/// The captures in progress that were begun here.
pub(crate) struct Captures {
    count: AtomicUsize,
    needs: Mutex<Option<HashMap<CaptureId, Needs>>>,
}

impl Captures {
    /// None yet.
    pub(crate) const fn new() -> Self {
        Self { count: AtomicUsize::new(0), needs: Mutex::new(None) }
    }

    pub(crate) fn begin(&self, id: CaptureId) {
        self.needs.lock().get_or_insert_default().insert(id, Needs::default());
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// What the graph needs, once.
    pub(crate) fn end(&self, id: CaptureId) -> Needs {
        let needs = self.needs.lock().as_mut().and_then(|needs| needs.remove(&id));
        if needs.is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
        needs.unwrap_or_default()
    }

    /// Notes what a launch needs that `stream` was just given, if that was captured. Whether it was.
    ///
    /// The thread that launches in a capture knows of its beginning, so the count is not 0 for it.
    pub(crate) fn note(&self, stream: &impl DriverStream, owners: &[Owner], modules: &[Owner]) -> bool {
        if self.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let Some(id) = stream.capture() else { return false };
        let mut all = self.needs.lock();
        let Some(needs) = all.as_mut().and_then(|all| all.get_mut(&id)) else { return false };
        extend(&mut needs.owners, owners);
        extend(&mut needs.modules, modules);
        true
    }
}

/// By those that are not in it.
fn extend(list: &mut Vec<Owner>, owners: &[Owner]) {
    for owner in owners {
        if !list.iter().any(|known| std::ptr::addr_eq(&raw const **known, &raw const **owner)) {
            list.push(owner.clone());
        }
    }
}
