//! Which device is meant where a program names none.

use mscclpp::{Gpu, Platform};
use pyo3::{exceptions::PyOverflowError, prelude::*};

use crate::{error::OrRaise, uint::uint};

/// The platform that devices come from where a program says nothing else.
pub(crate) fn platform(py: Python<'_>) -> PyResult<Platform> {
    py.detach(Platform::detect).or_raise()
}

/// The GPU of the calling thread.
pub(crate) fn current(py: Python<'_>) -> PyResult<Gpu> {
    // Letting others run does not leave the thread.
    py.detach(|| Platform::detect()?.current_gpu()).or_raise()
}

/// How many GPUs this process sees, or simulated devices; at least one. Raises `Error` where there is none, which says
/// what was looked for.
#[pyfunction]
pub(crate) fn device_count(py: Python<'_>) -> PyResult<usize> {
    py.detach(|| Platform::detect()?.device_count()).or_raise()
}

/// Makes GPU `device`, counted from 0, the current one of the calling thread: what names no device then means this one,
/// also with CuPy and PyTorch. A thread that has not called it has GPU 0, or the one that another library made current.
/// Raises `Error` if there is no such GPU. `mscclpp.set_device(rank % mscclpp.device_count())` spreads ranks over the GPUs.
#[pyfunction]
#[pyo3(signature = (device: "typing.SupportsIndex"))]
pub(crate) fn set_device(py: Python<'_>, #[pyo3(from_py_with = number)] device: usize) -> PyResult<()> {
    py.detach(|| Platform::detect()?.gpu(device)?.make_current()).or_raise()
}

/// The number of a device, as an argument.
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
