//! The service behind port channels.

use std::{fmt, sync::Arc, time::Duration};

use mscclpp_core::{HostToDeviceSemaphoreHandle, RegisteredMemory, Semaphore};
use mscclpp_gpu::Gpu;
use parking_lot::Mutex;

use crate::{
    BasePortChannel, Error, Fifo, IdlePolicy, MemoryId, PortChannel, Proxy, ProxyBuilder, Result,
    SemaphoreId,
    connection::{CONNECTION_WORDS, ServiceConnection},
    engine::Engine,
    state::{EntrySignaller, SemaphoreEntry, ServiceState},
};

/// A service with a proxy, which can be started and stopped.
pub trait BaseProxyService: Send + Sync {
    /// Starts its thread. With `blocking`, waits until the thread takes triggers.
    ///
    /// # Errors
    /// What the service failed with before, or at its start.
    fn start_proxy(&self, blocking: bool) -> Result<()>;

    /// Carries out everything that was pushed before the call, and ends the thread. It can be started again.
    ///
    /// # Errors
    /// What the service failed with.
    fn stop_proxy(&self) -> Result<()>;
}

/// Carries out, on a host thread, what kernels of one device ask for through port channels: it copies data between
/// registered memories and signals semaphores, over any transport.
///
/// Semaphores and memories are added to it and get numbers, which all its channels share. They can be added while it runs, and
/// stay until it is dropped. All methods may be called from any thread.
///
/// # Order
/// The triggers of all channels go through one FIFO and are carried out in order for each connection. Connections do not wait
/// for each other: if the transport of one is full, up to 512 of its triggers are set aside, and carried out when there is
/// room. Two services that share a connection have no order among each other.
///
/// # When something fails
/// A trigger that cannot be carried out (an unknown number, a range outside its memory, a lost peer), or a connection
/// whose peer is lost, stops the service for good: waits and flushes of kernels on all of its semaphores return false,
/// [`ProxyService::health`] and [`ProxyService::stop_proxy`] say why, naming the trigger. The process lives.
///
/// # Memory of 4 GiB and more
/// Offsets and sizes of triggers have 32 bits. Larger memory is registered in pieces, which get numbers in a row:
///
/// ```no_run
/// # use mscclpp_core::{Context, RegisteredMemory, Transport};
/// # use mscclpp_gpu::DeviceBuffer;
/// # use mscclpp_proxy::ProxyService;
/// # fn example(context: &Context, service: &ProxyService, buffer: &DeviceBuffer) -> mscclpp_proxy::Result<()> {
/// const PIECE: u64 = 2 << 30;
/// let first = service.next_memory_id(buffer.len().div_ceil(PIECE) as u32)?;
/// for offset in (0..buffer.len()).step_by(PIECE as usize) {
///     let len = PIECE.min(buffer.len() - offset);
///     // SAFETY: a part of `buffer`, which outlives the service.
///     let piece = unsafe { context.register_memory(buffer.ptr().add(offset), len, Transport::CUDA_IPC)? };
///     // These get first, first + 1, ...: byte `at` is in memory `first + (at / PIECE) as u32`.
///     service.add_memory(&piece)?;
/// }
/// # Ok(())
/// # }
/// ```
pub struct ProxyService {
    proxy: Proxy<Engine>,
    pub(crate) state: Arc<ServiceState>,
}

/// Puts a [`ProxyService`] together.
#[derive(Debug)]
pub struct ProxyServiceBuilder {
    gpu: Gpu,
    proxy: ProxyBuilder,
    fifo_size: u64,
    direct_put_max: u32,
    bulk_put_max: Option<u32>,
}

impl ProxyServiceBuilder {
    /// How many triggers the FIFO holds: a power of two from 2 to 4096; 512 if not set. Threads that push more at once wait.
    #[must_use]
    pub fn fifo_size(mut self, size: u64) -> Self {
        self.fifo_size = size;
        self
    }

    /// Up to how many bytes a kernel's thread puts by itself, word by word, where it reaches the peer's memory and nothing
    /// is pending: 4 KiB if not set; 0 for never.
    #[must_use]
    pub fn direct_put_max(mut self, bytes: u32) -> Self {
        self.direct_put_max = bytes;
        self
    }

    /// Up to how many bytes a kernel's thread puts by itself by bulk copies, in kernels that are compiled for compute
    /// capability 9.0: 256 KiB if not set, and never if [`Self::direct_put_max`] is 0; 0 for never.
    ///
    /// Such a put returns when the data is at the peer; one that goes through the proxy returns at once. Up to about this size
    /// the former takes less time. For a kernel that has other work meanwhile, a smaller limit may be better.
    #[must_use]
    pub fn bulk_put_max(mut self, bytes: u32) -> Self {
        self.bulk_put_max = Some(bytes);
        self
    }

    /// What the proxy's thread does when there are no triggers.
    #[must_use]
    pub fn idle(mut self, policy: IdlePolicy) -> Self {
        self.proxy = self.proxy.idle(policy);
        self
    }

    /// After which time a start or a stop that waits is first logged: see [`ProxyBuilder::log_waits_after`].
    #[must_use]
    pub fn log_waits_after(mut self, first: Duration) -> Self {
        self.proxy = self.proxy.log_waits_after(first);
        self
    }

    /// Called on the proxy's thread at each start, before the first trigger.
    #[must_use]
    pub fn thread_init(mut self, init: impl Fn() + Send + Sync + 'static) -> Self {
        self.proxy = self.proxy.thread_init(init);
        self
    }

    /// A service without semaphores and memories, not started yet.
    ///
    /// # Errors
    /// [`Error::FifoSize`]; [`Error::Gpu`] when memory is short, naming `ulimit -l` where that is the cause.
    pub fn build(self) -> Result<ProxyService> {
        let fifo = Fifo::new(&self.gpu, self.fifo_size)?;
        let failure = Arc::default();
        let by_default = if self.direct_put_max == 0 { 0 } else { ProxyService::DEFAULT_BULK_PUT_MAX };
        let bulk_put_max = self.bulk_put_max.unwrap_or(by_default);
        let state = Arc::new(ServiceState::new(
            self.gpu,
            fifo.shared(),
            self.direct_put_max,
            bulk_put_max,
            Arc::clone(&failure),
        )?);
        let proxy = self.proxy.build_on(fifo, failure, Engine::new(state.clone()));
        Ok(ProxyService { proxy, state })
    }
}

impl ProxyService {
    /// Up to how many bytes a kernel's thread puts by itself if nothing else is said.
    pub const DEFAULT_DIRECT_PUT_MAX: u32 = 4096;
    /// Up to how many bytes it does so by bulk copies.
    pub const DEFAULT_BULK_PUT_MAX: u32 = 256 << 10;

    /// A service for kernels of `gpu`, not started yet.
    ///
    /// # Errors
    /// As [`ProxyServiceBuilder::build`].
    pub fn new(gpu: &Gpu) -> Result<Self> {
        Self::builder(gpu).build()
    }

    /// Options of a service for kernels of `gpu`.
    #[must_use]
    pub fn builder(gpu: &Gpu) -> ProxyServiceBuilder {
        ProxyServiceBuilder {
            gpu: gpu.clone(),
            proxy: Proxy::builder(gpu),
            fifo_size: Fifo::DEFAULT_SIZE,
            direct_put_max: Self::DEFAULT_DIRECT_PUT_MAX,
            bulk_put_max: None,
        }
    }

    /// Adds a semaphore, whose connection's local endpoint must be on the service's device. As long as the service lives, only
    /// its proxy signals over the link: [`HostToDeviceSemaphore::signal`](mscclpp_core::HostToDeviceSemaphore::signal) is an
    /// error. Device handles of all kinds work. A semaphore that is added again gets a second number, and its channels share
    /// its tokens.
    ///
    /// Opens a queue with the first semaphore of a connection, which may block for some seconds. Waits as
    /// [`Semaphore::signaller`] does.
    ///
    /// # Errors
    /// [`Error::TooMany`] beyond 1024; [`Error::InvalidArgument`] for another device;
    /// [`Error::Core`] if another service has it, or the connection has failed; what the service failed with.
    pub fn add_semaphore(&self, semaphore: &Semaphore) -> Result<SemaphoreId> {
        self.proxy.health()?;
        let (state, connection) = (&self.state, semaphore.connection());
        let handle = HostToDeviceSemaphoreHandle::of(semaphore)?;
        state.check_device(connection)?;
        let id = state.semaphores.add(|_| {
            // Connections are only added under the lock that this runs under.
            let known = (0..).zip(state.connections.iter()).find(|(_, known)| known.is_of(connection));
            // As above: the numbers of semaphores that are there do not change.
            let same = (0..).zip(state.semaphores.iter()).find(|(_, added)| added.semaphore.is(semaphore));
            let signaller = match same {
                Some((number, _)) => EntrySignaller::Of(number),
                None => EntrySignaller::Own(Mutex::new(Some(semaphore.signaller()?))),
            };
            let connection = match known {
                Some((number, _)) => number,
                None => state.connections.add(|number| {
                    let words = state.words.ptr().add(CONNECTION_WORDS * u64::from(number));
                    ServiceConnection::open(&state.gpu, connection, words)
                })?,
            };
            Ok(SemaphoreEntry { semaphore: semaphore.clone(), handle, connection, signaller })
        })?;
        // One that failed meanwhile may not have seen the new semaphore.
        self.proxy.health().inspect_err(|error| state.abort_semaphores(error))?;
        Ok(SemaphoreId::from_raw(id))
    }

    /// Adds a memory, registered here or a peer's. The service keeps it. Does not block: a peer's memory is mapped when a
    /// [`PortChannel`] is made of it, or at the first put that names it, as [`ProxyService::base_port_channel`] says.
    ///
    /// # Errors
    /// [`Error::TooMany`] beyond 512.
    pub fn add_memory(&self, memory: &RegisteredMemory) -> Result<MemoryId> {
        self.state.memories.add(|_| Ok(memory.clone())).map(MemoryId::from_raw)
    }

    /// The number that the next memory gets, if there is room for `count` of them. Reserves nothing.
    ///
    /// # Errors
    /// [`Error::TooMany`].
    pub fn next_memory_id(&self, count: u32) -> Result<MemoryId> {
        self.state.memories.next(count).map(MemoryId::from_raw)
    }

    /// The semaphore of that number.
    ///
    /// # Errors
    /// [`Error::UnknownId`].
    pub fn semaphore(&self, id: SemaphoreId) -> Result<Semaphore> {
        Ok(self.state.semaphores.find("semaphore", id.raw())?.semaphore.clone())
    }

    /// A channel that names memories with each put.
    ///
    /// The first put to a peer's memory that is not mapped yet maps it, on the proxy's thread. Meanwhile the triggers of all
    /// channels wait, for seconds if the memory's owner does not answer. If it never does, the service fails.
    /// [`ProxyService::port_channel`], with the same connection and memories, maps it beforehand.
    ///
    /// # Errors
    /// [`Error::UnknownId`].
    pub fn base_port_channel(&self, semaphore: SemaphoreId) -> Result<BasePortChannel> {
        BasePortChannel::new(&self.state, semaphore)
    }

    /// A channel between two memories: `dst` is the peer's, `src` one of this process. Maps the peer's memory, which may
    /// block for some seconds the first time. If `src` is not on the service's device, the proxy carries out all puts,
    /// the small ones too.
    ///
    /// # Errors
    /// [`Error::UnknownId`]; [`Error::Core`] for memories of the wrong side, or not registered for the connection's
    /// transport; errors of mapping.
    pub fn port_channel(&self, semaphore: SemaphoreId, dst: MemoryId, src: MemoryId) -> Result<PortChannel> {
        PortChannel::new(&self.state, semaphore, dst, src)
    }

    /// Starts the proxy's thread: see [`Proxy::start`].
    ///
    /// # Errors
    /// As there.
    pub fn start_proxy(&self, blocking: bool) -> Result<()> {
        self.proxy.start(blocking)
    }

    /// Carries out everything that was pushed before the call, and ends the thread: see [`Proxy::stop`]. A stop that takes long
    /// is logged, with the peers for which it waits.
    ///
    /// # Errors
    /// As [`ProxyService::health`]; [`Error::Timeout`] if something did not become complete within 30 s.
    pub fn stop_proxy(&self) -> Result<()> {
        self.proxy.stop_saying(|| self.state.stats(None).pending())?;
        self.health()
    }

    /// Whether the proxy's thread runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.proxy.is_running()
    }

    /// Whether the service and its semaphores still work. Does not block.
    ///
    /// # Errors
    /// What the service or one of its semaphores failed with: a lost peer, an abort, or an offset, size or id of a kernel that
    /// does not fit into a trigger. Peers that have closed their side are no failure.
    pub fn health(&self) -> Result<()> {
        self.state.failure().map_or(Ok(()), Err)
    }

    /// Ends the service for good: waits and flushes of kernels on its semaphores return false, and the thread ends. Does not
    /// block.
    pub fn abort(&self, reason: &str) {
        self.proxy.abort(reason);
        self.state.abort_semaphores(&Error::Aborted { reason: reason.to_owned() });
    }
}

impl BaseProxyService for ProxyService {
    fn start_proxy(&self, blocking: bool) -> Result<()> {
        Self::start_proxy(self, blocking)
    }

    fn stop_proxy(&self) -> Result<()> {
        Self::stop_proxy(self)
    }
}

impl fmt::Debug for ProxyService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyService").field("proxy", &self.proxy).finish_non_exhaustive()
    }
}
