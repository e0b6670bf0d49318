//! `Owned`, which Python objects hold their value in. It belongs to one process, until it is closed.

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

/// How many objects were closed.
static CLOSED: AtomicU64 = AtomicU64::new(0);

/// A number that changes when any object is closed. Data that was derived from an object before the change must not
/// be used.
pub(crate) fn closed() -> u64 {
    CLOSED.load(Ordering::Relaxed)
}

/// The value of a Python object until the object is closed or dropped. A forked child neither uses nor drops it,
/// because the threads, sockets and locks that it needs stayed with the parent.
pub(crate) struct Owned<T: Send + 'static> {
    /// The name of the object's class in messages.
    name: &'static str,
    origin: Origin,
    /// The lock is held only to look at the value or to take it out, never while Python code runs, and never in a
    /// forked child.
    value: Mutex<Option<Held<T>>>,
}

/// The value during a call. It lives until the call ends, even if another thread closes the object meanwhile.
///
/// The last `Held` drops the value, and lets other Python threads run meanwhile.
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

    /// Makes one with a value whose destructor may wait for a peer or for a thread. Ctrl-C then ends the wait.
    pub(crate) fn that_may_wait(name: &'static str, value: T) -> Self {
        Self::holding(name, value, true)
    }

    fn holding(name: &'static str, value: T, may_wait: bool) -> Self {
        let origin = Origin::here();
        let value = Held(Arc::new(Value { value: ManuallyDrop::new(value), origin, may_wait }));
        Self { name, origin, value: Mutex::new(Some(value)) }
    }

    /// # Errors
    /// In a forked child, and after [`Owned::close`], an error says so.
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

    /// Whether the value can be used: the object is not closed, and this is not a forked child.
    pub(crate) fn is_open(&self) -> bool {
        self.origin.is_here() && self.value.lock().is_some()
    }

    /// Drops the value when the calls that use it have ended. Does nothing the second time, and in a forked child.
    pub(crate) fn close(&self) {
        if self.origin.is_here() {
            let value = self.value.lock().take();
            CLOSED.fetch_add(1, Ordering::Relaxed);
            // The lock is not held here, as the destructor may wait.
            drop(value);
        }
    }

    /// Returns the text for `repr`: the name, the text of `about`, and whether the object is closed.
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
            // A thread that runs no Python code must not attach to the interpreter, which may be about to end.
            return drop(value);
        }
        let mut value = Some(value);
        // If the interpreter has ended, there are no other Python threads.
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

/// Gives a class `close()`, `with` and `repr`. `$field` is the field with its [`Owned`]; `$about` returns more text
/// for `repr`.
macro_rules! closable {
    ($type:ident, $field:ident) => {
        closable!($type, $field, |_| String::new());
    };
    ($type:ident, $field:ident, $about:expr) => {
        #[pyo3::pymethods]
        impl $type {
            /// Closes the object. What it holds is freed when no other object needs it. Any later call raises. Calls
            /// that other threads have begun go on. A second `close()` does nothing.
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
