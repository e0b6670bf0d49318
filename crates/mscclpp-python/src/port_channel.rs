//! `ProxyService` and the port channels that it makes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mscclpp::{
    BasePortChannel, Error, Gpu, PortChannel, ProxyService, RegisteredMemory,
    proxy::{Fifo, MemoryId, SemaphoreId},
};
use pyo3::{exceptions::PyTypeError, prelude::*};

use crate::{
    abort::abortable,
    base_service::PyBaseProxyService,
    communicator::PyCommunicator,
    connection::PyConnection,
    device,
    error::{self, OrRaise},
    handle::{BasePortHandle, PortHandle},
    memory::PyRegisteredMemory,
    owned::{Owned, closable},
    semaphore::{self, PyHostToDevice, PySemaphore, Shared},
    uint::{uint, uint_or_none},
    waiting,
};

/// Carries out, on a host thread, what kernels of one GPU ask for through port channels. The GPU is that of the first
/// semaphore that is added; before, it is the one that was current when the service was made.
#[pyclass(name = "ProxyService", module = "mscclpp._mscclpp", extends = PyBaseProxyService, frozen)]
pub(crate) struct PyProxyService {
    inner: Owned<Arc<Mutex<State>>>,
}

struct State {
    service: Arc<ProxyService>,
    gpu: Gpu,
    fifo_size: u64,
    is_started: bool,
    memories: Vec<RegisteredMemory>,
    semaphores: Vec<Arc<Shared>>,
}

impl State {
    fn new(gpu: Gpu, fifo_size: u64) -> Result<Self, Error> {
        let service = Arc::new(ProxyService::builder(&gpu).fifo_size(fifo_size).build()?);
        Ok(Self { service, gpu, fifo_size, is_started: false, memories: Vec::new(), semaphores: Vec::new() })
    }

    /// Begins anew on another GPU. Only memories have been added yet, and keep their numbers.
    fn move_to(&mut self, gpu: Gpu) -> Result<(), Error> {
        let new = Self::new(gpu, self.fifo_size)?;
        for memory in &self.memories {
            new.service.add_memory(memory)?;
        }
        if self.is_started {
            new.service.start_proxy(false)?;
        }
        (self.service, self.gpu) = (new.service, new.gpu);
        Ok(())
    }

    fn add_semaphore(&mut self, semaphore: Arc<Shared>) -> Result<u32, Error> {
        let connection = semaphore.semaphore().connection();
        if self.semaphores.is_empty()
            && let Some(id) = connection.local_device().id
            && id != self.gpu.id()
        {
            self.move_to(connection.context().gpu(id)?)?;
        }
        semaphore.give_up_host_side()?;
        let id = self.service.add_semaphore(semaphore.semaphore())?.raw();
        self.semaphores.push(semaphore);
        Ok(id)
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PyProxyService {
    /// Does `work` with the service, which may block.
    fn with<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut State) -> Result<T, Error> + Send + 'static,
    ) -> PyResult<T> {
        let state = Arc::clone(&*self.inner.get()?);
        waiting::wait(py, move || work(&mut lock(&state)))
    }

    /// As [`PyProxyService::with`], without keeping others from the service meanwhile.
    fn beside<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&ProxyService) -> Result<T, mscclpp::errors::ProxyError> + Send + 'static,
    ) -> PyResult<T> {
        let state = Arc::clone(&*self.inner.get()?);
        waiting::wait(py, move || {
            let service = Arc::clone(&lock(&state).service);
            work(&service)
        })
    }

    pub(crate) fn service(&self, py: Python<'_>) -> PyResult<Arc<ProxyService>> {
        self.with(py, |state| Ok(Arc::clone(&state.service)))
    }

    fn shared(&self, py: Python<'_>, id: u32) -> PyResult<Arc<Shared>> {
        self.with(py, move |state| match state.semaphores.get(id as usize) {
            Some(semaphore) => Ok(Arc::clone(semaphore)),
            // It has the same numbers, and says what is wrong with this one.
            None => Ok(Shared::of(state.service.semaphore(SemaphoreId::from_raw(id))?)),
        })
    }
}

#[pymethods]
impl PyProxyService {
    #[new]
    #[pyo3(signature = (fifo_size = Fifo::DEFAULT_SIZE))]
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = uint)] fifo_size: u64,
    ) -> PyResult<PyClassInitializer<Self>> {
        let gpu = device::current(py)?;
        let state = py.detach(|| State::new(gpu, fifo_size)).or_raise()?;
        let service = Self { inner: Owned::that_may_wait("ProxyService", Arc::new(Mutex::new(state))) };
        Ok(PyClassInitializer::from(PyBaseProxyService).add_subclass(service))
    }

    /// Starts its thread, and with `blocking` waits until it takes triggers.
    #[pyo3(signature = (blocking = false))]
    fn start_proxy(&self, py: Python<'_>, blocking: bool) -> PyResult<()> {
        self.with(py, move |state| {
            state.is_started = true;
            Ok(state.service.start_proxy(blocking)?)
        })
    }

    /// Has everything carried out that was pushed before, and ends the thread.
    fn stop_proxy(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |state| {
            state.is_started = false;
            Ok(())
        })?;
        self.beside(py, ProxyService::stop_proxy)
    }

    fn __enter__(slf: Py<Self>, py: Python<'_>) -> PyResult<Py<Self>> {
        slf.get().start_proxy(py, true)?;
        Ok(slf)
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        if self.inner.is_open() { self.stop_proxy(py) } else { Ok(()) }
    }

    /// Stops it as `stop_proxy()` does, and lets go of it: its thread, its semaphores and its memories. Any other call then
    /// raises. A second `close()` does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if !self.inner.is_open() {
            return Ok(());
        }
        let stopped = self.stop_proxy(py);
        self.inner.close();
        stopped
    }

    fn __repr__(&self) -> String {
        self.inner.show(|state| {
            // Another thread may be at it for long.
            let Ok(state) = state.try_lock() else { return ", busy".to_owned() };
            let (semaphores, memories) = (state.semaphores.len(), state.memories.len());
            let running = if state.service.is_running() { "running" } else { "not running" };
            format!(" of {}, {running}, with {semaphores} semaphores and {memories} memories", state.gpu)
        })
    }

    /// Makes a semaphore over a connection with the rank at its other end, which does the same, and adds it. Returns its
    /// number.
    #[pyo3(signature = (comm, connection))]
    fn build_and_add_semaphore(
        &self,
        py: Python<'_>,
        comm: &PyCommunicator,
        connection: &PyConnection,
    ) -> PyResult<u32> {
        let semaphore = Shared::of(comm.build(py, &*connection.connection()?)?);
        self.with(py, move |state| state.add_semaphore(semaphore))
    }

    /// Adds a Semaphore or a Host2DeviceSemaphore, from which the proxy takes over signalling.
    #[pyo3(signature = (semaphore))]
    fn add_semaphore(&self, py: Python<'_>, semaphore: &Bound<'_, PyAny>) -> PyResult<u32> {
        let shared = if let Ok(semaphore) = semaphore.cast::<PySemaphore>() {
            semaphore.get().shared()?
        } else if let Ok(semaphore) = semaphore.cast::<PyHostToDevice>() {
            semaphore.get().shared()?
        } else {
            return Err(PyTypeError::new_err(format!(
                "argument 'semaphore': expected a Semaphore or a Host2DeviceSemaphore, got {}",
                semaphore.get_type().name()?
            )));
        };
        self.with(py, move |state| state.add_semaphore(shared))
    }

    /// Adds a memory, this rank's or a peer's, for channels to copy from or to. Returns its number.
    #[pyo3(signature = (memory))]
    fn add_memory(&self, py: Python<'_>, memory: &PyRegisteredMemory) -> PyResult<u32> {
        let memory = memory.memory()?;
        self.with(py, move |state| {
            let id = state.service.add_memory(&memory)?.raw();
            state.memories.push(memory);
            Ok(id)
        })
    }

    /// The semaphore that was added as number `id`.
    #[pyo3(signature = (id))]
    fn semaphore(&self, py: Python<'_>, #[pyo3(from_py_with = uint)] id: u32) -> PyResult<PyHostToDevice> {
        self.shared(py, id).map(PyHostToDevice::of)
    }

    /// A channel over semaphore `id`, without memories of its own.
    #[pyo3(signature = (id))]
    fn base_port_channel(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = uint)] id: u32,
    ) -> PyResult<PyBasePortChannel> {
        let channel = self.beside(py, move |service| service.base_port_channel(SemaphoreId::from_raw(id)))?;
        Ok(PyBasePortChannel { inner: Owned::that_may_wait("BasePortChannel", Some(channel)) })
    }

    /// A channel over semaphore `id`, from memory `src`, this rank's, to memory `dst`, the peer's.
    #[pyo3(signature = (id, dst, src))]
    fn port_channel(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = uint)] id: u32,
        #[pyo3(from_py_with = uint)] dst: u32,
        #[pyo3(from_py_with = uint)] src: u32,
    ) -> PyResult<PyPortChannel> {
        let channel = self.beside(py, move |service| {
            let (dst, src) = (MemoryId::from_raw(dst), MemoryId::from_raw(src));
            service.port_channel(SemaphoreId::from_raw(id), dst, src)
        })?;
        Ok(PyPortChannel { inner: Owned::that_may_wait("PortChannel", Some(channel)) })
    }

    /// Raises what the service failed with, if it did.
    fn health(&self, py: Python<'_>) -> PyResult<()> {
        self.beside(py, ProxyService::health)
    }

    /// Gives the service up for good: waits of kernels on its semaphores end.
    #[pyo3(signature = (reason = "aborted by the program".to_owned()))]
    fn abort(&self, py: Python<'_>, reason: String) -> PyResult<()> {
        self.beside(py, move |service| {
            service.abort(&reason);
            Ok(())
        })
    }
}

/// The service that a channel made by hand belongs to; it must have the semaphore under that number.
fn check_semaphore(
    py: Python<'_>,
    proxy: &PyProxyService,
    id: u32,
    semaphore: &PyHostToDevice,
) -> PyResult<()> {
    if Arc::ptr_eq(&proxy.shared(py, id)?, &semaphore.shared()?) {
        return Ok(());
    }
    Err(error::misuse(format!(
        "argument 'semaphore': it is not the one that the service has under the number {id}; get that from \
         ProxyService.semaphore({id})"
    )))
}

/// A channel that signals, and copies between any memories of its service.
#[pyclass(name = "BasePortChannel", module = "mscclpp._mscclpp", frozen)]
pub(crate) struct PyBasePortChannel {
    inner: Owned<Option<BasePortChannel>>,
}

impl PyBasePortChannel {
    pub(crate) fn channel(&self) -> PyResult<BasePortChannel> {
        self.inner.get()?.clone().ok_or_else(|| empty("BasePortChannel"))
    }
}

#[pymethods]
impl PyBasePortChannel {
    #[new]
    #[pyo3(signature = (semaphore_id = None, semaphore = None, proxy = None))]
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = uint_or_none)] semaphore_id: Option<u32>,
        semaphore: Option<&PyHostToDevice>,
        proxy: Option<&PyProxyService>,
    ) -> PyResult<Self> {
        match (semaphore_id, semaphore, proxy) {
            (None, None, None) => Ok(Self { inner: Owned::new("BasePortChannel", None) }),
            (Some(id), Some(semaphore), Some(proxy)) => {
                check_semaphore(py, proxy, id, semaphore)?;
                proxy.base_port_channel(py, id)
            }
            _ => Err(PyTypeError::new_err(
                "BasePortChannel() takes semaphore_id, semaphore and proxy (a ProxyService), or nothing",
            )),
        }
    }

    /// What kernels get for it. It lives no longer than the channel.
    fn device_handle(&self) -> PyResult<BasePortHandle> {
        Ok(BasePortHandle(self.channel()?.device_handle()))
    }
}

closable!(PyBasePortChannel, inner, |channel| match channel {
    Some(channel) => semaphore::peer(channel.semaphore()),
    None => ", empty".to_owned(),
});
abortable!(PyBasePortChannel);

/// A channel between a memory of this side and one of the peer's.
#[pyclass(name = "PortChannel", module = "mscclpp._mscclpp", frozen)]
pub(crate) struct PyPortChannel {
    inner: Owned<Option<PortChannel>>,
}

impl PyPortChannel {
    pub(crate) fn channel(&self) -> PyResult<PortChannel> {
        self.inner.get()?.clone().ok_or_else(|| empty("PortChannel"))
    }
}

#[pymethods]
impl PyPortChannel {
    #[new]
    #[pyo3(signature = (semaphore_id = None, semaphore = None, proxy = None, dst = None, src = None))]
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = uint_or_none)] semaphore_id: Option<u32>,
        semaphore: Option<&PyHostToDevice>,
        proxy: Option<&PyProxyService>,
        #[pyo3(from_py_with = uint_or_none)] dst: Option<u32>,
        #[pyo3(from_py_with = uint_or_none)] src: Option<u32>,
    ) -> PyResult<Self> {
        match (semaphore_id, semaphore, proxy, dst, src) {
            (None, None, None, None, None) => Ok(Self { inner: Owned::new("PortChannel", None) }),
            (Some(id), Some(semaphore), Some(proxy), Some(dst), Some(src)) => {
                check_semaphore(py, proxy, id, semaphore)?;
                proxy.port_channel(py, id, dst, src)
            }
            _ => Err(PyTypeError::new_err(
                "PortChannel() takes semaphore_id, semaphore, proxy (a ProxyService), dst and src, or nothing",
            )),
        }
    }

    /// What kernels get for it. It lives no longer than the channel.
    fn device_handle(&self) -> PyResult<PortHandle> {
        Ok(PortHandle(self.channel()?.device_handle()))
    }
}

closable!(PyPortChannel, inner, |channel| match channel {
    Some(channel) => {
        let handle = channel.device_handle();
        let peer = semaphore::peer(channel.semaphore());
        format!("{peer}, from memory {} to memory {}", handle.src.raw(), handle.dst.raw())
    }
    None => ", empty".to_owned(),
});
abortable!(PyPortChannel);

fn empty(class: &str) -> PyErr {
    error::misuse(format!("this {class} is empty: make one with a ProxyService"))
}
