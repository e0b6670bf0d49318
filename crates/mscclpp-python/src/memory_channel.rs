//! `BaseMemoryChannel` and `MemoryChannel`.

use mscclpp::{BaseMemoryChannel, DevicePtr, MemoryChannel, RegisteredMemory, Semaphore};
use pyo3::{exceptions::PyTypeError, prelude::*};

use crate::{
    error::OrRaise,
    handle::{BaseMemoryHandle, MemoryHandle},
    memory::PyRegisteredMemory,
    owned::Owned,
    semaphore::{PyDeviceToDevice, PySemaphore},
    waiting,
};

/// A channel by which kernels synchronise.
#[pyclass(name = "BaseMemoryChannel", module = "mscclpp._mscclpp", frozen)]
pub(crate) struct PyBaseMemoryChannel {
    inner: Owned<Option<BaseMemoryChannel>>,
}

#[pymethods]
impl PyBaseMemoryChannel {
    #[new]
    #[pyo3(signature = (semaphore = None))]
    fn new(semaphore: Option<SemaphoreArgument>) -> PyResult<Self> {
        let channel =
            semaphore.map(|semaphore| BaseMemoryChannel::new(&semaphore.0)).transpose().or_raise()?;
        Ok(Self { inner: Owned::new(channel) })
    }

    fn device_handle(&self) -> PyResult<BaseMemoryHandle> {
        let channel = self.inner.get()?.as_ref().ok_or_else(|| empty("BaseMemoryChannel"))?;
        Ok(BaseMemoryHandle(channel.device_handle()))
    }
}

/// A channel by which kernels move data.
#[pyclass(name = "MemoryChannel", module = "mscclpp._mscclpp", frozen)]
pub(crate) struct PyMemoryChannel {
    inner: Owned<Option<MemoryChannel>>,
}

#[pymethods]
impl PyMemoryChannel {
    /// `packet_buffer` is the address of this side's packet buffer, or that memory.
    #[new]
    #[pyo3(signature = (semaphore = None, dst = None, src = None, packet_buffer = None))]
    fn new(
        py: Python<'_>,
        semaphore: Option<SemaphoreArgument>,
        dst: Option<&PyRegisteredMemory>,
        src: Option<&PyRegisteredMemory>,
        packet_buffer: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let channel = match (semaphore, dst, src) {
            (None, None, None) => None,
            (Some(SemaphoreArgument(semaphore)), Some(dst), Some(src)) => {
                let packets =
                    packet_buffer.map(|given| packet_memory(&semaphore, given)).transpose()?.flatten();
                let (dst, src) = (dst.memory()?.clone(), src.memory()?.clone());
                let make = move || MemoryChannel::new(&semaphore, &dst, &src, packets.as_ref());
                Some(waiting::wait(py, make)?)
            }
            _ => {
                return Err(PyTypeError::new_err(
                    "MemoryChannel() takes semaphore, dst and src, and perhaps packet_buffer, or nothing",
                ));
            }
        };
        Ok(Self { inner: Owned::new(channel) })
    }

    fn device_handle(&self) -> PyResult<MemoryHandle> {
        let channel = self.inner.get()?.as_ref().ok_or_else(|| empty("MemoryChannel"))?;
        Ok(MemoryHandle(channel.device_handle()))
    }
}

fn empty(class: &str) -> PyErr {
    crate::error::misuse(format!("this {class} is empty: make one of a semaphore"))
}

/// The memory at an address that a program gives as its packet buffer, if it is not 0.
fn packet_memory(semaphore: &Semaphore, given: &Bound<'_, PyAny>) -> PyResult<Option<RegisteredMemory>> {
    /// Where it begins is all that a channel takes from it: this is one packet.
    const LEN: u64 = 16;
    if let Ok(memory) = given.cast::<PyRegisteredMemory>() {
        return Ok(Some(memory.get().memory()?.clone()));
    }
    let address: u64 = given.extract().map_err(|_| {
        PyTypeError::new_err("argument 'packet_buffer': expected an address (int) or a RegisteredMemory")
    })?;
    if address == 0 {
        return Ok(None);
    }
    let connection = semaphore.connection();
    // SAFETY: the program says that its packet buffer is there, for as long as it uses the channel. No Rust reference
    // covers it: it is not this library's.
    let memory =
        unsafe { connection.context().register_memory(DevicePtr(address), LEN, connection.transport()) };
    memory.map(Some).or_raise()
}

/// What is accepted where kernels signal each other.
struct SemaphoreArgument(Semaphore);

impl<'a, 'py> FromPyObject<'a, 'py> for SemaphoreArgument {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(semaphore) = object.cast::<PyDeviceToDevice>() {
            return Ok(Self(semaphore.get().semaphore()?.clone()));
        }
        match object.cast::<PySemaphore>() {
            Ok(semaphore) => Ok(Self(semaphore.get().shared()?.semaphore().clone())),
            Err(_) => Err(PyTypeError::new_err(format!(
                "expected a MemoryDevice2DeviceSemaphore or a Semaphore, got {}",
                object.get_type().name()?
            ))),
        }
    }
}
