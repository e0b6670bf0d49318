//! What Python objects hold: a value of this process alone.

use std::{
    mem::ManuallyDrop,
    process,
    sync::{
        Once,
        atomic::{AtomicU32, Ordering},
    },
};

use mscclpp::ErrorKind;
use pyo3::prelude::*;

use crate::{error, waiting};

/// How often the process was forked, counted in the child. To compare it costs nothing, and to ask for the process's number
/// is a system call.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// From now on forks are counted.
pub(crate) fn count_forks() -> PyResult<()> {
    extern "C" fn in_child() {
        // The child has one thread, this one.
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    static COUNTING: Once = Once::new();
    let mut refused = 0;
    // SAFETY: the function may be called in a fork: it touches nothing but an atomic number, and lives as long as the process,
    // since an interpreter unloads no modules.
    COUNTING.call_once(|| refused = unsafe { libc::pthread_atfork(None, None, Some(in_child)) });
    match refused {
        0 => Ok(()),
        number => {
            let cause = std::io::Error::from_raw_os_error(number);
            Err(error::new(ErrorKind::System, format!("having forks counted failed: {cause}")))
        }
    }
}

fn forks() -> u32 {
    // Set before anything else runs in the child.
    FORKS.load(Ordering::Relaxed)
}

/// A value that a forked child neither uses nor drops: the threads, sockets and locks behind it stayed with the parent.
///
/// Dropping lets other Python threads run meanwhile.
pub(crate) struct Owned<T: Send + 'static> {
    value: ManuallyDrop<T>,
    process: u32,
    forks: u32,
    may_wait: bool,
}

impl<T: Send + 'static> Owned<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), process: process::id(), forks: forks(), may_wait: false }
    }

    /// A value that may wait when it is dropped, for a peer or for a thread. Ctrl-C then ends the wait.
    pub(crate) fn that_may_wait(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), process: process::id(), forks: forks(), may_wait: true }
    }

    /// # Errors
    /// In a forked child.
    pub(crate) fn get(&self) -> PyResult<&T> {
        if forks() == self.forks {
            return Ok(&self.value);
        }
        let here = process::id();
        Err(error::new(
            ErrorKind::InvalidUsage,
            format!(
                "this object was made in process {} and is used in process {here}, a fork of it, which has none of its \
                 threads and connections; make it anew here, or start processes with multiprocessing's \"spawn\"",
                self.process
            ),
        ))
    }
}

impl<T: Send + 'static> Drop for Owned<T> {
    fn drop(&mut self) {
        if forks() != self.forks {
            return;
        }
        // SAFETY: taken once, here, and `self` is not used any more.
        let value = unsafe { ManuallyDrop::take(&mut self.value) };
        let mut value = Some(value);
        // Without an interpreter, there are no threads to let run.
        let _ = Python::try_attach(|py| {
            let value = value.take();
            if self.may_wait {
                waiting::let_go(py, value);
            } else {
                py.detach(move || drop(value));
            }
        });
    }
}
