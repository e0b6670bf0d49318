//! `Context`, `Endpoint` and `Connection`.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use mscclpp::{
    Connection, Context, ContextBuilderExt, ContextExt, DeviceType, Endpoint, EndpointConfig, Error,
    Ethernet, errors::CoreError,
};
use pyo3::{prelude::*, types::PyBytes};

use crate::{
    config::{ConfigArgument, PyDevice, PyEndpointConfig},
    error::{self, OrRaise},
    known,
    memory::PyRegisteredMemory,
    owned::{Held, Owned, closable},
    raw::Bytes,
    transport::{Flags, PyTransport},
    uint::{Uint, optional},
    waiting,
};

/// How long a write waits for room in the transport's queue.
const ROOM: Duration = Duration::from_secs(30);

/// Makes endpoints, connections and registered memories.
#[pyclass(name = "Context", module = "mscclpp._mscclpp", frozen)]
pub(crate) struct PyContext {
    inner: Owned<Context>,
}

impl PyContext {
    pub(crate) fn of(context: Context) -> Self {
        Self { inner: Owned::new("Context", context) }
    }

    pub(crate) fn context(&self) -> PyResult<Held<Context>> {
        self.inner.get()
    }
}

#[pymethods]
impl PyContext {
    #[new]
    #[pyo3(signature = (*, ethernet_checksums=None))]
    fn new(ethernet_checksums: Option<bool>) -> Self {
        Self::of(match ethernet_checksums {
            None => Context::new(),
            Some(on) => {
                // The first one that serves a transport is used.
                let ethernet = Ethernet::builder().checksums(on).build();
                Context::builder().provider(ethernet).default_providers().build()
            }
        })
    }

    /// Makes a context that no other object shares. `ethernet_checksums` says whether data that it sends over
    /// Ethernet has checksums, which the receiver checks. If it is None, `MSCCLPP_ETHERNET_CHECKSUMS` decides.
    #[staticmethod]
    #[pyo3(signature = (*, ethernet_checksums=None))]
    fn create(ethernet_checksums: Option<bool>) -> Self {
        Self::new(ethernet_checksums)
    }

    /// Registers `size` bytes of device memory at the address `ptr` for `transports`. The memory must live as long as
    /// this or a peer uses it.
    fn register_memory(
        &self,
        py: Python<'_>,
        ptr: Uint<u64>,
        size: Uint<u64>,
        transports: Flags,
    ) -> PyResult<PyRegisteredMemory> {
        PyRegisteredMemory::register(py, &*self.context()?, ptr.0, size.0, transports.0)
    }

    /// Makes an endpoint for connections, from an `EndpointConfig` or a `Transport`.
    fn create_endpoint(&self, py: Python<'_>, config: ConfigArgument) -> PyResult<PyEndpoint> {
        let context = self.context()?;
        Ok(PyEndpoint::of(py.detach(|| context.create_endpoint(config.0)).or_raise()?))
    }

    /// Connects an endpoint of this context with a peer's, which does the same. Blocks if the transport needs an
    /// answer of the peer.
    fn connect(
        &self,
        py: Python<'_>,
        local_endpoint: &PyEndpoint,
        remote_endpoint: &PyEndpoint,
    ) -> PyResult<PyConnection> {
        let context = self.context()?.clone();
        let (local, remote) = (local_endpoint.endpoint()?.clone(), remote_endpoint.endpoint()?.clone());
        Ok(PyConnection::of(waiting::wait(py, move || context.connect(&local, &remote))?))
    }
}

/// Replaces "the current device" in `config` by the device that is current in the calling thread, so that another
/// thread can do the rest.
pub(crate) fn on_this_threads_device(
    context: &Context,
    mut config: EndpointConfig,
) -> Result<EndpointConfig, Error> {
    if config.device.kind == DeviceType::Gpu && config.device.id.is_none() {
        config.device.id = Some(context.platform()?.current_gpu()?.id());
    }
    Ok(config)
}

/// One end of a connection.
#[pyclass(name = "Endpoint", module = "mscclpp._mscclpp", frozen)]
pub(crate) struct PyEndpoint {
    inner: Owned<Endpoint>,
}

impl PyEndpoint {
    fn of(endpoint: Endpoint) -> Self {
        Self { inner: Owned::new("Endpoint", endpoint) }
    }

    pub(crate) fn endpoint(&self) -> PyResult<Held<Endpoint>> {
        self.inner.get()
    }
}

#[pymethods]
impl PyEndpoint {
    /// The configuration that the endpoint was made with. For a peer's endpoint, the parts that are known here.
    fn config(&self, py: Python<'_>) -> PyResult<PyEndpointConfig> {
        let endpoint = self.endpoint()?;
        let known = || EndpointConfig::new(endpoint.transport(), endpoint.device());
        PyEndpointConfig::of(py, &endpoint.config().cloned().unwrap_or_else(known))
    }

    /// The transport of the endpoint.
    fn transport(&self) -> PyResult<PyTransport> {
        Ok(self.endpoint()?.transport().into())
    }

    /// The device of the endpoint.
    fn device(&self) -> PyResult<PyDevice> {
        Ok(self.endpoint()?.device().into())
    }

    /// How many writes its queue takes before it is full; -1 where the transport chooses.
    fn max_write_queue_size(&self) -> PyResult<i64> {
        Ok(optional(self.endpoint()?.max_write_queue_size()))
    }

    /// The bytes from which the peer makes this endpoint with `deserialize()`.
    fn serialize<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.endpoint()?.serialize().or_raise()?))
    }

    /// The endpoint that a peer has serialized.
    #[staticmethod]
    fn deserialize(data: Bytes) -> PyResult<Self> {
        Ok(Self::of(Endpoint::deserialize(&data.0).or_raise()?))
    }
}

/// A connection from an endpoint of this process to a peer's.
#[pyclass(name = "Connection", module = "mscclpp._mscclpp", frozen)]
pub(crate) struct PyConnection {
    inner: Owned<Connection>,
    /// Whether the queue was opened. Opening may take seconds with some transports.
    is_open: AtomicBool,
}

impl PyConnection {
    pub(crate) fn of(connection: Connection) -> Self {
        known::remember(&connection);
        Self { inner: Owned::that_may_wait("Connection", connection), is_open: AtomicBool::new(false) }
    }

    pub(crate) fn connection(&self) -> PyResult<Held<Connection>> {
        self.inner.get()
    }

    /// Returns the connection with its queue open, so that calls on this thread keep their time limits.
    fn open(&self, py: Python<'_>) -> PyResult<Held<Connection>> {
        let connection = self.connection()?;
        // A relaxed flag is enough: opening twice does no harm.
        if !self.is_open.load(Ordering::Relaxed) {
            let opened = connection.clone();
            waiting::wait(py, move || match opened.flush(Duration::ZERO) {
                Err(CoreError::Timeout { .. }) => Ok(()),
                outcome => outcome,
            })?;
            self.is_open.store(true, Ordering::Relaxed);
        }
        Ok(connection)
    }
}

#[pymethods]
impl PyConnection {
    /// Starts copying `size` bytes from `src`, registered here, to `dst`, registered by the peer.
    #[allow(non_snake_case, reason = "the public names")]
    fn write(
        &self,
        py: Python<'_>,
        dst: &PyRegisteredMemory,
        dstOffset: Uint<u64>,
        src: &PyRegisteredMemory,
        srcOffset: Uint<u64>,
        size: Uint<u64>,
    ) -> PyResult<()> {
        let (dst, src) = (dst.memory()?, src.memory()?);
        let connection = self.open(py)?;
        waiting::repeat(py, None, Some(ROOM), |left| {
            connection.write_timeout(&dst, dstOffset.0, &src, srcOffset.0, size.0, left)
        })
    }

    /// Stores `new_value` in the 8 bytes at `dst_offset` of the peer's `dst`, after all earlier writes, and in the 8
    /// bytes of host memory at the address `src`.
    fn update_and_sync(
        &self,
        py: Python<'_>,
        dst: &PyRegisteredMemory,
        dst_offset: Uint<u64>,
        src: Uint<usize>,
        new_value: Uint<u64>,
    ) -> PyResult<()> {
        let (Uint(src), Uint(new_value)) = (src, new_value);
        if src == 0 || !src.is_multiple_of(8) {
            return Err(error::misuse(format!(
                "update_and_sync: src is {src:#x}; it must be the address of 8 bytes, a multiple of 8"
            )));
        }
        let dst = dst.memory()?;
        let connection = self.open(py)?;
        waiting::repeat(py, None, Some(ROOM), |left| {
            connection.update_and_sync_timeout(&dst, dst_offset.0, &mut 0, new_value, left)
        })?;
        // SAFETY: aligned and not null; that it is 8 bytes of host memory is what the address means in this API.
        unsafe { std::ptr::with_exposed_provenance_mut::<u64>(src).write_volatile(new_value) };
        Ok(())
    }

    /// Waits until all earlier writes are complete at the peer.
    #[pyo3(signature = (timeout_usec = 30_000_000))]
    fn flush(&self, py: Python<'_>, timeout_usec: i64) -> PyResult<()> {
        let connection = self.open(py)?;
        let timeout = u64::try_from(timeout_usec).ok().map(Duration::from_micros);
        waiting::repeat(py, None, timeout, |left| connection.flush(left))
    }

    /// The transport of this side.
    fn transport(&self) -> PyResult<PyTransport> {
        Ok(self.connection()?.transport().into())
    }

    /// The transport of the peer's side.
    fn remote_transport(&self) -> PyResult<PyTransport> {
        Ok(self.connection()?.remote_transport().into())
    }

    /// The context that it was made in.
    fn context(&self) -> PyResult<PyContext> {
        Ok(PyContext::of(self.connection()?.context().clone()))
    }

    /// The device of this side.
    fn local_device(&self) -> PyResult<PyDevice> {
        Ok(self.connection()?.local_device().into())
    }

    /// How many writes its queue takes before it is full; -1 where the transport chooses.
    fn get_max_write_queue_size(&self) -> PyResult<i64> {
        Ok(optional(self.connection()?.max_write_queue_size()))
    }

    /// Whether both objects stand for the same connection. A semaphore returns a new object for its connection at
    /// each call.
    fn __eq__(&self, other: &Self) -> PyResult<bool> {
        Ok(self.connection()?.downgrade().is(&*other.connection()?))
    }

    /// Hashes only values that never change. Collisions do no harm, as few connections meet in one dictionary.
    fn __hash__(&self) -> PyResult<u64> {
        let connection = self.connection()?;
        let mut hasher = DefaultHasher::new();
        (connection.transport().to_string(), connection.local_device().to_string()).hash(&mut hasher);
        Ok(hasher.finish())
    }
}

closable!(PyContext, inner, |context| format!(" with {}", context.transports()));
closable!(PyEndpoint, inner, |endpoint| format!(" of {} on {}", endpoint.transport(), endpoint.device()));
closable!(PyConnection, inner, |connection| format!(
    " to {} over {}",
    connection.label(),
    connection.transport()
));
