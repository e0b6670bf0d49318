//! `SemaphoreStub`, `Semaphore`, and the three kinds of semaphores that are made from it.

use std::{sync::Arc, time::Instant};

use mscclpp::{
    Semaphore, SemaphoreStub,
    channels::{
        DeviceToDeviceSemaphore, HostToDeviceSemaphore, HostToDeviceSemaphoreHandle, HostToHostSemaphore,
    },
    errors::CoreError,
};
use mscclpp_os::waiting::{FIRST_LOG, LongWait};
use parking_lot::Mutex;
use pyo3::{
    exceptions::PyTypeError,
    prelude::*,
    types::{PyBytes, PyDict, PyTuple},
};

use crate::{
    abort::abortable,
    connection::PyConnection,
    constructor::{Arguments, Constructor},
    error::{self, OrRaise},
    handle::{DeviceToDeviceHandle, HostToDeviceHandle},
    memory::PyRegisteredMemory,
    owned::{Owned, closable},
    raw::Bytes,
    waiting,
};

/// One side's part of a semaphore.
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

    fn signal_device(&self) -> Result<(), CoreError> {
        let mut side = self.to_device.lock();
        let side = match &mut *side {
            Some(side) => side,
            none => none.insert(HostToDeviceSemaphore::new(&self.semaphore)?),
        };
        side.signal()
    }

    fn to_host(&self) -> Result<Arc<HostToHostSemaphore>, CoreError> {
        let mut side = self.to_host.lock();
        if let Some(side) = &*side {
            return Ok(Arc::clone(side));
        }
        Ok(Arc::clone(side.insert(Arc::new(HostToHostSemaphore::new(&self.semaphore)?))))
    }
}

/// A pair of tokens, one at each end of a connection.
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

/// Returns the semaphore for `Class(semaphore)` or `Class(communicator, connection)`.
fn given<'py>(
    py: Python<'py>,
    name: &'static str,
    args: &Bound<'py, PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
) -> PyResult<Arc<SharedSemaphore>> {
    let constructor = Constructor { name, takes_device_to_device: false, rest: &[] };
    let arguments = Arguments::parse(&constructor, args, kwargs)?.ok_or_else(|| {
        PyTypeError::new_err(format!("{name}() takes (semaphore) or (communicator, connection)"))
    })?;
    arguments.semaphore(py)
}

/// A semaphore that a host thread signals and kernels wait on.
#[pyclass(name = "Host2DeviceSemaphore", module = "mscclpp._mscclpp", frozen)]
pub(crate) struct PyHostToDevice {
    inner: Owned<Arc<SharedSemaphore>>,
}

impl PyHostToDevice {
    pub(crate) fn of(shared: Arc<SharedSemaphore>) -> Self {
        Self { inner: Owned::that_may_wait("Host2DeviceSemaphore", shared) }
    }

    pub(crate) fn shared(&self) -> PyResult<Arc<SharedSemaphore>> {
        Ok(Arc::clone(&*self.inner.get()?))
    }

    pub(crate) fn waited(&self) -> PyResult<Semaphore> {
        Ok(self.inner.get()?.semaphore.clone())
    }
}

#[pymethods]
impl PyHostToDevice {
    #[new]
    #[pyo3(signature = (*args, **kwargs))]
    fn new(py: Python<'_>, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let shared = given(py, "Host2DeviceSemaphore", args, kwargs)?;
        // A semaphore that cannot work fails here, and not at its first use.
        HostToDeviceSemaphoreHandle::of(&shared.semaphore).or_raise()?;
        Ok(Self::of(shared))
    }

    /// Signals the peer, after all earlier writes of the connection.
    fn signal(&self, py: Python<'_>) -> PyResult<()> {
        let shared = self.shared()?;
        waiting::wait(py, move || shared.signal_device())
    }

    /// The handle that kernels wait with. It is valid as long as the semaphore lives.
    fn device_handle(&self) -> PyResult<HostToDeviceHandle> {
        HostToDeviceSemaphoreHandle::of(&self.shared()?.semaphore).or_raise().map(HostToDeviceHandle)
    }
}

/// A semaphore that a host thread signals and a host thread waits on.
#[pyclass(name = "Host2HostSemaphore", module = "mscclpp._mscclpp", frozen)]
pub(crate) struct PyHostToHost {
    inner: Owned<Arc<HostToHostSemaphore>>,
}

impl PyHostToHost {
    fn waited(&self) -> PyResult<Semaphore> {
        Ok(self.inner.get()?.semaphore().clone())
    }
}

#[pymethods]
impl PyHostToHost {
    #[new]
    #[pyo3(signature = (*args, **kwargs))]
    fn new(py: Python<'_>, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let name = "Host2HostSemaphore";
        Ok(Self { inner: Owned::that_may_wait(name, given(py, name, args, kwargs)?.to_host().or_raise()?) })
    }

    /// Signals the peer, after all earlier writes of the connection.
    fn signal(&self, py: Python<'_>) -> PyResult<()> {
        let semaphore = Arc::clone(&*self.inner.get()?);
        waiting::wait(py, move || semaphore.signal())
    }

    /// Takes a signal if there is one, and returns whether there was.
    fn poll(&self) -> PyResult<bool> {
        self.inner.get()?.poll().or_raise()
    }

    /// Waits for a signal and takes it. Polls at most `max_spin_count` times, or without a bound if the number is
    /// negative.
    #[pyo3(signature = (max_spin_count = 10_000_000))]
    fn wait(&self, py: Python<'_>, max_spin_count: i64) -> PyResult<()> {
        /// The number of polls between two checks for Ctrl-C, which take about a tenth of a second.
        const POLLS: i64 = 2000;
        let semaphore = self.inner.get()?;
        let mut left = (max_spin_count >= 0).then_some(max_spin_count);
        let mut long = LongWait::begin(FIRST_LOG);
        loop {
            let polls = left.unwrap_or(POLLS).min(POLLS);
            match py.detach(|| semaphore.wait(polls)) {
                Err(CoreError::Timeout { operation, .. }) if left.is_none_or(|left| left > polls) => {
                    left = left.map(|left| left - polls);
                    py.check_signals()?;
                    long.log(Instant::now(), None, || operation);
                }
                Err(CoreError::Timeout { .. }) => {
                    return Err(error::timeout(format!(
                        "no signal from {} came within {max_spin_count} polls",
                        semaphore.semaphore().connection().label()
                    )));
                }
                outcome => return outcome.or_raise(),
            }
        }
    }
}

/// A semaphore between kernels at both ends.
#[pyclass(name = "MemoryDevice2DeviceSemaphore", module = "mscclpp._mscclpp", frozen)]
pub(crate) struct PyDeviceToDevice {
    inner: Owned<(DeviceToDeviceSemaphore, Arc<SharedSemaphore>)>,
}

impl PyDeviceToDevice {
    pub(crate) fn waited(&self) -> PyResult<Semaphore> {
        Ok(self.inner.get()?.0.semaphore().clone())
    }

    pub(crate) fn shared(&self) -> PyResult<Arc<SharedSemaphore>> {
        Ok(Arc::clone(&self.inner.get()?.1))
    }
}

#[pymethods]
impl PyDeviceToDevice {
    #[new]
    #[pyo3(signature = (*args, **kwargs))]
    fn new(py: Python<'_>, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let name = "MemoryDevice2DeviceSemaphore";
        let shared = given(py, name, args, kwargs)?;
        let semaphore = DeviceToDeviceSemaphore::new(&shared.semaphore).or_raise()?;
        Ok(Self { inner: Owned::that_may_wait(name, (semaphore, shared)) })
    }

    /// The handle that kernels signal and wait with. It is valid as long as the semaphore lives.
    fn device_handle(&self) -> PyResult<DeviceToDeviceHandle> {
        Ok(DeviceToDeviceHandle(self.inner.get()?.0.device_handle()))
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
            fn connection(&self) -> PyResult<PyConnection> {
                Ok(PyConnection::of(self.waited()?.connection().clone()))
            }
        }
    )*};
}

connected!(PySemaphore PyHostToDevice PyHostToHost PyDeviceToDevice);
closable!(PySemaphoreStub, inner, |stub| format!(" of {} bytes", stub.memory().size()));
closable!(PySemaphore, inner, |shared| shared
    .as_ref()
    .map_or(", empty".to_owned(), |it| peer(&it.semaphore)));
closable!(PyHostToDevice, inner, |shared| peer(&shared.semaphore));
closable!(PyHostToHost, inner, |semaphore| peer(semaphore.semaphore()));
closable!(PyDeviceToDevice, inner, |(semaphore, _)| peer(semaphore.semaphore()));

abortable!(PySemaphore);
abortable!(PyHostToDevice, check);
abortable!(PyHostToHost);
abortable!(PyDeviceToDevice, check);
