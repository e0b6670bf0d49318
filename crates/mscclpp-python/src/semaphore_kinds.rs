//! The three kinds of semaphores that are made from a `Semaphore`.

use std::{sync::Arc, time::Instant};

use mscclpp::{
    Semaphore,
    channels::{DeviceToDeviceSemaphore, HostToDeviceSemaphoreHandle, HostToHostSemaphore},
    errors::CoreError,
};
use mscclpp_os::waiting::{FIRST_LOG, LongWait};
use pyo3::{
    exceptions::PyTypeError,
    prelude::*,
    types::{PyDict, PyTuple},
};

use crate::{
    constructor::{Arguments, Constructor},
    error::{self, OrRaise},
    handle::{DeviceToDeviceHandle, HostToDeviceHandle},
    macros::abortable,
    owned::{Owned, closable},
    semaphore::{SharedSemaphore, connected, peer},
    waiting,
};

/// Returns the semaphore for `Class(semaphore)` or `Class(communicator, connection)`.
fn given<'py>(
    py: Python<'py>,
    name: &'static str,
    args: &Bound<'py, PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
) -> PyResult<Arc<SharedSemaphore>> {
    let constructor = Constructor { name, other: None, rest: &[] };
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
        Ok(self.inner.get()?.semaphore().clone())
    }
}

#[pymethods]
impl PyHostToDevice {
    #[new]
    #[pyo3(signature = (*args, **kwargs))]
    fn new(py: Python<'_>, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let shared = given(py, "Host2DeviceSemaphore", args, kwargs)?;
        // A semaphore that cannot work fails here, and not at its first use.
        HostToDeviceSemaphoreHandle::of(shared.semaphore()).or_raise()?;
        Ok(Self::of(shared))
    }

    /// Signals the peer, after all earlier writes of the connection.
    fn signal(&self, py: Python<'_>) -> PyResult<()> {
        let shared = self.shared()?;
        waiting::wait(py, move || shared.signal_device())
    }

    /// The handle that kernels wait with. It is valid as long as the semaphore lives.
    fn device_handle(&self) -> PyResult<HostToDeviceHandle> {
        HostToDeviceSemaphoreHandle::of(self.shared()?.semaphore()).or_raise().map(HostToDeviceHandle)
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

/// A semaphore that kernels signal and kernels wait on.
#[pyclass(name = "MemoryDevice2DeviceSemaphore", module = "mscclpp._mscclpp", frozen)]
pub(crate) struct PyDeviceToDevice {
    inner: Owned<(DeviceToDeviceSemaphore, Arc<SharedSemaphore>)>,
}

impl PyDeviceToDevice {
    pub(crate) fn waited(&self) -> PyResult<Semaphore> {
        Ok(self.inner.get()?.0.semaphore().clone())
    }

    fn shared(&self) -> PyResult<Arc<SharedSemaphore>> {
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
        let semaphore = DeviceToDeviceSemaphore::new(shared.semaphore()).or_raise()?;
        Ok(Self { inner: Owned::that_may_wait(name, (semaphore, shared)) })
    }

    /// The handle that kernels signal and wait with. It is valid as long as the semaphore lives.
    fn device_handle(&self) -> PyResult<DeviceToDeviceHandle> {
        Ok(DeviceToDeviceHandle(self.inner.get()?.0.device_handle()))
    }
}

/// The semaphore of an object that is one between kernels: see [`Constructor::other`].
pub(crate) fn device_to_device(object: &Bound<'_, PyAny>) -> Option<PyResult<Arc<SharedSemaphore>>> {
    Some(object.cast::<PyDeviceToDevice>().ok()?.get().shared())
}

connected!(PyHostToDevice PyHostToHost PyDeviceToDevice);
closable!(PyHostToDevice, inner, |shared| peer(shared.semaphore()));
closable!(PyHostToHost, inner, |semaphore| peer(semaphore.semaphore()));
closable!(PyDeviceToDevice, inner, |(semaphore, _)| peer(semaphore.semaphore()));

abortable!(PyHostToDevice, check);
abortable!(PyHostToHost);
abortable!(PyDeviceToDevice, check);
