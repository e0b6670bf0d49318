//! `SemaphoreStub` and `Semaphore`.

use std::sync::Arc;

use mscclpp::{
    Semaphore, SemaphoreStub,
    channels::{HostToDeviceSemaphore, HostToHostSemaphore},
    errors::CoreError,
};
use parking_lot::Mutex;
use pyo3::{exceptions::PyTypeError, prelude::*, types::PyBytes};

use crate::{
    connection::PyConnection,
    error::{self, OrRaise},
    macros::abortable,
    memory::PyRegisteredMemory,
    owned::{Owned, closable},
    raw::Bytes,
    waiting,
};

/// One side's part of a semaphore, which is sent to the peer.
#[pyclass(name = "SemaphoreStub", module = "mscclpp._mscclpp", frozen)]
pub(crate) struct PySemaphoreStub {
    inner: Owned<SemaphoreStub>,
}

#[pymethods]
impl PySemaphoreStub {
    #[new]
    fn new(py: Python<'_>, connection: &PyConnection) -> PyResult<Self> {
        let connection = connection.connection()?;
        let stub = py.detach(|| SemaphoreStub::new(&connection)).or_raise()?;
        Ok(Self { inner: Owned::that_may_wait("SemaphoreStub", stub) })
    }

    /// The memory that holds the token. Other semaphores use the same memory.
    fn memory(&self) -> PyResult<PyRegisteredMemory> {
        Ok(PyRegisteredMemory::of(self.inner.get()?.memory().clone()))
    }

    /// The bytes from which the peer makes this stub with `deserialize()`.
    fn serialize<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.inner.get()?.serialize().or_raise()?))
    }

    /// The stub that a peer has serialized.
    #[staticmethod]
    fn deserialize(data: Bytes) -> PyResult<Self> {
        Ok(Self { inner: Owned::new("SemaphoreStub", SemaphoreStub::deserialize(&data.0).or_raise()?) })
    }
}

/// A semaphore that several Python objects share. The host's side of a semaphore exists once, because it counts the
/// signals sent. It is taken when it is first needed, so that a proxy service can take it instead.
pub(crate) struct SharedSemaphore {
    semaphore: Semaphore,
    to_device: Mutex<Option<HostToDeviceSemaphore>>,
    to_host: Mutex<Option<Arc<HostToHostSemaphore>>>,
}

impl SharedSemaphore {
    pub(crate) fn of(semaphore: Semaphore) -> Arc<Self> {
        Arc::new(Self { semaphore, to_device: Mutex::default(), to_host: Mutex::default() })
    }

    pub(crate) fn semaphore(&self) -> &Semaphore {
        &self.semaphore
    }

    /// Gives the host's side back, if these objects have it. Signals that were sent before arrive before those of the
    /// next owner.
    pub(crate) fn give_up_host_side(&self) -> Result<(), CoreError> {
        if self.to_device.lock().is_some() {
            self.semaphore.connection().flush(std::time::Duration::from_secs(30))?;
            *self.to_device.lock() = None;
        }
        Ok(())
    }

    pub(crate) fn signal_device(&self) -> Result<(), CoreError> {
        let mut side = self.to_device.lock();
        let side = match &mut *side {
            Some(side) => side,
            none => none.insert(HostToDeviceSemaphore::new(&self.semaphore)?),
        };
        side.signal()
    }

    pub(crate) fn to_host(&self) -> Result<Arc<HostToHostSemaphore>, CoreError> {
        let mut side = self.to_host.lock();
        if let Some(side) = &*side {
            return Ok(Arc::clone(side));
        }
        Ok(Arc::clone(side.insert(Arc::new(HostToHostSemaphore::new(&self.semaphore)?))))
    }
}

/// Signals between the two ends of a connection. Each end has a token, which the signals of the other end increase.
#[pyclass(name = "Semaphore", module = "mscclpp._mscclpp", frozen)]
pub(crate) struct PySemaphore {
    inner: Owned<Option<Arc<SharedSemaphore>>>,
}

impl PySemaphore {
    pub(crate) fn of(semaphore: Semaphore) -> Self {
        Self { inner: Owned::that_may_wait("Semaphore", Some(SharedSemaphore::of(semaphore))) }
    }

    pub(crate) fn shared(&self) -> PyResult<Arc<SharedSemaphore>> {
        let empty = "this Semaphore is empty: make one of two stubs, or with Communicator.build_semaphore";
        self.inner.get()?.clone().ok_or_else(|| error::misuse(empty))
    }

    pub(crate) fn waited(&self) -> PyResult<Semaphore> {
        Ok(self.shared()?.semaphore.clone())
    }
}

#[pymethods]
impl PySemaphore {
    #[new]
    #[pyo3(signature = (local_stub = None, remote_stub = None))]
    fn new(
        py: Python<'_>,
        local_stub: Option<&PySemaphoreStub>,
        remote_stub: Option<&PySemaphoreStub>,
    ) -> PyResult<Self> {
        match (local_stub, remote_stub) {
            (Some(local), Some(remote)) => {
                let (local, remote) = (local.inner.get()?.clone(), remote.inner.get()?.clone());
                waiting::wait(py, move || Semaphore::new(&local, &remote)).map(Self::of)
            }
            (None, None) => Ok(Self { inner: Owned::new("Semaphore", None) }),
            _ => Err(PyTypeError::new_err("Semaphore() takes both local_stub and remote_stub, or neither")),
        }
    }

    /// The memory with this side's token.
    fn local_memory(&self) -> PyResult<PyRegisteredMemory> {
        Ok(PyRegisteredMemory::of(self.shared()?.semaphore.local_memory().clone()))
    }

    /// The memory with the peer's token.
    fn remote_memory(&self) -> PyResult<PyRegisteredMemory> {
        Ok(PyRegisteredMemory::of(self.shared()?.semaphore.remote_memory().clone()))
    }

    /// Raises the error that happened to the semaphore, if there was one, even if no wait ended because of it: an
    /// abort, a lost peer, a peer that has left, or a spin bound.
    fn check(&self) -> PyResult<()> {
        self.shared()?.semaphore.check().or_raise()
    }
}

/// The text of `repr` about the peer of a semaphore.
pub(crate) fn peer(semaphore: &Semaphore) -> String {
    format!(" with {}", semaphore.connection().label())
}

/// Gives the class of a semaphore the method `connection()`.
macro_rules! connected {
    ($($type:ident)*) => {$(
        #[pymethods]
        impl $type {
            /// The connection that it was made over.
            fn connection(&self) -> PyResult<$crate::connection::PyConnection> {
                Ok($crate::connection::PyConnection::of(self.waited()?.connection().clone()))
            }
        }
    )*};
}

pub(crate) use connected;

connected!(PySemaphore);
closable!(PySemaphoreStub, inner, |stub| format!(" of {} bytes", stub.memory().size()));
closable!(PySemaphore, inner, |shared| shared
    .as_ref()
    .map_or(", empty".to_owned(), |it| peer(&it.semaphore)));

abortable!(PySemaphore);
