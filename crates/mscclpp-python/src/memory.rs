//! `RegisteredMemory`.

use mscclpp::{Context, DevicePtr, RegisteredMemory, Transport, TransportFlags, errors::CoreError};
use pyo3::{prelude::*, types::PyBytes};

use crate::{
    error::{self, OrRaise},
    known,
    owned::{Owned, closable},
    raw::Bytes,
    transport::PyTransportFlags,
};

/// Memory that can be the source or destination of transfers: this process's or a peer's.
#[pyclass(name = "RegisteredMemory", module = "mscclpp._mscclpp", frozen)]
pub(crate) struct PyRegisteredMemory {
    inner: Owned<Option<Memory>>,
}

#[derive(Clone)]
pub(crate) struct Memory {
    memory: RegisteredMemory,
    /// Whether it was registered for no transport in particular, so that it cannot be sent.
    is_for_here: bool,
}

impl PyRegisteredMemory {
    pub(crate) fn of(memory: RegisteredMemory) -> Self {
        Self { inner: Owned::new("RegisteredMemory", Some(Memory { memory, is_for_here: false })) }
    }

    /// Registers memory that the program names by its address. If `transports` is empty, it is registered for use in
    /// this process, for all transports that accept it.
    pub(crate) fn register(
        py: Python<'_>,
        context: &Context,
        ptr: u64,
        size: u64,
        transports: TransportFlags,
    ) -> PyResult<Self> {
        let register = |transports: TransportFlags| {
            // SAFETY: by calling this, the program says that the address is memory which lives as long as it is
            // registered. No Rust reference covers it, as it is not this library's.
            unsafe { context.register_memory(DevicePtr(ptr), size, transports) }
        };
        let is_for_here = transports.none();
        let memory = py.detach(|| {
            if !is_for_here {
                return register(transports);
            }
            let takes = |transport: &Transport| register((*transport).into()).is_ok();
            register(context.transports().iter().filter(takes).collect())
        });
        Ok(Self {
            inner: Owned::new("RegisteredMemory", Some(Memory { memory: memory.or_raise()?, is_for_here })),
        })
    }

    pub(crate) fn memory(&self) -> PyResult<RegisteredMemory> {
        Ok(self.parts()?.memory)
    }

    /// # Errors
    /// An error if the memory was registered for no transport.
    pub(crate) fn to_send(&self) -> PyResult<RegisteredMemory> {
        let Memory { memory, is_for_here } = self.parts()?;
        if is_for_here {
            return Err(error::misuse(
                "this memory was registered without transports, for use in this process; to send it, register it for the \
                 transports by which peers reach it",
            ));
        }
        Ok(memory)
    }

    fn parts(&self) -> PyResult<Memory> {
        self.inner.get()?.clone().ok_or_else(|| error::misuse("this RegisteredMemory is empty"))
    }
}

#[pymethods]
impl PyRegisteredMemory {
    #[new]
    fn new() -> Self {
        Self { inner: Owned::new("RegisteredMemory", None) }
    }

    /// The address of the memory in this process. A peer's memory is mapped by this call, if there is a connection to
    /// its process over which memory can be mapped; else the address is 0. Raises the error if it cannot be mapped.
    fn data(&self, py: Python<'_>) -> PyResult<u64> {
        let memory = self.memory()?;
        if let Some(ptr) = memory.data() {
            return Ok(ptr.0);
        }
        py.detach(|| map(&memory)).or_raise()
    }

    /// How many bytes the memory has.
    fn size(&self) -> PyResult<u64> {
        Ok(self.memory()?.size())
    }

    /// The transports that the memory is registered for.
    fn transports(&self) -> PyResult<PyTransportFlags> {
        let Memory { memory, is_for_here } = self.parts()?;
        Ok(PyTransportFlags(if is_for_here { TransportFlags::NONE } else { memory.transports() }))
    }

    /// The bytes from which a peer makes this memory with `deserialize()`.
    fn serialize<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.to_send()?.serialize().or_raise()?))
    }

    /// The memory that a peer has serialized.
    #[staticmethod]
    fn deserialize(data: Bytes) -> PyResult<Self> {
        Ok(Self::of(RegisteredMemory::deserialize(&data.0).or_raise()?))
    }
}

/// Returns the address of a peer's memory, or 0 without a connection that can map it.
fn map(memory: &RegisteredMemory) -> Result<u64, CoreError> {
    let mut failed = Ok(0);
    for connection in &known::all() {
        match connection.peer_ptr(memory) {
            Ok(Some(ptr)) => return Ok(ptr.0),
            // The memory is another peer's, or was not registered for the transport.
            Ok(None) | Err(CoreError::InvalidArgument(_) | CoreError::NotRegistered { .. }) => {}
            // A connection that has failed may be one with another peer.
            Err(_) if connection.check().is_err() => {}
            Err(error) => failed = failed.and(Err(error)),
        }
    }
    failed
}

closable!(PyRegisteredMemory, inner, |memory| match memory {
    Some(Memory { is_for_here: true, memory }) => format!(" of {} bytes, for use here", memory.size()),
    Some(Memory { memory, .. }) => format!(" of {} bytes for {}", memory.size(), memory.transports()),
    None => ", empty".to_owned(),
});
