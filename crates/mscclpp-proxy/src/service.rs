//! The service behind port channels.

use std::{sync::Arc, time::Duration};

use mscclpp_core::{HostToDeviceSemaphoreHandle, RegisteredMemory, Semaphore};
use mscclpp_gpu::Gpu;
use parking_lot::Mutex;

use crate::{
    BasePortChannel, Error, IdlePolicy, MemoryId, PortChannel, Proxy, ProxyBuilder, Result, SemaphoreId,
    connection::{CONNECTION_WORDS, ServiceConnection},
    engine::{Engine, OnFailure},
    state::{EntrySignaller, SemaphoreEntry, ServiceState, Serving},
};

/// A service with a proxy that can be started and stopped.
pub trait BaseProxyService: Send + Sync {
    /// Starts the service's thread. With `blocking`, waits until the thread takes triggers.
    ///
    /// # Errors
    /// The error with which the service failed, before or at its start.
    fn start_proxy(&self, blocking: bool) -> Result<()>;

    /// Carries out everything that was pushed before the call, and ends the thread. The service can be started again.
    ///
    /// # Errors
    /// The error with which the service failed.
    fn stop_proxy(&self) -> Result<()>;
}

/// A service that carries out on a host thread what kernels of one device ask for through port channels: it copies
/// data between registered memories and signals semaphores, over any transport.
///
/// Semaphores and memories are added to it and get numbers, which all its channels share. They can be added while the
/// service runs, and stay until it is dropped. All methods may be called from any thread.
///
/// # Order
/// The triggers of all channels go through one FIFO. Those of one connection are carried out in order. Connections do
/// not wait for each other: if the transport of one is full, triggers with up to 1536 operations together are set aside
/// (a put, a signal and a report of completion are one each), and carried out when there is room. If two services share
/// a connection, there is no order between them.
///
/// # Keep it
/// A service serves from [`ProxyService::start_proxy`] until it is stopped or dropped, even if its channels live
/// longer. Keep it as long as kernels use them. After a drop, calls of kernels that need it return false, and the
/// `check` of its channels ([`mscclpp_gpu::Abort`]) says that it was dropped. Small puts and signals that kernels do
/// by themselves go on.
///
/// # When something fails
/// The service stops for good if a trigger cannot be carried out (an unknown number, a range outside its memory, a
/// lost peer), or if the peer of a connection is lost. Waits and flushes of kernels on all its semaphores then return
/// false. [`ProxyService::health`] and [`ProxyService::stop_proxy`] say why, and name the trigger. The process lives
/// on. The peers of all its connections are notified: their ends fail with [`mscclpp_core::Error::PeerFailed`]. After
/// an abort, only peers are notified for whom operations were set aside, when the service is dropped.
///
/// # Memory of 4 GiB and more
/// Offsets and sizes in triggers have 32 bits. Register larger memory in chunks, which get consecutive numbers:
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
    pub(crate) proxy: Proxy<Engine>,
    pub(crate) state: Arc<ServiceState>,
    /// Held while the proxy is started or stopped, so that `state` always knows which was last.
    start_or_stop: Mutex<()>,
}

/// A builder of a [`ProxyService`].
pub struct ProxyServiceBuilder {
    proxy: ProxyBuilder,
    direct_put_max: u32,
    bulk_put_max: Option<u32>,
    on_failure: Option<Box<OnFailure>>,
}

mscclpp_os::debug_fields!(ProxyServiceBuilder, |this| proxy: this.proxy, direct_put_max: this.direct_put_max,
    bulk_put_max: this.bulk_put_max, ..);

impl ProxyServiceBuilder {
    /// Sets the number of triggers that the FIFO holds: a power of two from 2 to 4096, 512 by default. If threads
    /// push more at once, they wait.
    #[must_use]
    pub fn fifo_size(mut self, size: u64) -> Self {
        self.proxy = self.proxy.fifo_size(size);
        self
    }

    /// Sets the largest put, in bytes, that a kernel's thread does itself, word by word, if it reaches the peer's
    /// memory and nothing is pending: 4 KiB by default, 0 for never.
    #[must_use]
    pub fn direct_put_max(mut self, bytes: u32) -> Self {
        self.direct_put_max = bytes;
        self
    }

    /// Sets the largest put, in bytes, that a kernel's thread does itself by bulk copies, in kernels compiled for
    /// compute capability 9.0: 256 KiB by default, 0 for never. If [`Self::direct_put_max`] is 0, there are no such
    /// puts either.
    ///
    /// Such a put returns when the data is at the peer; a put through the proxy returns at once. Up to about the
    /// default size, the direct put takes less time. If a kernel has other work to do meanwhile, a smaller limit may
    /// be better.
    #[must_use]
    pub fn bulk_put_max(mut self, bytes: u32) -> Self {
        self.bulk_put_max = Some(bytes);
        self
    }

    /// Sets how the proxy's thread waits when there are no triggers.
    #[must_use]
    pub fn idle(mut self, policy: IdlePolicy) -> Self {
        self.proxy = self.proxy.idle(policy);
        self
    }

    /// Sets when a waiting start or stop is first logged: see [`ProxyBuilder::log_waits_after`].
    #[must_use]
    pub fn log_waits_after(mut self, first: Duration) -> Self {
        self.proxy = self.proxy.log_waits_after(first);
        self
    }

    /// Sets a function that the proxy's thread calls at each start, before the first trigger.
    #[must_use]
    pub fn thread_init(mut self, init: impl Fn() + Send + Sync + 'static) -> Self {
        self.proxy = self.proxy.thread_init(init);
        self
    }

    /// Sets a function that is called once, with the error, when the service fails or is aborted: at once, on the
    /// thread that finds the failure, usually the proxy's. By then the waits of kernels on the service's semaphores
    /// end, and its peers are notified. It serves programs whose kernels also wait for others who will not come now.
    /// It must not block.
    ///
    /// ```
    /// # use mscclpp_gpu::Platform;
    /// # use mscclpp_proxy::ProxyService;
    /// # fn main() -> mscclpp_proxy::Result<()> {
    /// let (failed, failures) = std::sync::mpsc::channel();
    /// let tell = move |error: &mscclpp_proxy::Error| drop(failed.send(error.to_string()));
    /// let service = ProxyService::builder(&Platform::Sim.gpu(0)?).on_failure(tell).build()?;
    /// service.abort("enough");
    /// assert!(failures.recv().unwrap().contains("enough"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn on_failure(mut self, call: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        self.on_failure = Some(Box::new(call));
        self
    }

    /// Makes the service, without semaphores and memories, and not started yet.
    ///
    /// # Errors
    /// [`Error::FifoSize`]; [`Error::Gpu`] if memory is short, with a hint to `ulimit -l` if that is the cause.
    pub fn build(self) -> Result<ProxyService> {
        let fifo = self.proxy.fifo()?;
        let failure = Arc::default();
        let by_default = if self.direct_put_max == 0 { 0 } else { ProxyService::DEFAULT_BULK_PUT_MAX };
        let bulk_put_max = self.bulk_put_max.unwrap_or(by_default);
        let state = Arc::new(ServiceState::new(
            self.proxy.gpu.clone(),
            fifo.shared(),
            self.direct_put_max,
            bulk_put_max,
            Arc::clone(&failure),
        )?);
        let engine = Engine::new(state.clone(), self.on_failure);
        let proxy = self.proxy.build_on(fifo, failure, engine);
        Ok(ProxyService { proxy, state, start_or_stop: Mutex::default() })
    }

    /// Makes the service in place of `other`, which was made for another device: with the memories of `other` under
    /// the same numbers, and started if `other` runs. It serves programs that make a service before they know for
    /// which device. `other` stays as it is.
    ///
    /// # Errors
    /// The same as [`Self::build`]; [`Error::InvalidArgument`] if `other` has semaphores, which cannot be moved.
    pub fn build_in_place_of(self, other: &ProxyService) -> Result<ProxyService> {
        if other.state.semaphores.get(0).is_some() {
            let problem = "a proxy service that has semaphores stays on its device; make another one";
            return Err(Error::InvalidArgument(problem.to_owned()));
        }
        let service = self.build()?;
        for memory in other.state.memories.iter() {
            service.add_memory(memory)?;
        }
        if other.is_running() {
            service.start_proxy(false)?;
        }
        Ok(service)
    }
}

impl ProxyService {
    /// The largest put, in bytes, that a kernel's thread does itself word by word, by default.
    pub const DEFAULT_DIRECT_PUT_MAX: u32 = 4096;
    /// The largest put, in bytes, that a kernel's thread does itself by bulk copies, by default.
    pub const DEFAULT_BULK_PUT_MAX: u32 = 256 << 10;

    /// Makes a service for kernels of `gpu`, not started yet.
    ///
    /// # Errors
    /// The same as [`ProxyServiceBuilder::build`].
    pub fn new(gpu: &Gpu) -> Result<Self> {
        Self::builder(gpu).build()
    }

    /// Returns a builder of a service for kernels of `gpu`.
    #[must_use]
    pub fn builder(gpu: &Gpu) -> ProxyServiceBuilder {
        ProxyServiceBuilder {
            proxy: Proxy::builder(gpu),
            direct_put_max: Self::DEFAULT_DIRECT_PUT_MAX,
            bulk_put_max: None,
            on_failure: None,
        }
    }

    /// Adds a semaphore. The local endpoint of its connection must be on the service's device. As long as the service
    /// lives, only its proxy signals over the link:
    /// [`HostToDeviceSemaphore::signal`](mscclpp_core::HostToDeviceSemaphore::signal) is an error. Device handles of
    /// all kinds work. A semaphore that is added again gets a second number, and its channels share its tokens.
    ///
    /// The first semaphore of a connection opens a queue, which may block for some seconds. Waits as
    /// [`Semaphore::signaller`] does.
    ///
    /// # Errors
    /// [`Error::TooMany`] beyond 1024 semaphores; [`Error::InvalidArgument`] for another device; [`Error::Core`] if
    /// another service has it, or if the connection has failed; the error with which the service failed.
    pub fn add_semaphore(&self, semaphore: &Semaphore) -> Result<SemaphoreId> {
        self.proxy.health()?;
        let (state, connection) = (&self.state, semaphore.connection());
        let handle = HostToDeviceSemaphoreHandle::of(semaphore)?;
        state.check_device(connection)?;
        let id = state.semaphores.add(|_| {
            // Connections are only added under the lock that this runs under.
            let known =
                (0..).zip(state.connections.iter()).find(|(_, known)| known.connection.is(connection));
            // The same holds here: the numbers of semaphores that were added do not change.
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
        // A failure that came meanwhile may have missed the new semaphore.
        self.proxy.health().inspect_err(|error| state.abort_semaphores(error))?;
        Ok(SemaphoreId::from_raw(id))
    }

    /// Adds a memory, registered here or by a peer. The service keeps it. Does not block: a peer's memory is mapped
    /// when a [`PortChannel`] is made of it, or at the first put that names it, as [`ProxyService::base_port_channel`]
    /// says.
    ///
    /// # Errors
    /// [`Error::TooMany`] beyond 512 memories.
    pub fn add_memory(&self, memory: &RegisteredMemory) -> Result<MemoryId> {
        self.proxy.here()?;
        self.state.memories.add(|_| Ok(memory.clone())).map(MemoryId::from_raw)
    }

    /// The number that the next memory will get, if there is room for `count` more. Reserves nothing.
    ///
    /// # Errors
    /// [`Error::TooMany`] if there is no such room.
    pub fn next_memory_id(&self, count: u32) -> Result<MemoryId> {
        self.proxy.here()?;
        self.state.memories.next(count).map(MemoryId::from_raw)
    }

    /// Returns the semaphore with this number.
    ///
    /// # Errors
    /// [`Error::UnknownId`] if there is none.
    pub fn semaphore(&self, id: SemaphoreId) -> Result<Semaphore> {
        self.proxy.here()?;
        Ok(self.state.semaphores.find("semaphore", id.raw())?.semaphore.clone())
    }

    /// Makes a channel whose puts each name their memories.
    ///
    /// The first put to a peer's memory that is not mapped yet maps it, on the proxy's thread. Meanwhile the triggers
    /// of all channels wait, for seconds if the memory's owner does not answer. If it never answers, the service fails.
    /// To map it beforehand, call [`ProxyService::port_channel`] with the same connection and memories.
    ///
    /// # Errors
    /// [`Error::UnknownId`] if there is no such semaphore.
    pub fn base_port_channel(&self, semaphore: SemaphoreId) -> Result<BasePortChannel> {
        self.proxy.here()?;
        BasePortChannel::new(&self.state, semaphore, None)
    }

    /// Makes a channel between two memories: `dst` is the peer's, and `src` one of this process. Maps the peer's
    /// memory, which may block for some seconds the first time. If `src` is not on the service's device, the proxy
    /// carries out all puts, even small ones.
    ///
    /// # Errors
    /// [`Error::UnknownId`]; [`Error::Core`] if a memory is of the wrong side, or not registered for the connection's
    /// transport; errors of mapping.
    pub fn port_channel(&self, semaphore: SemaphoreId, dst: MemoryId, src: MemoryId) -> Result<PortChannel> {
        self.proxy.here()?;
        PortChannel::new(&self.state, semaphore, dst, src)
    }

    /// Starts the proxy's thread, as [`Proxy::start`] does.
    ///
    /// # Errors
    /// The same as [`Proxy::start`].
    pub fn start_proxy(&self, blocking: bool) -> Result<()> {
        self.proxy.here()?;
        if self.proxy.is_own_thread() {
            // The thread runs. Whoever holds the lock may wait for it, so the lock is not taken.
            return self.proxy.start(blocking);
        }
        let _lock = self.start_or_stop.lock();
        // This comes first, because the thread may stop by itself at once.
        let before = self.state.set_serving(Serving::Started);
        let started = self.proxy.start(blocking);
        if started.is_err() && !self.proxy.is_running() {
            self.state.set_serving(before);
        }
        started
    }

    /// Carries out everything that was pushed before the call, and ends the thread, as [`Proxy::stop`] does. A stop
    /// that takes long is logged, with the peers for which it waits.
    ///
    /// # Errors
    /// The same as [`ProxyService::health`]; [`Error::Timeout`] if an operation was not complete within 30 seconds.
    pub fn stop_proxy(&self) -> Result<()> {
        self.proxy.here()?;
        let stop = || self.proxy.stop_saying(|| self.state.stats(None).pending());
        if self.proxy.is_own_thread() {
            // The call is refused, and the service goes on.
            return stop();
        }
        let _lock = self.start_or_stop.lock();
        let stopped = stop();
        // The service counts as stopped even if something did not become complete.
        self.state.set_serving(Serving::Stopped);
        stopped?;
        self.health()
    }

    /// Whether the proxy's thread runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.proxy.is_running()
    }

    /// Checks that the service and its semaphores still work. Does not block.
    ///
    /// # Errors
    /// The error with which the service or one of its semaphores failed: a lost peer, an abort, or an offset, size or
    /// id of a kernel that does not fit a trigger. A peer that has closed its side is no failure.
    pub fn health(&self) -> Result<()> {
        self.proxy.here()?;
        self.state.failure().map_or(Ok(()), Err)
    }

    /// Ends the service for good: waits and flushes of kernels on its semaphores return false, and the thread ends.
    /// Does not block.
    pub fn abort(&self, reason: &str) {
        self.proxy.abort(reason);
        self.state.abort_semaphores(&Error::Aborted { reason: reason.to_owned() });
    }
}

impl Drop for ProxyService {
    fn drop(&mut self) {
        // In a forked child nothing is done: another thread of the parent may have held the lock.
        if self.proxy.here().is_err() {
            return;
        }
        // The proxy is dropped next. It carries out what was pushed before; triggers that come later are lost.
        self.state.set_serving(Serving::Dropped);
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

mscclpp_os::debug_fields!(ProxyService, |this| proxy: this.proxy, ..);
