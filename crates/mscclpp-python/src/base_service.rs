//! `BaseProxyService`, from which a program derives a proxy service of its own.

use pyo3::{
    exceptions::PyNotImplementedError,
    prelude::*,
    types::{PyDict, PyTuple},
};

/// Base class of services with a proxy. It has the methods that start and stop the proxy.
#[pyclass(name = "BaseProxyService", module = "mscclpp._mscclpp", subclass, frozen)]
pub(crate) struct PyBaseProxyService;

#[pymethods]
impl PyBaseProxyService {
    #[new]
    #[pyo3(signature = (*_args: "object", **_kwargs: "object") -> "typing.Self")]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        Self
    }

    /// Starts the proxy. A derived class defines it.
    #[pyo3(signature = (blocking = false))]
    fn start_proxy(&self, blocking: bool) -> PyResult<()> {
        let _ = blocking;
        Err(PyNotImplementedError::new_err("a service of your own defines start_proxy(blocking)"))
    }

    /// Stops the proxy. A derived class defines it.
    fn stop_proxy(&self) -> PyResult<()> {
        Err(PyNotImplementedError::new_err("a service of your own defines stop_proxy()"))
    }

    /// Names the class of the object, which may be one of the program's own.
    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        Ok(format!("<mscclpp.{}>", slf.get_type().name()?))
    }
}
