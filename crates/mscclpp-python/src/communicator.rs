//! `Communicator`, and the futures that it gives.

use std::time::{Duration, Instant};

use mscclpp::{Communicator, Connection, Context, LocalEnd, Pending, RegisteredMemory, Semaphore};
use pyo3::{exceptions::PyTypeError, prelude::*, sync::PyOnceLock};

use crate::{
    bootstrap::PyBootstrap,
    config::ConfigArgument,
    connection::{PyConnection, PyContext, PyEndpoint, on_this_threads_device},
    error::OrRaise,
    memory::PyRegisteredMemory,
    older,
    owned::{Owned, closable},
    semaphore::PySemaphore,
    transport::Flags,
    uint::{uint, uint_list},
    waiting,
};

/// Exchanges endpoints, memories and semaphores with the other ranks of a job.
#[pyclass(name = "Communicator", module = "mscclpp._mscclpp", frozen)]
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
    pub(crate) fn communicator(&self) -> PyResult<Communicator> {
        Ok(self.inner.get()?.communicator.clone())
    }

    fn start_connect(
        &self,
        py: Python<'_>,
        local: LocalArgument,
        peer: usize,
        tag: u32,
    ) -> PyResult<ConnectionFuture> {
        let communicator = self.communicator()?;
        let local = local.on_this_threads_device(communicator.context())?;
        let rank = communicator.bootstrap().rank();
        waiting::wait(py, move || communicator.connect(local, peer, tag))
            .map(|pending| ConnectionFuture::of(pending, rank, peer))
    }

    /// Makes a semaphore over `connection` together with the rank at its other end, which does the same.
    pub(crate) fn build(&self, py: Python<'_>, connection: &Connection) -> PyResult<Semaphore> {
        let communicator = self.communicator()?;
        let peer = communicator.remote_rank_of(connection).or_raise()?;
        let (connection, rank) = (connection.clone(), communicator.bootstrap().rank());
        let pending = waiting::wait(py, move || communicator.build_semaphore(&connection))?;
        let semaphore = await_pending(py, &pending, rank)?;
        self._settle(py, vec![peer])?;
        Ok(semaphore)
    }
}

/// The tag of the messages of [`settle`].
const SETTLED: u32 = u32::MAX;
/// How long a rank waits for them. A peer whose program calls something else sends none.
const SETTLING: Duration = Duration::from_secs(5);

/// Tells `peers` that this rank has made what it makes with them, and waits until they say the same.
///
/// A rank has all that it needs from a peer when the peer has sent its part, and would return while the peer still opens
/// what came. A program that then ends, or drops what it made, would make that fail.
fn settle(communicator: &Communicator, peers: &[usize]) -> Result<(), mscclpp::Error> {
    let bootstrap = communicator.bootstrap();
    let others = || peers.iter().copied().filter(|&peer| peer != bootstrap.rank());
    let deadline = Instant::now() + SETTLING;
    for peer in others() {
        bootstrap.send(&[], peer, SETTLED)?;
    }
    for peer in others() {
        let left = deadline.saturating_duration_since(Instant::now());
        if let Err(error) = bootstrap.recv_timeout(peer, SETTLED, left) {
            // What was made is there. What is wrong with the peer, its objects say when they are used.
            tracing::debug!(target: "mscclpp::python", peer, %error, "a peer has not said that it is done");
        }
    }
    Ok(())
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
    #[pyo3(signature = (ptr, size, transports))]
    fn register_memory(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = uint)] ptr: u64,
        #[pyo3(from_py_with = uint)] size: u64,
        transports: Flags,
    ) -> PyResult<PyRegisteredMemory> {
        PyRegisteredMemory::register(py, self.communicator()?.context(), ptr, size, transports.0)
    }

    /// Sends a registered memory to a rank, whose `recv_memory()` with the same tag gets it. Does not wait for that.
    #[pyo3(signature = (memory, remote_rank, tag = 0))]
    fn send_memory(
        &self,
        py: Python<'_>,
        memory: &PyRegisteredMemory,
        #[pyo3(from_py_with = uint)] remote_rank: usize,
        #[pyo3(from_py_with = uint)] tag: u32,
    ) -> PyResult<()> {
        let (communicator, memory) = (self.communicator()?, memory.to_send()?);
        waiting::wait(py, move || communicator.send_memory(&memory, remote_rank, tag))
    }

    /// The next memory that a rank sends with this tag. Does not wait: the future's `get()` does.
    #[pyo3(signature = (remote_rank, tag = 0))]
    fn recv_memory(
        &self,
        #[pyo3(from_py_with = uint)] remote_rank: usize,
        #[pyo3(from_py_with = uint)] tag: u32,
    ) -> PyResult<MemoryFuture> {
        let communicator = self.communicator()?;
        let pending = communicator.recv_memory(remote_rank, tag).or_raise()?;
        Ok(MemoryFuture::of(pending, communicator.bootstrap().rank(), remote_rank))
    }

    /// Sends the peer this side's endpoint; the future connects it with the peer's.
    #[pyo3(signature = (local_config, remote_rank, tag = 0))]
    fn connect(
        &self,
        py: Python<'_>,
        local_config: LocalArgument,
        #[pyo3(from_py_with = uint)] remote_rank: usize,
        #[pyo3(from_py_with = uint)] tag: u32,
    ) -> PyResult<ConnectionFuture> {
        self.start_connect(py, local_config, remote_rank, tag)
    }

    /// Connects with several ranks, which do the same in any order. Waits for all of them; no ranks wait for each other in a
    /// circle. What can be wrong here is found before anything is sent.
    #[pyo3(signature = (local_config, remote_ranks, tag = 0))]
    fn connect_all(
        &self,
        py: Python<'_>,
        local_config: LocalArgument,
        #[pyo3(from_py_with = uint_list)] remote_ranks: Vec<usize>,
        #[pyo3(from_py_with = uint)] tag: u32,
    ) -> PyResult<Vec<PyConnection>> {
        let communicator = self.communicator()?;
        let local = local_config.on_this_threads_device(communicator.context())?;
        let connections = waiting::wait(py, move || communicator.connect_all(local, remote_ranks, tag))?;
        Ok(connections.into_iter().map(PyConnection::of).collect())
    }

    /// Returns when each of `ranks` has called it, or after five seconds: see [`settle`].
    fn _settle(&self, py: Python<'_>, #[pyo3(from_py_with = uint_list)] ranks: Vec<usize>) -> PyResult<()> {
        let communicator = self.communicator()?;
        waiting::wait(py, move || settle(&communicator, &ranks))
    }

    /// Begins a semaphore over a connection together with the rank at its other end, which does the same. The future's
    /// `get()` waits for that rank.
    #[pyo3(signature = (connection, remote_rank, tag = 0))]
    fn build_semaphore(
        &self,
        py: Python<'_>,
        connection: &PyConnection,
        #[pyo3(from_py_with = uint)] remote_rank: usize,
        #[pyo3(from_py_with = uint)] tag: u32,
    ) -> PyResult<SemaphoreFuture> {
        let (communicator, connection) = (self.communicator()?, connection.connection()?.clone());
        let rank = communicator.bootstrap().rank();
        waiting::wait(py, move || communicator.build_semaphore_with(&connection, remote_rank, tag))
            .map(|pending| SemaphoreFuture::of(pending, rank, remote_rank))
    }

    /// The rank at the other end of a connection that this communicator made.
    fn remote_rank_of(&self, connection: &PyConnection) -> PyResult<usize> {
        self.communicator()?.remote_rank_of(&*connection.connection()?).or_raise()
    }

    /// The tag with which this communicator made a connection.
    fn tag_of(&self, connection: &PyConnection) -> PyResult<u32> {
        self.communicator()?.tag_of(&*connection.connection()?).or_raise()
    }

    /// Gives up the job: the calls of all ranks fail, and device waits on its semaphores end.
    #[pyo3(signature = (reason = "aborted by the program"))]
    fn abort(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        let communicator = self.communicator()?;
        py.detach(|| communicator.abort(reason));
        Ok(())
    }

    /// Older form of `connect`.
    #[pyo3(signature = (remote_rank, tag, local_config))]
    fn connect_on_setup(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = uint)] remote_rank: usize,
        #[pyo3(from_py_with = uint)] tag: u32,
        local_config: LocalArgument,
    ) -> PyResult<ConnectionFuture> {
        older::warn(py, "Communicator.connect_on_setup", "Communicator.connect")?;
        self.start_connect(py, local_config, remote_rank, tag)
    }

    /// Older form of `send_memory`.
    #[pyo3(signature = (memory, remote_rank, tag))]
    fn send_memory_on_setup(
        &self,
        py: Python<'_>,
        memory: &PyRegisteredMemory,
        #[pyo3(from_py_with = uint)] remote_rank: usize,
        #[pyo3(from_py_with = uint)] tag: u32,
    ) -> PyResult<()> {
        older::warn(py, "Communicator.send_memory_on_setup", "Communicator.send_memory")?;
        self.send_memory(py, memory, remote_rank, tag)
    }

    /// Older form of `recv_memory`.
    #[pyo3(signature = (remote_rank, tag))]
    fn recv_memory_on_setup(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = uint)] remote_rank: usize,
        #[pyo3(from_py_with = uint)] tag: u32,
    ) -> PyResult<MemoryFuture> {
        older::warn(py, "Communicator.recv_memory_on_setup", "Communicator.recv_memory")?;
        self.recv_memory(remote_rank, tag)
    }

    /// Did what `get()` of the futures does now.
    fn setup(&self, py: Python<'_>) -> PyResult<()> {
        older::warn(py, "Communicator.setup", "get() of the futures")
    }
}

closable!(PyCommunicator, inner, |made| {
    let bootstrap = made.communicator.bootstrap();
    format!(" of rank {} of {}", bootstrap.rank(), bootstrap.n_ranks())
});

/// What is accepted as this side of a connection: an endpoint, a configuration or a transport.
struct LocalArgument(LocalEnd);

impl LocalArgument {
    /// With the device that the calling thread means, as the work is done on another one.
    fn on_this_threads_device(self, context: &Context) -> PyResult<LocalEnd> {
        Ok(match self.0 {
            LocalEnd::Config(config) => LocalEnd::Config(on_this_threads_device(context, config).or_raise()?),
            made => made,
        })
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for LocalArgument {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(endpoint) = object.cast::<PyEndpoint>() {
            return Ok(Self(endpoint.get().endpoint()?.clone().into()));
        }
        match object.extract::<ConfigArgument>() {
            Ok(config) => Ok(Self(config.0.into())),
            Err(error) if error.is_instance_of::<PyTypeError>(object.py()) => {
                Err(PyTypeError::new_err(format!(
                    "expected an EndpointConfig, an Endpoint or a Transport, got {}",
                    object.get_type().name()?
                )))
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

/// Declares a future: something that another rank's part is still needed for.
macro_rules! future {
    ($type:ident as $name:literal of $value:ty: $object:ident) => {
        #[doc = concat!("Becomes a `", stringify!($value), "` when the other rank has sent its part.")]
        #[pyclass(name = $name, module = "mscclpp._mscclpp", frozen)]
        pub(crate) struct $type {
            inner: Owned<Pending<$value>>,
            object: PyOnceLock<Py<$object>>,
            /// Whose it is.
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
            /// Waits for it. The same object each time.
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
