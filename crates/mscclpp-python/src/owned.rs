//! What Python objects hold: a value of this process alone.

use std::{mem::ManuallyDrop, process};

use mscclpp::ErrorKind;
use pyo3::prelude::*;

use crate::error;

/// A value that a forked child neither uses nor drops: the threads, sockets and locks behind it stayed with the parent.
///
/// Dropping lets other Python threads run meanwhile, since it may wait for a peer.
pub(crate) struct Owned<T: Send> {
    value: ManuallyDrop<T>,
    process: u32,
}

impl<T: Send> Owned<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), process: process::id() }
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

impl<T: Send> Drop for Owned<T> {
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
            py.detach(move || drop(value));
        });
    }
}
