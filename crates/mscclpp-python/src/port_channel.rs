//! `ProxyService` and the port channels that it makes.

use std::sync::Arc;

use mscclpp::{
    BasePortChannel, Error, Gpu, PortChannel, ProxyService,
    proxy::{Fifo, MemoryId, SemaphoreId},
};
use parking_lot::Mutex;
use pyo3::{exceptions::PyTypeError, prelude::*};

use crate::{
    base_service::PyBaseProxyService,
    channel::channel,
    communicator::PyCommunicator,
    connection::PyConnection,
    device,
    error::{self, OrRaise},
    handle::{BasePortHandle, PortHandle},
    memory::PyRegisteredMemory,
    owned::Owned,
    proxy::stoppable,
    semaphore::{self, PySemaphore, SharedSemaphore},
    semaphore_kinds::PyHostToDevice,
    uint::Uint,
    waiting,
};

/// Carries out, on a host thread, what kernels of one GPU request through port channels. The GPU is that of the first
/// semaphore that is added; before that, it is the one that was current when the service was made.
#[pyclass(name = "ProxyService", module = "mscclpp._mscclpp", extends = PyBaseProxyService, frozen)]
pub(crate) struct PyProxyService {
    inner: Owned<Arc<Mutex<State>>>,
}

struct State {
    service: Arc<ProxyService>,
    gpu: Gpu,
    fifo_size: u64,
    semaphores: Vec<Arc<SharedSemaphore>>,
}

impl State {
    fn add_semaphore(&mut self, semaphore: Arc<SharedSemaphore>) -> Result<u32, Error> {
        let connection = semaphore.semaphore().connection();
        if self.semaphores.is_empty()
            && let Some(id) = connection.local_device().id
            && id != self.gpu.id()
        {
            let gpu = connection.context().gpu(id)?;
            let anew =
                ProxyService::builder(&gpu).fifo_size(self.fifo_size).build_in_place_of(&self.service)?;
            (self.service, self.gpu) = (Arc::new(anew), gpu);
        }
        semaphore.give_up_host_side()?;
        let id = self.service.add_semaphore(semaphore.semaphore())?.raw();
        self.semaphores.push(semaphore);
        Ok(id)
    }
}

impl PyProxyService {
    /// Calls `work`, which may block, with the locked state of the service.
    fn with<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut State) -> Result<T, Error> + Send + 'static,
    ) -> PyResult<T> {
        let state = Arc::clone(&*self.inner.get()?);
        waiting::wait(py, move || work(&mut state.lock()))
    }

    /// Calls `work` with the service, without holding its lock, so that other threads can use the service meanwhile.
    fn beside<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&ProxyService) -> Result<T, mscclpp::errors::ProxyError> + Send + 'static,
    ) -> PyResult<T> {
        let state = Arc::clone(&*self.inner.get()?);
        waiting::wait(py, move || {
            let service = Arc::clone(&state.lock().service);
            work(&service)
        })
    }

    pub(crate) fn service(&self, py: Python<'_>) -> PyResult<Arc<ProxyService>> {
        self.with(py, |state| Ok(Arc::clone(&state.service)))
    }

    fn shared(&self, py: Python<'_>, id: u32) -> PyResult<Arc<SharedSemaphore>> {
        self.with(py, move |state| match state.semaphores.get(id as usize) {
            Some(semaphore) => Ok(Arc::clone(semaphore)),
            // The service has the same numbers, and its error says what is wrong with this one.
            None => Ok(SharedSemaphore::of(state.service.semaphore(SemaphoreId::from_raw(id))?)),
        })
    }
}

#[pymethods]
impl PyProxyService {
    #[new]
    #[pyo3(signature = (fifo_size = Uint(Fifo::DEFAULT_SIZE)))]
    fn new(py: Python<'_>, fifo_size: Uint<u64>) -> PyResult<PyClassInitializer<Self>> {
        let gpu = device::current(py)?;
        let Uint(fifo_size) = fifo_size;
        let service = py.detach(|| ProxyService::builder(&gpu).fifo_size(fifo_size).build()).or_raise()?;
        let (service, semaphores) = (Arc::new(service), Vec::new());
        let state = State { service, gpu, fifo_size, semaphores };
        let service = Self { inner: Owned::that_may_wait("ProxyService", Arc::new(Mutex::new(state))) };
        Ok(PyClassInitializer::from(PyBaseProxyService).add_subclass(service))
    }

    /// Starts its thread, and with `blocking` waits until it takes triggers.
    #[pyo3(signature = (blocking = false))]
    fn start_proxy(&self, py: Python<'_>, blocking: bool) -> PyResult<()> {
        self.with(py, move |state| Ok(state.service.start_proxy(blocking)?))
    }

    /// Carries out all requests that were pushed before, and ends the thread.
    fn stop_proxy(&self, py: Python<'_>) -> PyResult<()> {
        self.beside(py, ProxyService::stop_proxy)
    }

    fn __repr__(&self) -> String {
        self.inner.show(|state| {
            // Another thread may hold the lock for long.
            let Some(state) = state.try_lock() else { return ", busy".to_owned() };
            let memories = state.service.next_memory_id(0).map_or(0, MemoryId::raw);
            let semaphores = state.semaphores.len();
            let running = if state.service.is_running() { "running" } else { "not running" };
            format!(" of {}, {running}, with {semaphores} semaphores and {memories} memories", state.gpu)
        })
    }

    /// Makes a semaphore over a connection with the rank at its other end, which does the same, and adds it. Returns its
    /// number.
    fn build_and_add_semaphore(
        &self,
        py: Python<'_>,
        comm: &PyCommunicator,
        connection: &PyConnection,
    ) -> PyResult<u32> {
        let semaphore = SharedSemaphore::of(comm.build(py, &*connection.connection()?)?);
        self.with(py, move |state| state.add_semaphore(semaphore))
    }

    /// Adds a Semaphore or a Host2DeviceSemaphore. From then on the proxy sends its signals.
    #[pyo3(signature = (semaphore: "Semaphore | Host2DeviceSemaphore"))]
    fn add_semaphore(&self, py: Python<'_>, semaphore: &Bound<'_, PyAny>) -> PyResult<u32> {
        let shared = if let Ok(semaphore) = semaphore.cast::<PySemaphore>() {
            semaphore.get().shared()?
        } else if let Ok(semaphore) = semaphore.cast::<PyHostToDevice>() {
            semaphore.get().shared()?
        } else {
            return Err(error::unexpected(
                "argument 'semaphore': expected a Semaphore or a Host2DeviceSemaphore, got",
                semaphore,
            ));
        };
        self.with(py, move |state| state.add_semaphore(shared))
    }

    /// Adds memory of this rank or of a peer, which channels copy from or to. Returns its number.
    fn add_memory(&self, py: Python<'_>, memory: &PyRegisteredMemory) -> PyResult<u32> {
        let memory = memory.memory()?;
        self.with(py, move |state| Ok(state.service.add_memory(&memory)?.raw()))
    }

    /// The semaphore that was added as number `id`.
    fn semaphore(&self, py: Python<'_>, id: Uint<u32>) -> PyResult<PyHostToDevice> {
        self.shared(py, id.0).map(PyHostToDevice::of)
    }

    /// A channel over semaphore `id`. The memories are named at each copy.
    fn base_port_channel(&self, py: Python<'_>, id: Uint<u32>) -> PyResult<PyBasePortChannel> {
        self.beside(py, move |service| service.base_port_channel(SemaphoreId::from_raw(id.0)))
            .map(PyBasePortChannel::of)
    }

    /// A channel over semaphore `id`, from memory `src`, this rank's, to memory `dst`, the peer's.
    fn port_channel(
        &self,
        py: Python<'_>,
        id: Uint<u32>,
        dst: Uint<u32>,
        src: Uint<u32>,
    ) -> PyResult<PyPortChannel> {
        self.beside(py, move |service| {
            let (dst, src) = (MemoryId::from_raw(dst.0), MemoryId::from_raw(src.0));
            service.port_channel(SemaphoreId::from_raw(id.0), dst, src)
        })
        .map(PyPortChannel::of)
    }

    /// Raises the error that the service failed with, if it failed.
    fn health(&self, py: Python<'_>) -> PyResult<()> {
        self.beside(py, ProxyService::health)
    }

    /// Aborts the service: it cannot be started again, and waits of kernels on its semaphores end.
    #[pyo3(signature = (reason = "aborted by the program".to_owned()))]
    fn abort(&self, py: Python<'_>, reason: String) -> PyResult<()> {
        self.beside(py, move |service| {
            service.abort(&reason);
            Ok(())
        })
    }
}

stoppable!(PyProxyService, start_proxy, stop_proxy);

/// Returns an error unless the service has the semaphore under that number. Channels that a program makes by
/// themselves are checked with it.
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

channel! {
    /// A channel through which kernels ask a proxy to signal, and to copy between any memories of its service.
    PyBasePortChannel as "BasePortChannel" of BasePortChannel: BasePortHandle, "make one with a ProxyService",
    |channel| semaphore::peer(channel.semaphore())
}

#[pymethods]
impl PyBasePortChannel {
    #[new]
    #[pyo3(signature = (semaphore_id = None, semaphore = None, proxy = None))]
    fn new(
        py: Python<'_>,
        semaphore_id: Option<Uint<u32>>,
        semaphore: Option<&PyHostToDevice>,
        proxy: Option<&PyProxyService>,
    ) -> PyResult<Self> {
        match (semaphore_id, semaphore, proxy) {
            (None, None, None) => Ok(Self::empty()),
            (Some(id), Some(semaphore), Some(proxy)) => {
                check_semaphore(py, proxy, id.0, semaphore)?;
                proxy.base_port_channel(py, id)
            }
            _ => Err(PyTypeError::new_err(
                "BasePortChannel() takes semaphore_id, semaphore and proxy (a ProxyService), or nothing",
            )),
        }
    }
}

channel! {
    /// A channel through which kernels ask a proxy to copy from a memory of this rank to one of the peer, and to signal.
    PyPortChannel as "PortChannel" of PortChannel: PortHandle, "make one with a ProxyService", |channel| {
        let (peer, handle) = (semaphore::peer(channel.semaphore()), channel.device_handle());
        format!("{peer}, from memory {} to memory {}", handle.src.raw(), handle.dst.raw())
    }
}

#[pymethods]
impl PyPortChannel {
    #[new]
    #[pyo3(signature = (semaphore_id = None, semaphore = None, proxy = None, dst = None, src = None))]
    fn new(
        py: Python<'_>,
        semaphore_id: Option<Uint<u32>>,
        semaphore: Option<&PyHostToDevice>,
        proxy: Option<&PyProxyService>,
        dst: Option<Uint<u32>>,
        src: Option<Uint<u32>>,
    ) -> PyResult<Self> {
        match (semaphore_id, semaphore, proxy, dst, src) {
            (None, None, None, None, None) => Ok(Self::empty()),
            (Some(id), Some(semaphore), Some(proxy), Some(dst), Some(src)) => {
                check_semaphore(py, proxy, id.0, semaphore)?;
                proxy.port_channel(py, id, dst, src)
            }
            _ => Err(PyTypeError::new_err(
                "PortChannel() takes semaphore_id, semaphore, proxy (a ProxyService), dst and src, or nothing",
            )),
        }
    }
}
