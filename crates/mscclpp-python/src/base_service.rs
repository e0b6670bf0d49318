//! `BaseProxyService`, which a service of a program's own is derived from.

use pyo3::{
    exceptions::PyNotImplementedError,
    prelude::*,
    types::{PyDict, PyTuple},
};

/// What any service with a proxy offers to those that start and stop it; to be derived from.
#[pyclass(name = "BaseProxyService", module = "mscclpp._mscclpp", subclass, frozen)]
pub(crate) struct PyBaseProxyService;

#[pymethods]
impl PyBaseProxyService {
    #[new]
    #[pyo3(signature = (*_args: "object", **_kwargs: "object") -> "typing.Self")]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        Self
    }

    /// Starts the proxy; to be defined by a service of your own.
    #[pyo3(signature = (blocking = false))]
    fn start_proxy(&self, blocking: bool) -> PyResult<()> {
        let _ = blocking;
        Err(PyNotImplementedError::new_err("a service of your own defines start_proxy(blocking)"))
    }

    /// Stops the proxy; to be defined by a service of your own.
    fn stop_proxy(&self) -> PyResult<()> {
        Err(PyNotImplementedError::new_err("a service of your own defines stop_proxy()"))
    }

    /// Of one of your own, too.
    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        Ok(format!("<mscclpp.{}>", slf.get_type().name()?))
    }
}
