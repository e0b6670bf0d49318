//! What Python objects hold: a value of this process alone.

use std::{mem::ManuallyDrop, process};

use mscclpp::ErrorKind;
use pyo3::prelude::*;

use crate::{error, waiting};

/// A value that a forked child neither uses nor drops: the threads, sockets and locks behind it stayed with the parent.
///
/// Dropping lets other Python threads run meanwhile.
pub(crate) struct Owned<T: Send + 'static> {
    value: ManuallyDrop<T>,
    process: u32,
    may_wait: bool,
}

impl<T: Send + 'static> Owned<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), process: process::id(), may_wait: false }
    }

    /// A value that may wait when it is dropped, for a peer or for a thread. Ctrl-C then ends the wait.
    pub(crate) fn that_may_wait(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), process: process::id(), may_wait: true }
    }

    /// # Errors
    /// In a forked child.
    pub(crate) fn get(&self) -> PyResult<&T> {
        let here = process::id();
        if here == self.process {
            return Ok(&self.value);
        }
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
        if process::id() != self.process {
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
