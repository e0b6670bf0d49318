//! What Python objects hold: a value of this process alone, until they are closed.

use std::{
    mem::ManuallyDrop,
    ops::Deref,
    process,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use mscclpp::gpu::fork::Origin;
use parking_lot::Mutex;
use pyo3::{ffi, prelude::*};

use crate::{error, waiting};

/// How often an object was closed.
static CLOSED: AtomicU64 = AtomicU64::new(0);

/// Changes when any object is closed: what was made of one before must not be used then.
pub(crate) fn closed() -> u64 {
    CLOSED.load(Ordering::Relaxed)
}

/// What a Python object holds until it is closed or dropped: a value that a forked child neither uses nor drops, as the
/// threads, sockets and locks behind it stayed with the parent.
pub(crate) struct Owned<T: Send + 'static> {
    /// What the object is called in messages.
    name: &'static str,
    origin: Origin,
    /// Locked only to look at it or to take it out, never while Python code runs, and never in a forked child.
    value: Mutex<Option<Held<T>>>,
}

/// The value during a call. It stays, even if another thread closes the object meanwhile.
///
/// The last one drops the value, and lets other Python threads run meanwhile.
pub(crate) struct Held<T: Send + 'static>(Arc<Value<T>>);

struct Value<T: Send + 'static> {
    value: ManuallyDrop<T>,
    origin: Origin,
    may_wait: bool,
}

impl<T: Send + 'static> Owned<T> {
    pub(crate) fn new(name: &'static str, value: T) -> Self {
        Self::holding(name, value, false)
    }

    /// A value that may wait when it is dropped, for a peer or for a thread. Ctrl-C then ends the wait.
    pub(crate) fn that_may_wait(name: &'static str, value: T) -> Self {
        Self::holding(name, value, true)
    }

    fn holding(name: &'static str, value: T, may_wait: bool) -> Self {
        let origin = Origin::here();
        let value = Held(Arc::new(Value { value: ManuallyDrop::new(value), origin, may_wait }));
        Self { name, origin, value: Mutex::new(Some(value)) }
    }

    /// # Errors
    /// In a forked child, and after [`Owned::close`].
    pub(crate) fn get(&self) -> PyResult<Held<T>> {
        let Self { name, origin, .. } = self;
        if !origin.is_here() {
            let (process, here) = (origin.process(), process::id());
            return Err(error::misuse(format!(
                "this {name} was made in process {process} and is used in process {here}, a fork of it, which has none of \
                 its devices, threads and connections; start processes with multiprocessing's \"spawn\", or fork before \
                 the first use of mscclpp"
            )));
        }
        let value = self.value.lock().as_ref().map(|held| Held(Arc::clone(&held.0)));
        value.ok_or_else(|| error::misuse(format!("this {name} is closed; make another one")))
    }

    /// Whether it can be used: it is neither closed nor in a forked child.
    pub(crate) fn is_open(&self) -> bool {
        self.origin.is_here() && self.value.lock().is_some()
    }

    /// Lets go of the value. Calls that have it go on. Does nothing the second time, and in a forked child.
    pub(crate) fn close(&self) {
        if self.origin.is_here() {
            let value = self.value.lock().take();
            CLOSED.fetch_add(1, Ordering::Relaxed);
            // Without the lock: this may wait.
            drop(value);
        }
    }

    /// What `repr` gives: the name, what `about` says of the value, and whether it is closed.
    pub(crate) fn show(&self, about: impl FnOnce(&T) -> String) -> String {
        let name = self.name;
        if !self.origin.is_here() {
            return format!("<mscclpp.{name} of process {}>", self.origin.process());
        }
        let value = self.get();
        value
            .map_or(format!("<mscclpp.{name}, closed>"), |value| format!("<mscclpp.{name}{}>", about(&value)))
    }
}

impl<T: Send + 'static> Deref for Held<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T: Send + 'static> Drop for Value<T> {
    fn drop(&mut self) {
        if !self.origin.is_here() {
            return;
        }
        // SAFETY: taken once, here, and `self` is not used any more.
        let value = unsafe { ManuallyDrop::take(&mut self.value) };
        // SAFETY: it looks at what belongs to this thread, and may be called at any time.
        if unsafe { ffi::PyGILState_GetThisThreadState() }.is_null() {
            // A thread that runs no Python code does not begin to: the interpreter may be about to go.
            return drop(value);
        }
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

/// Gives a class `close()`, `with` and `repr`. `$field` is its [`Owned`]; `$about` says more of the value.
macro_rules! closable {
    ($type:ident, $field:ident) => {
        closable!($type, $field, |_| String::new());
    };
    ($type:ident, $field:ident, $about:expr) => {
        #[pyo3::pymethods]
        impl $type {
            /// Lets go of what it holds, which is freed when no other object needs it. Any other call then raises. Calls of
            /// other threads go on; a second `close()` does nothing.
            fn close(&self) {
                self.$field.close();
            }

            fn __enter__(slf: pyo3::Py<Self>) -> pyo3::PyResult<pyo3::Py<Self>> {
                slf.get().$field.get()?;
                Ok(slf)
            }

            #[pyo3(signature = (*_exception: "object"))]
            fn __exit__(&self, _exception: &pyo3::Bound<'_, pyo3::types::PyTuple>) {
                self.$field.close();
            }

            fn __repr__(&self) -> String {
                self.$field.show($about)
            }
        }
    };
}
pub(crate) use closable;
