//! `UniqueId`.

use std::hash::{DefaultHasher, Hash, Hasher};

use mscclpp::UniqueId;
use pyo3::{prelude::*, types::PyBytes};

use crate::error::OrRaise;

/// The identity of a job: one process makes it and passes it to the others, for example by pickling it.
#[pyclass(name = "UniqueId", module = "mscclpp._mscclpp", from_py_object, eq)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PyUniqueId(pub(crate) Option<UniqueId>);

#[pymethods]
impl PyUniqueId {
    #[new]
    fn new() -> Self {
        Self(None)
    }

    /// The id as 128 bytes, its key among them: whoever has them can join the job.
    fn __getstate__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.map_or([0; UniqueId::SIZE], |id| id.to_bytes()))
    }

    /// Takes the bytes that `__getstate__()` gave.
    fn __setstate__(&mut self, state: &[u8]) -> PyResult<()> {
        let is_empty = state.len() == UniqueId::SIZE && state.iter().all(|byte| *byte == 0);
        self.0 = if is_empty { None } else { Some(UniqueId::from_bytes(state).or_raise()?) };
        Ok(())
    }

    /// Hashes the part of the id that is not secret, in which any two jobs differ.
    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.__repr__().hash(&mut hasher);
        hasher.finish()
    }

    fn __repr__(&self) -> String {
        self.0.map_or("UniqueId()".to_owned(), |id| format!("{id:?}"))
    }
}
