use std::sync::Arc;

use mscclpp_bootstrap::Bootstrap;
use mscclpp_core::{
    Connection, Context, Endpoint, RegisteredMemory, Semaphore, SemaphoreStub, TransportFlags,
};
use mscclpp_gpu::{DeviceBuffer, DevicePtr, PinnedBuffer};

use crate::{ContextExt, Error, LocalEnd, MeshBuilder, Pending, Result, fastest, members::Members};

/// Exchanges endpoints, memories and semaphores with the other ranks of a job. Clones are the same communicator.
///
/// A call sends this rank's part at once, and returns a [`Pending`] for the object, which is made when the peer's part
/// has come. Calls match by their order: the i-th sending call here for a peer and a tag belongs to the i-th receiving
/// call there. [`connect`] and [`build_semaphore`] both send and receive, [`send_memory`] sends, [`recv_memory`]
/// receives. If the other rank made a different call, the error names both calls. Make all calls before the first wait:
/// the book's page "A ring, and the deadlock rule" (`docs/src/tutorials/05-ring.md`) says why.
/// [`Communicator::connect_all`] and [`Communicator::mesh`] make the calls for many peers in a safe order, and wait
/// themselves, as does [`Communicator::build_fastest_semaphore`].
///
/// The tag is a tag of the bootstrap: a program that sends messages of its own uses other tags for them. A rank may
/// exchange with itself.
///
/// Methods may be called from any thread. If several threads make calls for one peer and tag, these take turns, and the
/// program must see to their order. There is no thread behind a communicator.
///
/// Make one per job and keep it: the bootstrap remembers each until it is dropped itself.
///
/// When a rank is lost or aborts, every [`Pending::wait`] fails. All connections and semaphores that were made through any
/// communicator of the job fail too, so that waiting kernels end: [`Semaphore::check`] says why.
///
/// [`connect`]: Communicator::connect
/// [`build_semaphore`]: Communicator::build_semaphore
/// [`send_memory`]: Communicator::send_memory
/// [`recv_memory`]: Communicator::recv_memory
#[derive(Clone)]
pub struct Communicator {
    members: Arc<Members>,
    context: Context,
}

impl Communicator {
    /// A communicator of the job of `bootstrap`, with a context that has the transports of this crate's features.
    #[must_use]
    pub fn new(bootstrap: Arc<dyn Bootstrap>) -> Self {
        Self::with_context(bootstrap, Context::new())
    }

    /// A communicator of the job of `bootstrap`, with a context of your own.
    #[must_use]
    pub fn with_context(bootstrap: Arc<dyn Bootstrap>, context: Context) -> Self {
        mscclpp_gpu::testing::this_thread_is_rank(bootstrap.rank());
        let members = Members::new(bootstrap, context.waits_are_logged_after());
        Self { members, context }
    }

    /// The bootstrap of its job.
    #[must_use]
    pub fn bootstrap(&self) -> &Arc<dyn Bootstrap> {
        self.members.bootstrap()
    }

    /// The context that makes its connections.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Opens an endpoint and sends it to `peer`. The connection is made by waiting for the result, with the endpoint that
    /// `peer` sends. Does not block.
    ///
    /// Both ranks make this call. The connection's label is `rank N`.
    ///
    /// # Errors
    /// [`Error::Core`] if the endpoint cannot be opened; [`Error::Bootstrap`] if it cannot be sent.
    pub fn connect(&self, local: impl Into<LocalEnd>, peer: usize, tag: u32) -> Result<Pending<Connection>> {
        let endpoint = local.into().open(&self.context)?;
        let bytes = endpoint.serialize()?;
        let (context, members) = (self.context.clone(), Arc::clone(&self.members));
        self.exchange("connect", Some(&bytes), peer, tag, move |bytes| {
            let connection = context.connect(&endpoint, &Endpoint::deserialize(bytes)?)?;
            connection.set_label(format!("rank {peer}"));
            members.adopt(&connection, Some((peer, tag)));
            Ok(connection)
        })
    }

    /// Connects with each of `peers`, in this order, and waits for all of them. Each of them makes the same call, or calls
    /// [`Communicator::connect`] and waits, with this rank for its peer and the same tag.
    ///
    /// It sends all endpoints before it waits for any, so that no ranks wait for each other in a circle, whatever the order
    /// in which they name their peers. With a configuration it opens an endpoint for each connection. A peer that is named
    /// twice is an error.
    ///
    /// ```
    /// # #[cfg(feature = "cuda-ipc")]
    /// # fn main() -> Result<(), mscclpp::Error> {
    /// # use {mscclpp::prelude::*, std::sync::Arc};
    /// # let ranks = LocalBootstrap::group(3).into_iter().map(|bootstrap|
    /// # std::thread::spawn(move || -> Result<(), mscclpp::Error> {
    /// # let (rank, n_ranks) = (bootstrap.rank(), bootstrap.n_ranks());
    /// # let comm = Communicator::with_context(Arc::new(bootstrap), Context::on(Platform::Sim));
    /// // Both neighbours in a ring.
    /// let neighbours = [(rank + 1) % n_ranks, (rank + n_ranks - 1) % n_ranks];
    /// let config = EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(rank));
    /// let connections = comm.connect_all(config, neighbours, 0)?;
    /// assert_eq!(comm.remote_rank_of(&connections[0])?, neighbours[0]);
    /// # comm.bootstrap().barrier()?;
    /// # Ok(())
    /// # }));
    /// # for rank in ranks.collect::<Vec<_>>() { rank.join().expect("a rank panicked")?; }
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "cuda-ipc"))]
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    /// The errors of [`Communicator::connect`], before anything is sent, and those of [`Pending::wait`].
    pub fn connect_all(
        &self,
        local: impl Into<LocalEnd>,
        peers: impl IntoIterator<Item = usize>,
        tag: u32,
    ) -> Result<Vec<Connection>> {
        let mesh = self.mesh(local).peers(peers).tag(tag).semaphores(0).connect()?;
        Ok(mesh.links.into_iter().map(|link| link.connection).collect())
    }

    /// Makes the connections, semaphores, exchanged memories and channels that this rank has with many others, in one
    /// call. [`MeshBuilder::connect`] sends and waits.
    ///
    /// ```
    /// # #[cfg(feature = "cuda-ipc")]
    /// # fn main() -> Result<(), mscclpp::Error> {
    /// # use {mscclpp::prelude::*, std::sync::Arc};
    /// # let ranks = LocalBootstrap::group(3).into_iter().map(|bootstrap|
    /// # std::thread::spawn(move || -> Result<(), mscclpp::Error> {
    /// # let rank = bootstrap.rank();
    /// # let comm = Communicator::with_context(Arc::new(bootstrap), Context::on(Platform::Sim));
    /// let buffer = comm.context().gpu(rank)?.allocate(1 << 20)?;
    /// let ours = comm.register_buffer(&buffer, Transport::CUDA_IPC)?;
    /// let config = EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(rank));
    /// let mesh = comm.mesh(config).memory(&ours).connect()?; // with all other ranks
    /// let channels = mesh.memory_channels(&ours, None)?; // one for each
    /// # assert_eq!(channels.len(), 2);
    /// # comm.bootstrap().barrier()?;
    /// # Ok(())
    /// # }));
    /// # for rank in ranks.collect::<Vec<_>>() { rank.join().expect("a rank panicked")?; }
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "cuda-ipc"))]
    /// # fn main() {}
    /// ```
    pub fn mesh(&self, local: impl Into<LocalEnd>) -> MeshBuilder<'_> {
        MeshBuilder::new(self, local.into())
    }

    /// Sends `peer` the description of `memory` with which it can reach it. `peer` calls [`Communicator::recv_memory`].
    ///
    /// The memory must be kept as long as the peer uses it.
    ///
    /// # Errors
    /// [`Error::Bootstrap`] if it cannot be sent.
    pub fn send_memory(&self, memory: &RegisteredMemory, peer: usize, tag: u32) -> Result<()> {
        self.members.check_process()?;
        let bytes = memory.serialize()?;
        let queue = self.members.receive_queue(peer, tag);
        let _turn = queue.turn();
        self.send("send_memory", &bytes, peer, tag)
    }

    /// Receives the memory that `peer` sends with [`Communicator::send_memory`].
    ///
    /// When it has come, it is mapped if a transport of this context can do that, so that [`RegisteredMemory::data`]
    /// returns its address. It is mapped for the device of this rank's connection to `peer`; if there is none yet, for
    /// that of another connection, or else for the current GPU of the thread that waits. Mapping may block for some
    /// seconds. Memory that cannot be mapped, as over Ethernet or from another node, has no address, and a log line of
    /// level DEBUG says why.
    ///
    /// # Errors
    /// [`Error::Bootstrap`] for a rank that does not exist, or when the job has failed.
    pub fn recv_memory(&self, peer: usize, tag: u32) -> Result<Pending<RegisteredMemory>> {
        let (context, members) = (self.context.clone(), Arc::clone(&self.members));
        self.exchange("recv_memory", None, peer, tag, move |bytes| {
            let memory = RegisteredMemory::deserialize(bytes)?;
            members.map(&context, &memory, peer);
            Ok(memory)
        })
    }

    /// Makes this side's half of a semaphore over `connection`, and sends it to the rank at the other end. The semaphore is
    /// made by waiting for the result, with the half that the other rank sends by the same call. Does not block. Peer and tag
    /// are those with which this communicator made the connection. [`Communicator::build_fastest_semaphore`] takes longer and
    /// makes signals faster.
    ///
    /// # Errors
    /// [`Error::ForeignConnection`] for a connection that this communicator did not make: see
    /// [`Communicator::build_semaphore_with`]. [`Error::Core`] if the half cannot be made; [`Error::Bootstrap`] if it cannot
    /// be sent.
    pub fn build_semaphore(&self, connection: &Connection) -> Result<Pending<Semaphore>> {
        let (peer, tag) = self.made_for(connection)?;
        self.build_semaphore_with(connection, peer, tag)
    }

    /// Builds a semaphore as [`Communicator::build_semaphore`] does, over a connection that this communicator need not
    /// have made. `peer` is the rank at its other end, which makes the same call. The messages have the tag that is given
    /// here.
    ///
    /// # Errors
    /// [`Error::Core`] if the half cannot be made; [`Error::Bootstrap`] if it cannot be sent.
    pub fn build_semaphore_with(
        &self,
        connection: &Connection,
        peer: usize,
        tag: u32,
    ) -> Result<Pending<Semaphore>> {
        self.members.adopt(connection, None);
        let stub = SemaphoreStub::new(connection)?;
        let bytes = stub.serialize()?;
        self.exchange("build_semaphore", Some(&bytes), peer, tag, move |bytes| {
            Semaphore::new(&stub, &SemaphoreStub::deserialize(bytes)?)
        })
    }

    /// Builds a semaphore as [`Communicator::build_semaphore`] does, and chooses the place of its tokens in memory at
    /// which signals are fastest. It makes a semaphore at each of `places` places in the memory of both devices, lets the
    /// devices signal each other over each, and returns the one with the least time. The rank at the other end makes the
    /// same call.
    ///
    /// The time of a signal depends on how far the token's page is from the link, and from the multiprocessor that waits.
    /// The page `docs/performance/channels.md` says how much can be gained. Use this call for semaphores that are made once
    /// and used much.
    ///
    /// Unlike the other calls this one blocks: it waits for the peer as [`Pending::wait`] does. So with several peers,
    /// all ranks make their calls in one order, such as by ascending peers. The timing, 1600 round trips at each place,
    /// ends with an error after ten seconds. Each place takes 4 KiB of device memory. The call loads kernels, which may
    /// have to wait for kernels that run: call it before the work begins, and not from two threads for one device.
    /// Between simulated devices, or within one device, it makes the semaphores and times nothing.
    ///
    /// ```
    /// # #[cfg(feature = "cuda-ipc")]
    /// # fn main() -> Result<(), mscclpp::Error> {
    /// # use {mscclpp::prelude::*, std::sync::Arc};
    /// # let ranks = LocalBootstrap::group(2).into_iter().map(|bootstrap|
    /// # std::thread::spawn(move || -> Result<(), mscclpp::Error> {
    /// # let peer = 1 - bootstrap.rank();
    /// # let comm = Communicator::with_context(Arc::new(bootstrap), Context::on(Platform::Sim));
    /// # let connection = comm.connect(EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(0)), peer, 0)?.wait()?;
    /// let semaphore = comm.build_fastest_semaphore(&connection, 16)?;
    /// let channel = BaseMemoryChannel::new(&semaphore)?;
    /// # comm.bootstrap().barrier()?;
    /// # Ok(())
    /// # }));
    /// # for rank in ranks.collect::<Vec<_>>() { rank.join().expect("a rank panicked")?; }
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "cuda-ipc"))]
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    /// The errors of [`Communicator::build_semaphore`] and [`Pending::wait`]; [`Error::Core`] for no places or more than
    /// 64, for a connection with this rank itself, and for a connection over which kernels cannot signal each other
    /// ([`BaseMemoryChannel::new`] says why); [`Error::Gpu`] if the signals could not be timed; [`Error::Exchange`] if
    /// the other rank asks for another number of places, or could not time them.
    ///
    /// [`BaseMemoryChannel::new`]: mscclpp_core::BaseMemoryChannel::new
    pub fn build_fastest_semaphore(&self, connection: &Connection, places: usize) -> Result<Semaphore> {
        let (peer, tag) = self.made_for(connection)?;
        self.build_fastest_semaphore_with(connection, peer, tag, places)
    }

    /// Builds a semaphore as [`Communicator::build_fastest_semaphore`] does, over a connection that this communicator
    /// need not have made. `peer` is the rank at its other end, which makes the same call. The messages have the tag that
    /// is given here.
    ///
    /// # Errors
    /// The same as [`Communicator::build_fastest_semaphore`], except [`Error::ForeignConnection`].
    pub fn build_fastest_semaphore_with(
        &self,
        connection: &Connection,
        peer: usize,
        tag: u32,
        places: usize,
    ) -> Result<Semaphore> {
        self.members.adopt(connection, None);
        fastest::build(self, connection, peer, tag, places)
    }

    /// Registers a buffer with [`Context::register_buffer`] of this communicator's context.
    ///
    /// # Errors
    /// The same as [`Context::register_buffer`].
    pub fn register_buffer(
        &self,
        buffer: &DeviceBuffer,
        transports: impl Into<TransportFlags>,
    ) -> Result<RegisteredMemory> {
        Ok(self.context.register_buffer(buffer, transports)?)
    }

    /// Registers pinned memory with [`Context::register_pinned`] of this communicator's context.
    ///
    /// # Errors
    /// The same as [`Context::register_pinned`].
    pub fn register_pinned(
        &self,
        buffer: &PinnedBuffer,
        transports: impl Into<TransportFlags>,
    ) -> Result<RegisteredMemory> {
        Ok(self.context.register_pinned(buffer, transports)?)
    }

    /// Registers memory with [`Context::register_memory`] of this communicator's context.
    ///
    /// # Safety
    /// The same as [`Context::register_memory`].
    ///
    /// # Errors
    /// The same as [`Context::register_memory`].
    #[allow(unsafe_code, reason = "a raw address that nobody here can check, passed on")]
    pub unsafe fn register_memory(
        &self,
        ptr: DevicePtr,
        len: u64,
        transports: impl Into<TransportFlags>,
    ) -> Result<RegisteredMemory> {
        // SAFETY: the caller's promise is the one that `Context::register_memory` asks for.
        Ok(unsafe { self.context.register_memory(ptr, len, transports)? })
    }

    /// Returns the rank at the other end of a connection of this communicator.
    ///
    /// # Errors
    /// [`Error::ForeignConnection`] for a connection that [`Communicator::connect`] did not make.
    pub fn remote_rank_of(&self, connection: &Connection) -> Result<usize> {
        self.made_for(connection).map(|(peer, _)| peer)
    }

    /// Returns the tag that a connection of this communicator was made with.
    ///
    /// # Errors
    /// The same as [`Communicator::remote_rank_of`].
    pub fn tag_of(&self, connection: &Connection) -> Result<u32> {
        self.made_for(connection).map(|(_, tag)| tag)
    }

    /// Gives up the whole job, for ever. Every pending and later call of all ranks fails, and device waits on every
    /// semaphore that was made through a communicator of the job return false: here at once, on other ranks when the news
    /// has come. Blocks for about a second at most, until the news is on its way.
    pub fn abort(&self, reason: &str) {
        self.members.fail(&mscclpp_core::Error::Aborted { reason: reason.to_owned() });
        self.bootstrap().abort(reason);
    }

    /// Returns the cause of an error of this communicator's connections and semaphores.
    ///
    /// When a rank dies, others give up and close their connections. This rank may notice those first, and its error then
    /// names a rank that did not die. If `error` says that a rank is gone or has failed, this call waits up to a second for
    /// the job's own news, and returns an error that names the rank that died. Otherwise it returns `error` at once.
    /// [`Pending::wait`] does this by itself.
    #[must_use]
    pub fn explain(&self, error: impl Into<Error>) -> Error {
        self.members.explain(error.into())
    }

    pub(crate) fn members(&self) -> &Members {
        &self.members
    }

    /// Checks that these ranks exist, and that none is named twice.
    pub(crate) fn check_peers(&self, peers: &[usize]) -> Result<(), String> {
        let n_ranks = self.bootstrap().n_ranks();
        let problem = peers.iter().enumerate().find_map(|(i, peer)| match () {
            () if *peer >= n_ranks => Some(format!("there is no rank {peer} in a job of {n_ranks}")),
            () if peers[..i].contains(peer) => Some(format!("rank {peer} is named twice in {peers:?}")),
            () => None,
        });
        problem.map_or(Ok(()), Err)
    }

    fn made_for(&self, connection: &Connection) -> Result<(usize, u32)> {
        self.members.made_for(connection).ok_or_else(|| Error::ForeignConnection { peer: connection.label() })
    }

    /// Sends this side's part, if there is one, and enqueues the receiving of the peer's part, both in one turn of the
    /// queue.
    pub(crate) fn exchange<T: Clone + Send + Sync + 'static>(
        &self,
        what: &'static str,
        part: Option<&[u8]>,
        peer: usize,
        tag: u32,
        make: impl FnOnce(&[u8]) -> mscclpp_core::Result<T> + Send + 'static,
    ) -> Result<Pending<T>> {
        self.members.check_process()?;
        if let Some(failure) = self.bootstrap().failure() {
            return Err(failure.into());
        }
        let n_ranks = self.bootstrap().n_ranks();
        if peer >= n_ranks {
            let error = format!("{what}: there is no rank {peer} in a job of {n_ranks}");
            return Err(mscclpp_bootstrap::Error::InvalidArgument(error).into());
        }
        let queue = self.members.receive_queue(peer, tag);
        let _turn = queue.turn();
        if let Some(bytes) = part {
            self.send(what, bytes, peer, tag)?;
        }
        Ok(Pending::enqueue(what, &queue, &self.members, make))
    }

    fn send(&self, what: &'static str, bytes: &[u8], peer: usize, tag: u32) -> Result<()> {
        let rank = self.bootstrap().rank();
        tracing::debug!(target: "mscclpp::conn", rank, peer, tag, bytes = bytes.len(), "{what}: sending our part");
        self.bootstrap().send(bytes, peer, tag).map_err(|error| self.explain(error))
    }
}

mscclpp_os::debug_fields!(Communicator, |this|
    rank: this.bootstrap().rank(), n_ranks: this.bootstrap().n_ranks(), context: this.context
);
