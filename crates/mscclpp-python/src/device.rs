//! Which device is meant where a program names none.

use mscclpp::{Gpu, Platform};
use pyo3::prelude::*;

use crate::error::OrRaise;

/// The platform that devices come from where a program says nothing else.
pub(crate) fn platform(py: Python<'_>) -> PyResult<Platform> {
    py.detach(Platform::detect).or_raise()
}

/// The GPU of the calling thread.
pub(crate) fn current(py: Python<'_>) -> PyResult<Gpu> {
    // Letting others run does not leave the thread.
    py.detach(|| Platform::detect()?.current_gpu()).or_raise()
}
