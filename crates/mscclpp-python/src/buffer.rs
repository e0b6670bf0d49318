//! `RawGpuBuffer`: device memory that peers can be given.

use std::sync::OnceLock;

use mscclpp::{DeviceBuffer, Platform};
use pyo3::{
    exceptions::{PyAttributeError, PyBufferError},
    prelude::*,
    types::PyDict,
};

use crate::{
    device,
    dlpack::{self, Tensor},
    enums::enumeration,
    error::{self, OrRaise},
    owned::{Held, Owned, closable},
    raw::Bytes,
    retired::{self, RetireOnDrop},
    uint::{Uint, uint},
};

enumeration! {
    /// How the size of a buffer is rounded up. This is a hint: sizes are always rounded to the driver's granularity.
    PyGranularity as "GpuBufferGranularity" {
        MultiCastMinimum = 0,
        MultiCastRecommended = 1,
        AllocationMinimum = 2,
        AllocationRecommended = 3,
    }
}

/// `nelems` bytes of zeroed device memory on the current GPU, which can be registered for every transport. On the
/// simulated platform it is also ordinary host memory.
#[pyclass(name = "RawGpuBuffer", module = "mscclpp._mscclpp", frozen)]
pub(crate) struct PyRawGpuBuffer {
    inner: Owned<RetireOnDrop>,
    /// Kept because arrays may use the memory that know only its address and this object.
    viewed: OnceLock<Held<RetireOnDrop>>,
}

#[pymethods]
impl PyRawGpuBuffer {
    #[new]
    #[pyo3(signature = (nelems, granularity = PyGranularity::MultiCastMinimum))]
    fn new(py: Python<'_>, nelems: Uint<u64>, granularity: PyGranularity) -> PyResult<Self> {
        let _ = granularity;
        let gpu = device::current(py)?;
        let buffer = py.detach(|| {
            retired::sweep();
            gpu.allocate(nelems.0)
        });
        let inner = Owned::new("RawGpuBuffer", RetireOnDrop(buffer.or_raise()?));
        Ok(Self { inner, viewed: OnceLock::new() })
    }

    /// How many bytes were asked for.
    fn nelems(&self) -> PyResult<u64> {
        Ok(self.buffer()?.len())
    }

    /// How many bytes the buffer has.
    fn bytes(&self) -> PyResult<u64> {
        Ok(self.buffer()?.len())
    }

    /// The address of the buffer on the device.
    fn data(&self) -> PyResult<u64> {
        Ok(self.buffer()?.ptr().0)
    }

    /// The number of the buffer's GPU.
    fn device_id(&self) -> PyResult<usize> {
        Ok(self.buffer()?.gpu().id())
    }

    /// Returns a DLPack capsule of the memory as an array. Without a shape, the array has as many elements as fit.
    /// `data_type` is a name such as `float32` or `torch.float16`; strides count elements.
    #[pyo3(signature = (data_type, shape = Vec::new(), strides = Vec::new()))]
    fn to_dlpack<'py>(
        &self,
        py: Python<'py>,
        data_type: &str,
        shape: Vec<i64>,
        strides: Vec<i64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        dlpack::capsule(py, Tensor::new(self.buffer()?, data_type, shape, strides)?)
    }

    /// The type of the device, as DLPack numbers them, and the number of the GPU.
    fn __dlpack_device__(&self) -> PyResult<(i32, i32)> {
        Ok(dlpack::device(&self.buffer()?).numbers())
    }

    /// The bytes as a DLPack capsule. There are neither copies nor other devices.
    #[pyo3(signature = (*, stream: "object" = None, max_version: "object" = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<Bound<'py, PyAny>>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = (stream, max_version);
        let device = self.__dlpack_device__()?;
        if copy == Some(true) || dl_device.is_some_and(|wanted| wanted != device) {
            return Err(PyBufferError::new_err(format!(
                "a RawGpuBuffer gives its memory, on device {device:?} of DLPack, and no copy"
            )));
        }
        self.to_dlpack(py, "uint8", Vec::new(), Vec::new())
    }

    /// The array interface of NumPy, on the simulated platform only.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.interface(py, Platform::Sim)
    }

    /// The array interface of CuPy, PyTorch and Numba, on CUDA only.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.interface(py, Platform::Cuda)
    }

    /// Waits until the writes of kernels and copies are done, and returns a copy of the bytes.
    #[pyo3(signature = (offset: "typing.SupportsIndex" = 0, size = None) -> "builtins.bytes")]
    fn read<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = uint)] offset: u64,
        size: Option<Uint<u64>>,
    ) -> PyResult<Bound<'py, pyo3::types::PyBytes>> {
        let buffer = self.buffer()?;
        let size = size.map_or(buffer.len().saturating_sub(offset), |Uint(size)| size);
        if size > buffer.len() {
            return Err(error::misuse(format!("read of {size} bytes of a buffer of {}", buffer.len())));
        }
        let mut bytes = vec![0; size as usize];
        py.detach(|| buffer.read(offset, &mut bytes)).or_raise()?;
        Ok(pyo3::types::PyBytes::new(py, &bytes))
    }

    /// Copies bytes into the buffer.
    #[pyo3(signature = (data, offset: "typing.SupportsIndex" = 0))]
    fn write(&self, py: Python<'_>, data: Bytes, #[pyo3(from_py_with = uint)] offset: u64) -> PyResult<()> {
        let buffer = self.buffer()?;
        py.detach(|| buffer.write(offset, &data.0)).or_raise()
    }
}

impl PyRawGpuBuffer {
    fn buffer(&self) -> PyResult<DeviceBuffer> {
        Ok(self.inner.get()?.0.clone())
    }

    fn interface<'py>(&self, py: Python<'py>, on: Platform) -> PyResult<Bound<'py, PyDict>> {
        let buffer = self.buffer()?;
        if buffer.gpu().platform() != on {
            return Err(PyAttributeError::new_err(format!(
                "this memory is that of a device of {}",
                buffer.gpu().platform()
            )));
        }
        let held = self.inner.get()?;
        self.viewed.get_or_init(|| held);
        let interface = PyDict::new(py);
        interface.set_item("shape", (buffer.len(),))?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("data", (buffer.ptr().0, false))?;
        interface.set_item("version", 3)?;
        Ok(interface)
    }
}

closable!(PyRawGpuBuffer, inner, |RetireOnDrop(b)| format!(" of {} bytes on {}", b.len(), b.gpu()));
