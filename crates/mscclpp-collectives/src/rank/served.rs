//! The communicators of a process that one thread serves, as long as there are some.

use std::{sync::Arc, thread};

use mscclpp::{
    errors::{GpuError, SystemFailure},
    gpu::fork::OfProcess,
};
use parking_lot::Mutex;

use crate::Result;

/// The communicators of a process, and whether a thread serves them. A forked child makes a new one: it has none of its parent's
/// threads, and one of those may have held the lock.
pub(super) struct Served<T> {
    all: Vec<Arc<T>>,
    has_thread: bool,
}

/// The type of a static that holds the communicators of the process.
pub(super) type OfThisProcess<T> = Mutex<Option<OfProcess<Arc<Mutex<Served<T>>>>>>;

impl<T> Served<T> {
    /// Returns the communicators of this process. Those that are found in `place` may be the parent's.
    pub(super) fn of_process(place: &OfThisProcess<T>) -> Arc<Mutex<Self>> {
        let mut place = place.lock();
        match &*place {
            Some(served) if served.is_here() => Arc::clone(served),
            _ => Arc::clone(place.insert(OfProcess::default())),
        }
    }

    /// Returns the communicators, for the thread that serves them. If there are none, the thread counts as ended, and must end:
    /// the next [`add`](Self::add) starts another one.
    pub(super) fn all(&mut self) -> &[Arc<T>] {
        self.has_thread = !self.all.is_empty();
        &self.all
    }

    pub(super) fn remove(&mut self, communicator: &Arc<T>) {
        self.all.retain(|served| !Arc::ptr_eq(served, communicator));
    }
}

impl<T: Send + Sync + 'static> Served<T> {
    /// Adds a communicator, and starts the thread `mscclpp-NAME` that does `serve`, unless it runs.
    ///
    /// # Errors
    /// [`GpuError::System`] if the thread cannot be started.
    pub(super) fn add(
        served: &Arc<Mutex<Self>>,
        communicator: &Arc<T>,
        name: &str,
        serve: fn(&Mutex<Self>),
    ) -> Result<()> {
        let mut them = served.lock();
        if !them.has_thread {
            let of_thread = Arc::clone(served);
            let thread = thread::Builder::new().name(format!("mscclpp-{name}"));
            thread.spawn(move || serve(&of_thread)).map_err(|error| {
                GpuError::System(SystemFailure::new(format!("starting the thread mscclpp-{name}"), error))
            })?;
            them.has_thread = true;
        }
        them.all.push(Arc::clone(communicator));
        Ok(())
    }
}

impl<T> Default for Served<T> {
    fn default() -> Self {
        Self { all: Vec::new(), has_thread: false }
    }
}
