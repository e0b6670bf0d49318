//! The arguments of constructors of semaphores and channels: a semaphore, or a communicator and a connection, and more.

use std::sync::Arc;

use pyo3::{
    PyTypeInfo,
    exceptions::PyTypeError,
    prelude::*,
    types::{PyDict, PyTuple},
};

use crate::{
    communicator::PyCommunicator,
    connection::PyConnection,
    semaphore::{PySemaphore, SharedSemaphore},
};

/// The arguments of `Class(semaphore, ...)` or `Class(communicator, connection, ...)`.
pub(crate) struct Arguments<'py> {
    source: Source<'py>,
    /// The remaining arguments, in the order of their names.
    pub(crate) rest: Vec<Option<Bound<'py, PyAny>>>,
}

enum Source<'py> {
    Semaphore(Arc<SharedSemaphore>),
    Pair(Bound<'py, PyCommunicator>, Bound<'py, PyConnection>),
}

type OtherSemaphore = fn(&Bound<'_, PyAny>) -> Option<PyResult<Arc<SharedSemaphore>>>;

/// A constructor whose first arguments are a semaphore, or a communicator and a connection.
pub(crate) struct Constructor {
    pub(crate) name: &'static str,
    /// Returns the semaphore of an object of the other class that it accepts, if it accepts one.
    pub(crate) other: Option<OtherSemaphore>,
    /// The names of the remaining arguments.
    pub(crate) rest: &'static [&'static str],
}

impl<'py> Arguments<'py> {
    /// Returns None without any arguments, or if all of them are None.
    pub(crate) fn parse(
        constructor: &Constructor,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Option<Self>> {
        let count = args.len() + kwargs.map_or(0, PyDictMethods::len);
        let has = |name: &str| kwargs.map_or(Ok(false), |kwargs| kwargs.contains(name));
        let is_pair = has("communicator")?
            || has("connection")?
            || args.get_item(0).is_ok_and(|first| first.is_instance_of::<PyCommunicator>())
            || constructor.rest.is_empty() && count == 2;
        let first: &[&str] = if is_pair { &["communicator", "connection"] } else { &["semaphore"] };
        let mut values = match_names(constructor.name, &[first, constructor.rest].concat(), args, kwargs)?;
        if values.iter().all(Option::is_none) {
            return Ok(None);
        }
        let rest = values.split_off(first.len());
        let source = match &values[..] {
            [communicator, connection] => Source::Pair(
                constructor.cast(communicator, "communicator", "a Communicator")?,
                constructor.cast(connection, "connection", "a Connection")?,
            ),
            values => Source::Semaphore(constructor.semaphore(values.first().unwrap_or(&None))?),
        };
        Ok(Some(Self { source, rest }))
    }

    /// The semaphore: the one that was given, or one that is built with the peer now.
    pub(crate) fn semaphore(&self, py: Python<'_>) -> PyResult<Arc<SharedSemaphore>> {
        match &self.source {
            Source::Semaphore(semaphore) => Ok(Arc::clone(semaphore)),
            Source::Pair(communicator, connection) => {
                Ok(SharedSemaphore::of(communicator.get().build(py, &*connection.get().connection()?)?))
            }
        }
    }
}

impl Constructor {
    fn semaphore(&self, given: &Option<Bound<'_, PyAny>>) -> PyResult<Arc<SharedSemaphore>> {
        if let Some(semaphore) = self.other.zip(given.as_ref()).and_then(|(other, given)| other(given)) {
            return semaphore;
        }
        let expected = match self.other {
            Some(_) => "a Semaphore or a MemoryDevice2DeviceSemaphore",
            None => "a Semaphore",
        };
        self.cast::<PySemaphore>(given, "semaphore", expected)?.get().shared()
    }

    fn cast<'py, T: PyTypeInfo>(
        &self,
        given: &Option<Bound<'py, PyAny>>,
        name: &str,
        expected: &str,
    ) -> PyResult<Bound<'py, T>> {
        let got = match given {
            None => "nothing".to_owned(),
            Some(given) => match given.cast::<T>() {
                Ok(object) => return Ok(object.clone()),
                Err(_) => given.get_type().name()?.to_string(),
            },
        };
        let Self { name: class, rest, .. } = self;
        let behind: String = rest.iter().map(|name| format!(", {name}")).collect();
        Err(PyTypeError::new_err(format!(
            "argument '{name}': expected {expected}, got {got}; {class} is made as (semaphore{behind}) or (communicator, \
             connection{behind})"
        )))
    }
}

/// Returns the values of arguments that may be given by position or by name. Python's None counts as not given.
pub(crate) fn match_names<'py>(
    call: &str,
    names: &[&str],
    args: &Bound<'py, PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
) -> PyResult<Vec<Option<Bound<'py, PyAny>>>> {
    let mut values: Vec<Option<Bound<'py, PyAny>>> = args.iter().map(Some).collect();
    if values.len() > names.len() {
        return Err(PyTypeError::new_err(format!(
            "{call}() takes ({}), and was given {}",
            names.join(", "),
            values.len()
        )));
    }
    values.resize(names.len(), None);
    for (name, value) in kwargs.into_iter().flatten() {
        let name = name.extract::<String>()?;
        let place = names.iter().position(|known| *known == name).ok_or_else(|| {
            PyTypeError::new_err(format!("{call}() takes ({}), and no '{name}'", names.join(", ")))
        })?;
        if values[place].replace(value).is_some() {
            return Err(PyTypeError::new_err(format!("{call}() has the argument '{name}' twice")));
        }
    }
    Ok(values.into_iter().map(|value| value.filter(|value| !value.is_none())).collect())
}
