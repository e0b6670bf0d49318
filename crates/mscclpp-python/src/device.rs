//! The device that is meant where a program names none.

use mscclpp::{Error, Gpu, Platform, Stream};
use pyo3::{exceptions::PyOverflowError, prelude::*};

use crate::{error::OrRaise, uint::uint};

/// The platform that devices come from where a program names none.
pub(crate) fn platform(py: Python<'_>) -> PyResult<Platform> {
    py.detach(Platform::detect).or_raise()
}

/// The GPU of the calling thread.
pub(crate) fn current(py: Python<'_>) -> PyResult<Gpu> {
    // Other Python threads run meanwhile, and this stays the same thread.
    py.detach(|| Platform::detect()?.current_gpu()).or_raise()
}

/// How many GPUs, or simulated devices, this process sees; at least one. Raises `Error` if there is none, with a list
/// of what was tried.
#[pyfunction]
pub(crate) fn device_count(py: Python<'_>) -> PyResult<usize> {
    py.detach(|| Platform::detect()?.device_count()).or_raise()
}

/// Makes GPU `device`, counted from 0, the current one of the calling thread. Calls that name no device then use it,
/// also those of CuPy and PyTorch. A thread that has not called it uses GPU 0, or the one that another library has
/// made current. Raises `Error` if there is no such GPU. `mscclpp.set_device(rank % mscclpp.device_count())` spreads
/// ranks over the GPUs.
#[pyfunction]
#[pyo3(signature = (device: "typing.SupportsIndex"))]
pub(crate) fn set_device(py: Python<'_>, #[pyo3(from_py_with = number)] device: usize) -> PyResult<()> {
    py.detach(|| Platform::detect()?.gpu(device)?.make_current()).or_raise()
}

/// The stream of `gpu` with a driver's handle; 0 is the default stream.
pub(crate) fn stream(gpu: &Gpu, handle: usize) -> Result<Stream, Error> {
    if handle == 0 {
        return Ok(gpu.default_stream()?);
    }
    // SAFETY: the program says that this is a stream of the device, which lives.
    Ok(unsafe { Stream::from_raw(gpu, std::ptr::with_exposed_provenance_mut(handle)) }?)
}

/// Converts the argument that numbers a device.
pub(crate) fn number(given: &Bound<'_, PyAny>) -> PyResult<usize> {
    uint(given).map_err(|error| {
        let py = given.py();
        if !error.is_instance_of::<PyOverflowError>(py) {
            return error;
        }
        match device_count(py) {
            Ok(n) => PyOverflowError::new_err(format!(
                "expected the number of a device, 0 to {}, got {given}",
                n - 1
            )),
            Err(none) => none,
        }
    })
}
