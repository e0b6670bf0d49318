//! Points in streams, by which the backend of `torch.distributed` orders streams and sees that calls are complete.

use mscclpp::{Error, Event, Gpu, Stream};
use pyo3::prelude::*;

use crate::{device, error::OrRaise};

/// A point in a stream: the end of the work that the stream had when the point was made.
#[pyclass(name = "_Point", module = "mscclpp._mscclpp", frozen)]
pub(crate) struct PyPoint {
    gpu: Gpu,
    event: Event,
    /// Whether the stream was being captured.
    #[pyo3(get)]
    is_captured: bool,
}

impl PyPoint {
    /// The point that `event` marks, outside of captures.
    pub(crate) fn of(gpu: &Gpu, event: Event) -> Self {
        Self { gpu: gpu.clone(), event, is_captured: false }
    }

    /// The present end of a stream.
    pub(crate) fn end_of(stream: &Stream) -> Result<Self, Error> {
        let gpu = stream.gpu().clone();
        let (event, is_captured) = (gpu.event(false)?, stream.is_capturing()?);
        stream.record(&event)?;
        Ok(Self { gpu, event, is_captured })
    }
}

#[pymethods]
impl PyPoint {
    /// The present end of a stream of a device.
    #[new]
    #[pyo3(signature = (device: "int", stream: "int"))]
    fn new(py: Python<'_>, device: usize, stream: usize) -> PyResult<Self> {
        let platform = device::platform(py)?;
        let made = || Self::end_of(&device::stream(&platform.gpu(device)?, stream)?);
        py.detach(made).or_raise()
    }

    /// Moves the point to the present end of its stream, unless a capture of the stream has begun or ended since. Returns
    /// whether it is there.
    #[pyo3(signature = (stream: "int"))]
    fn advance(&self, py: Python<'_>, stream: usize) -> PyResult<bool> {
        let advance = || {
            let stream = device::stream(&self.gpu, stream)?;
            let is_same = stream.is_capturing()? == self.is_captured;
            if is_same {
                stream.record(&self.event)?;
            }
            Ok::<_, Error>(is_same)
        };
        py.detach(advance).or_raise()
    }

    /// Makes later work of a stream of the device wait for the work before the point.
    #[pyo3(signature = (stream: "int"))]
    fn hold(&self, py: Python<'_>, stream: usize) -> PyResult<()> {
        let hold = || Ok::<_, Error>(device::stream(&self.gpu, stream)?.wait_event(&self.event)?);
        py.detach(hold).or_raise()
    }

    /// Whether the work before the point is complete. Does not block.
    fn is_complete(&self, py: Python<'_>) -> PyResult<bool> {
        py.detach(|| self.event.query()).map_err(Error::from).or_raise()
    }
}

/// Something that work is put behind: a point, or the present end of a stream.
pub(crate) enum Behind {
    Stream(usize),
    Point(Py<PyPoint>),
}

impl<'a, 'py> FromPyObject<'a, 'py> for Behind {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        match given.cast::<PyPoint>() {
            Ok(point) => Ok(Self::Point(point.to_owned().unbind())),
            Err(_) => Ok(Self::Stream(given.extract()?)),
        }
    }
}

impl Behind {
    /// Makes later work of `stream` wait for the point, or for the work that the other stream has now.
    pub(crate) fn hold(&self, stream: &Stream) -> Result<(), Error> {
        match self {
            Self::Stream(other) => stream.wait_stream(&device::stream(stream.gpu(), *other)?)?,
            Self::Point(point) => stream.wait_event(&point.get().event)?,
        }
        Ok(())
    }
}
