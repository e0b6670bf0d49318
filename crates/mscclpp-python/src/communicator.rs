//! `Communicator`, and the futures that it gives.

use mscclpp::{Communicator, Connection, Context, LocalEnd, Pending, RegisteredMemory, Semaphore};
use pyo3::{
    PyTypeInfo, exceptions::PyTypeError, inspect::PyStaticExpr, prelude::*, sync::PyOnceLock, type_hint_union,
};

use crate::{
    bootstrap::PyBootstrap,
    config::ConfigArgument,
    connection::{PyConnection, PyContext, PyEndpoint, on_this_threads_device},
    error::{self, OrRaise},
    memory::PyRegisteredMemory,
    owned::{Owned, closable},
    semaphore::PySemaphore,
    transport::Flags,
    uint::{Uint, uint},
    waiting,
};

/// Exchanges endpoints, memories and semaphores with the other ranks of a job.
#[pyclass(name = "Communicator", module = "mscclpp._mscclpp", frozen, weakref)]
pub(crate) struct PyCommunicator {
    inner: Owned<Made>,
}

/// A communicator and the objects that it was made of.
struct Made {
    communicator: Communicator,
    bootstrap: Py<PyBootstrap>,
    context: Py<PyContext>,
}

impl PyCommunicator {
    pub(crate) fn waited(&self) -> PyResult<Communicator> {
        Ok(self.inner.get()?.communicator.clone())
    }

    /// Makes a semaphore over `connection` together with the rank at its other end, which does the same.
    pub(crate) fn build(&self, py: Python<'_>, connection: &Connection) -> PyResult<Semaphore> {
        let communicator = self.waited()?;
        let peer = communicator.remote_rank_of(connection).or_raise()?;
        let (connection, rank) = (connection.clone(), communicator.bootstrap().rank());
        let pending = waiting::wait(py, move || communicator.build_semaphore(&connection))?;
        let semaphore = await_pending(py, &pending, rank)?;
        self.settle(py, vec![Uint(peer)])?;
        Ok(semaphore)
    }
}

#[pymethods]
impl PyCommunicator {
    #[new]
    #[pyo3(signature = (bootstrap, context = None))]
    fn new(py: Python<'_>, bootstrap: Py<PyBootstrap>, context: Option<Py<PyContext>>) -> PyResult<Self> {
        let context = match context {
            Some(context) => context,
            None => Py::new(py, PyContext::of(<Context as mscclpp::ContextExt>::new()))?,
        };
        let job = bootstrap.get().bootstrap()?;
        let communicator = Communicator::with_context(job, context.get().context()?.clone());
        Ok(Self { inner: Owned::that_may_wait("Communicator", Made { communicator, bootstrap, context }) })
    }

    /// The bootstrap that it was made with.
    fn bootstrap(&self, py: Python<'_>) -> PyResult<Py<PyBootstrap>> {
        Ok(self.inner.get()?.bootstrap.clone_ref(py))
    }

    /// The context that its connections and memories are made in.
    fn context(&self, py: Python<'_>) -> PyResult<Py<PyContext>> {
        Ok(self.inner.get()?.context.clone_ref(py))
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
        PyRegisteredMemory::register(py, self.waited()?.context(), ptr.0, size.0, transports.0)
    }

    /// Sends a registered memory to a rank, whose `recv_memory()` with the same tag gets it. Does not wait for that.
    #[pyo3(signature = (memory, remote_rank, tag: "typing.SupportsIndex" = 0))]
    fn send_memory(
        &self,
        py: Python<'_>,
        memory: &PyRegisteredMemory,
        remote_rank: Uint<usize>,
        #[pyo3(from_py_with = uint)] tag: u32,
    ) -> PyResult<()> {
        let (communicator, memory) = (self.waited()?, memory.to_send()?);
        waiting::wait(py, move || communicator.send_memory(&memory, remote_rank.0, tag))
    }

    /// Returns a future of the next memory that a rank sends with this tag. The future's `get()` waits for it.
    #[pyo3(signature = (remote_rank, tag: "typing.SupportsIndex" = 0))]
    fn recv_memory(
        &self,
        remote_rank: Uint<usize>,
        #[pyo3(from_py_with = uint)] tag: u32,
    ) -> PyResult<MemoryFuture> {
        let communicator = self.waited()?;
        let pending = communicator.recv_memory(remote_rank.0, tag).or_raise()?;
        Ok(MemoryFuture::of(pending, communicator.bootstrap().rank(), remote_rank.0))
    }

    /// Sends this side's endpoint to the peer. The future's `get()` connects it with the peer's.
    #[pyo3(signature = (local_config, remote_rank, tag: "typing.SupportsIndex" = 0))]
    fn connect(
        &self,
        py: Python<'_>,
        local_config: LocalArgument,
        remote_rank: Uint<usize>,
        #[pyo3(from_py_with = uint)] tag: u32,
    ) -> PyResult<ConnectionFuture> {
        let communicator = self.waited()?;
        let local = local_config.on_this_threads_device(communicator.context())?;
        let (Uint(peer), rank) = (remote_rank, communicator.bootstrap().rank());
        waiting::wait(py, move || communicator.connect(local, peer, tag))
            .map(|pending| ConnectionFuture::of(pending, rank, peer))
    }

    /// Connects with several ranks, which do the same in any order, and waits for all of them. Ranks cannot wait for
    /// each other in a circle. Wrong arguments are found before anything is sent.
    #[pyo3(signature = (local_config, remote_ranks, tag: "typing.SupportsIndex" = 0))]
    fn connect_all(
        &self,
        py: Python<'_>,
        local_config: LocalArgument,
        remote_ranks: Vec<Uint<usize>>,
        #[pyo3(from_py_with = uint)] tag: u32,
    ) -> PyResult<Vec<PyConnection>> {
        let communicator = self.waited()?;
        let local = local_config.on_this_threads_device(communicator.context())?;
        let ranks = remote_ranks.into_iter().map(|rank| rank.0);
        let connections = waiting::wait(py, move || communicator.connect_all(local, ranks, tag))?;
        Ok(connections.into_iter().map(PyConnection::of).collect())
    }

    /// Returns when each of `ranks` has called it, or after five seconds.
    #[pyo3(name = "_settle")]
    fn settle(&self, py: Python<'_>, ranks: Vec<Uint<usize>>) -> PyResult<()> {
        let communicator = self.waited()?;
        waiting::wait(py, move || communicator.settle(ranks.iter().map(|rank| rank.0)))
    }

    /// Begins a semaphore over a connection together with the rank at its other end, which does the same. The future's
    /// `get()` waits for that rank.
    #[pyo3(signature = (connection, remote_rank, tag: "typing.SupportsIndex" = 0))]
    fn build_semaphore(
        &self,
        py: Python<'_>,
        connection: &PyConnection,
        remote_rank: Uint<usize>,
        #[pyo3(from_py_with = uint)] tag: u32,
    ) -> PyResult<SemaphoreFuture> {
        let (communicator, connection) = (self.waited()?, connection.connection()?.clone());
        let (Uint(peer), rank) = (remote_rank, communicator.bootstrap().rank());
        waiting::wait(py, move || communicator.build_semaphore_with(&connection, peer, tag))
            .map(|pending| SemaphoreFuture::of(pending, rank, peer))
    }

    /// The rank at the other end of a connection that this communicator made.
    fn remote_rank_of(&self, connection: &PyConnection) -> PyResult<usize> {
        self.waited()?.remote_rank_of(&*connection.connection()?).or_raise()
    }

    /// The tag with which this communicator made a connection.
    fn tag_of(&self, connection: &PyConnection) -> PyResult<u32> {
        self.waited()?.tag_of(&*connection.connection()?).or_raise()
    }

    /// Gives up the job: the calls of all ranks fail, and device waits on its semaphores end.
    #[pyo3(signature = (reason = "aborted by the program"))]
    fn abort(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        let communicator = self.waited()?;
        py.detach(|| communicator.abort(reason));
        Ok(())
    }
}

closable!(PyCommunicator, inner, |made| {
    let bootstrap = made.communicator.bootstrap();
    format!(" of rank {} of {}", bootstrap.rank(), bootstrap.n_ranks())
});

/// An argument for this side of a connection: an endpoint, a configuration or a transport.
struct LocalArgument(LocalEnd);

impl LocalArgument {
    /// Fills in the device that is current in the calling thread, because another thread does the work.
    fn on_this_threads_device(self, context: &Context) -> PyResult<LocalEnd> {
        Ok(match self.0 {
            LocalEnd::Config(config) => LocalEnd::Config(on_this_threads_device(context, config).or_raise()?),
            made => made,
        })
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for LocalArgument {
    type Error = PyErr;

    const INPUT_TYPE: PyStaticExpr = type_hint_union!(PyEndpoint::TYPE_HINT, ConfigArgument::INPUT_TYPE);

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(endpoint) = object.cast::<PyEndpoint>() {
            return Ok(Self(endpoint.get().endpoint()?.clone().into()));
        }
        match object.extract::<ConfigArgument>() {
            Ok(config) => Ok(Self(config.0.into())),
            Err(error) if error.is_instance_of::<PyTypeError>(object.py()) => {
                Err(error::unexpected("expected an EndpointConfig, an Endpoint or a Transport, got", &object))
            }
            Err(error) => Err(error),
        }
    }
}

fn await_pending<T: Clone + Send + Sync + 'static>(
    py: Python<'_>,
    pending: &Pending<T>,
    rank: usize,
) -> PyResult<T> {
    let pending = pending.clone();
    waiting::wait_in_turns(py, rank, move |time| pending.wait_timeout(time))
}

/// Declares a future: an object that is complete when another rank has done its part.
macro_rules! future {
    ($type:ident as $name:literal of $value:ty: $object:ident) => {
        #[doc = concat!("A future of a `", stringify!($value), "`, which is there when the other rank has sent its part.")]
        #[pyclass(name = $name, module = "mscclpp._mscclpp", frozen)]
        pub(crate) struct $type {
            inner: Owned<Pending<$value>>,
            object: PyOnceLock<Py<$object>>,
            /// The rank that waits.
            rank: usize,
            peer: usize,
        }

        impl $type {
            fn of(pending: Pending<$value>, rank: usize, peer: usize) -> Self {
                Self { inner: Owned::that_may_wait($name, pending), object: PyOnceLock::new(), rank, peer }
            }
        }

        #[pymethods]
        impl $type {
            /// Waits for the object and returns it. Every call returns the same object.
            fn get(&self, py: Python<'_>) -> PyResult<Py<$object>> {
                let pending = self.inner.get()?;
                if let Some(object) = self.object.get(py) {
                    return Ok(object.clone_ref(py));
                }
                let value = await_pending(py, &pending, self.rank)?;
                let object = self.object.get_or_try_init(py, || Py::new(py, $object::of(value)))?;
                Ok(object.clone_ref(py))
            }

            fn __repr__(&self, py: Python<'_>) -> String {
                let state = if self.object.get(py).is_some() { "there" } else { "not asked for yet" };
                self.inner.show(|_| format!(" of rank {} with rank {}, {state}", self.rank, self.peer))
            }
        }
    };
}

future!(MemoryFuture as "SharedFuture_RegisteredMemory" of RegisteredMemory: PyRegisteredMemory);
future!(ConnectionFuture as "SharedFuture_Connection" of Connection: PyConnection);
future!(SemaphoreFuture as "SharedFuture_Semaphore" of Semaphore: PySemaphore);
