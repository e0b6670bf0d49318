use std::{
    fmt,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use mscclpp_gpu::{DevicePtr, Gpu, fork::OfProcess};
use mscclpp_net::waiting::LongWait;
use parking_lot::Mutex;

use crate::{
    Context, Device, Endpoint, EndpointInfo, Error, LinkMonitor, RegisteredMemory, Result, SendQueue,
    Transport,
    patience::Patience,
    provider::{Link, Operation, Queue, Registration, RemoteRegion, RouteId, TokenMemory, TransportProvider},
    retired::Retired,
};

/// A live link from an endpoint of this process to a peer's. Cheap to clone. It is closed when the last clone, and the last
/// semaphore or channel over it, is dropped.
///
/// Its methods may be called from any thread. Operations take effect at the peer in the order of the calls. A [`SendQueue`] of
/// the connection has an order of its own.
#[derive(Clone)]
pub struct Connection {
    inner: OfProcess<Arc<Inner>>,
}

struct Inner {
    // The order of the fields is that of closing: the queue before its link, the link before its endpoint.
    /// For the operations of the connection itself, opened with the first.
    queue: Mutex<Option<OwnQueue>>,
    retired: Arc<Retired>,
    link: Arc<dyn Link>,
    provider: Arc<dyn TransportProvider>,
    local: Endpoint,
    remote: Arc<EndpointInfo>,
    monitor: LinkMonitor,
    context: Context,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Nobody is left who could wait for them.
        self.retired.clear();
    }
}

/// The queue of a connection itself.
struct OwnQueue {
    queue: Box<dyn Queue>,
    /// The last ticket, and whether anything came behind it.
    ticket: u64,
    is_flushed: bool,
}

/// How long an operation waits for room.
pub(crate) const ROOM_TIMEOUT: Duration = Duration::from_secs(30);

impl Connection {
    pub(crate) fn establish(
        context: Context,
        provider: Arc<dyn TransportProvider>,
        local: Endpoint,
        remote: Arc<EndpointInfo>,
    ) -> Result<Self> {
        let Some(parts) = local.as_local() else {
            return Err(Error::InvalidArgument(format!(
                "the local endpoint ({}) was made by a peer; give one of this process first, the peer's second",
                local.info()
            )));
        };
        parts.check_platform(&remote)?;
        let monitor = LinkMonitor::new(format!("the peer at {remote}"));
        let link = provider
            .connect(&parts.endpoint, &remote, monitor.clone())
            .map_err(|error| error.naming(&monitor.label()))?;
        tracing::debug!(
            target: "mscclpp::conn", local = %local.info(), remote = %remote, transport = %local.transport(),
            "connected"
        );
        let (queue, retired) = (Mutex::default(), Retired::new(monitor.clone(), parts.gpu.clone()));
        let inner = Inner { queue, retired, link, provider, local, remote, monitor, context };
        Ok(Self { inner: OfProcess::new(Arc::new(inner)) })
    }

    /// Starts copying `size` bytes from `src` (registered here, for this transport or for local use) to `dst` (the peer's).
    /// Returns at once, unless the transport is full: then it waits for room, 30 s at most.
    ///
    /// The contents of `src` must not change until [`Connection::flush`] returns.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], [`Error::NotRegistered`], [`Error::InvalidArgument`] for a memory of the wrong process;
    /// [`Error::PeerLost`] and the like once the connection has failed; [`Error::Timeout`] if the transport stays full;
    /// errors of mapping `dst` for the first time, which may block for some seconds.
    pub fn write(
        &self,
        dst: &RegisteredMemory,
        dst_offset: u64,
        src: &RegisteredMemory,
        src_offset: u64,
        size: u64,
    ) -> Result<()> {
        self.write_timeout(dst, dst_offset, src, src_offset, size, ROOM_TIMEOUT)
    }

    /// As [`Connection::write`], waiting for room for at most `timeout`.
    ///
    /// # Errors
    /// As there. On [`Error::Timeout`] nothing was started, and the call can be repeated.
    pub fn write_timeout(
        &self,
        dst: &RegisteredMemory,
        dst_offset: u64,
        src: &RegisteredMemory,
        src_offset: u64,
        size: u64,
        timeout: Duration,
    ) -> Result<()> {
        Error::bounds("write: destination", dst_offset, size, dst.size())?;
        Error::bounds("write: source", src_offset, size, src.size())?;
        let registration = self.source(src)?;
        let region = self.map("the destination", dst)?;
        let write = |route| Operation::Write { route, dst_offset, src_offset, len: size };
        // SAFETY: the ranges are inside both memories.
        unsafe { self.start(timeout, &region, Some(&registration), write) }
    }

    /// Stores `new_value` in the 8 bytes at `dst_offset` of the peer's `dst` and in `src`, the sender's copy of it.
    ///
    /// The peer sees the value only after the data of every earlier [`Connection::write`] of this connection. Blocks as
    /// [`Connection::write`] does.
    ///
    /// # Errors
    /// As [`Connection::write`]; [`Error::InvalidArgument`] if `dst_offset` is no multiple of 8.
    pub fn update_and_sync(
        &self,
        dst: &RegisteredMemory,
        dst_offset: u64,
        src: &mut u64,
        new_value: u64,
    ) -> Result<()> {
        self.update_and_sync_timeout(dst, dst_offset, src, new_value, ROOM_TIMEOUT)
    }

    /// As [`Connection::update_and_sync`], waiting for room for at most `timeout`.
    ///
    /// # Errors
    /// As there. On [`Error::Timeout`] nothing was started, and the call can be repeated.
    pub fn update_and_sync_timeout(
        &self,
        dst: &RegisteredMemory,
        dst_offset: u64,
        src: &mut u64,
        new_value: u64,
        timeout: Duration,
    ) -> Result<()> {
        Error::bounds("update_and_sync", dst_offset, 8, dst.size())?;
        if !dst_offset.is_multiple_of(8) {
            return Err(Error::InvalidArgument(format!(
                "update_and_sync: offset {dst_offset} is no multiple of 8 bytes"
            )));
        }
        let region = self.map("the destination", dst)?;
        let update =
            |route| Operation::Update { route, offset: dst_offset, value: new_value, previous: None };
        // SAFETY: the word is inside the memory.
        unsafe { self.start(timeout, &region, None, update)? };
        *src = new_value;
        Ok(())
    }

    /// Blocks until every earlier operation of this connection is complete at the peer, for at most `timeout`. A wait of
    /// more than ten seconds is logged.
    ///
    /// # Errors
    /// [`Error::Timeout`]: the call can be repeated; [`Error::PeerLost`] and the like.
    pub fn flush(&self, timeout: Duration) -> Result<()> {
        let (mut asked, mut ticket) = (false, 0);
        let done = self.attempt("flush", timeout, |own| {
            if !asked {
                let Some(for_all) = own.request_flush()? else { return Ok(false) };
                (asked, ticket) = (true, for_all);
            }
            Ok(own.queue.progress()? >= ticket)
        })?;
        match done {
            true => Ok(()),
            false => Err(Error::Timeout {
                operation: format!("flush of the connection to {}", self.label()),
                after: timeout,
            }),
        }
    }

    /// Gives the connection's own queue an operation, along a route between the memories. Waits for room, for `timeout` at
    /// most.
    ///
    /// # Safety
    /// As [`Queue::submit`]; no [`Operation::Complete`].
    pub(crate) unsafe fn start(
        &self,
        timeout: Duration,
        dst: &Arc<dyn RemoteRegion>,
        src: Option<&Arc<dyn Registration>>,
        operation: impl FnOnce(RouteId) -> Operation,
    ) -> Result<()> {
        // One at a time is prepared, under the lock.
        let route = RouteId::new(0);
        let operation = operation(route);
        let started = self.attempt("room in its queue", timeout, |own| {
            own.queue.prepare(route, dst, src)?;
            // SAFETY: the caller's promise; the route was just prepared.
            let taken = unsafe { own.queue.submit(&[operation]) };
            own.queue.release(route);
            if taken? == 0 {
                own.queue.progress()?;
                return Ok(false);
            }
            own.is_flushed = false;
            Ok(true)
        })?;
        match started {
            true => Ok(()),
            false => Err(Error::Timeout {
                operation: format!("waiting for room in the queue to {}", self.label()),
                after: timeout,
            }),
        }
    }

    /// Tries with the connection's own queue until it works, for at most `timeout` and once at least. Others may use the
    /// queue between the attempts.
    fn attempt(
        &self,
        what: &'static str,
        timeout: Duration,
        mut body: impl FnMut(&mut OwnQueue) -> Result<bool>,
    ) -> Result<bool> {
        self.until(what, timeout, || {
            let mut queue = self.inner.queue.lock();
            let queue = match &mut *queue {
                Some(queue) => queue,
                none => none.insert(OwnQueue { queue: self.link_queue()?, ticket: 0, is_flushed: true }),
            };
            body(queue)
        })
    }

    /// Looks whether `done`, for at most `timeout` and once at least, as long as the connection works.
    fn until(
        &self,
        what: &'static str,
        timeout: Duration,
        mut done: impl FnMut() -> Result<bool>,
    ) -> Result<bool> {
        let (start, mut patience) = (Instant::now(), Patience::default());
        let mut long = LongWait::since(start, self.inner.context.waits_are_logged_after());
        loop {
            self.check()?;
            if done()? {
                return Ok(true);
            }
            let now = Instant::now();
            if now - start >= timeout {
                return Ok(false);
            }
            long.log(now, None, || {
                format!(
                    "{}: {what}, over {}, which gives up after {timeout:?}",
                    self.label(),
                    self.transport()
                )
            });
            patience.wait();
        }
    }

    /// Opens a queue of operations with an order and a flush of its own, for one owner, such as the thread of a proxy. May
    /// block for some seconds.
    ///
    /// # Errors
    /// [`Error::PeerLost`] and the like, or the provider's own.
    pub fn open_queue(&self) -> Result<SendQueue> {
        self.check()?;
        Ok(SendQueue::new(self.clone(), self.link_queue()?))
    }

    /// Goes on with a queue that has been dropped; its number, for [`Connection::await_retired`].
    pub(crate) fn retire(&self, queue: Box<dyn Queue>, ticket: u64) -> u64 {
        self.inner.retired.add(queue, self.inner.link.clone(), ticket)
    }

    /// Waits until all that a retired queue was given has landed, for at most `timeout`.
    pub(crate) fn await_retired(&self, number: u64, timeout: Duration) -> Result<()> {
        let what = "what a queue was given that has been dropped";
        match self.until(what, timeout, || Ok(self.inner.retired.has_landed(number)))? {
            // A failure counts as landed too, and may have come since it was looked for.
            true => self.check(),
            false => Err(Error::Timeout {
                operation: format!(
                    "waiting until {} has what a queue was given that has been dropped, which a signal must not overtake",
                    self.label()
                ),
                after: timeout,
            }),
        }
    }

    /// The calling thread waits for something of the peer.
    pub(crate) fn progress_inbound(&self) -> bool {
        self.inner.link.progress_inbound()
    }

    fn link_queue(&self) -> Result<Box<dyn Queue>> {
        self.inner.link.open_queue().map_err(|error| error.naming(&self.label()))
    }

    /// The address at which device code of this side reaches `memory` of the peer; none over a transport that does not map
    /// memory.
    ///
    /// Maps it the first time, which may block for some seconds. The address is valid as long as `memory` or a clone of
    /// it is kept; what the owner frees meanwhile stays mapped.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], [`Error::NotRegistered`]; errors of mapping; [`Error::PeerLost`] and the like.
    pub fn peer_ptr(&self, memory: &RegisteredMemory) -> Result<Option<DevicePtr>> {
        self.check()?;
        Ok(self.map("the memory", memory)?.ptr())
    }

    /// Whether it still works.
    ///
    /// # Errors
    /// What it failed with, such as that the peer's process is gone, or that the peer closed its side. In a forked child of
    /// the process that made it, that it is one.
    pub fn check(&self) -> Result<()> {
        self.inner.here()?.monitor.check()
    }

    /// Makes it fail: every call on it fails with `error` from now on, and device waits on its semaphores return false. Does
    /// nothing if it has failed already. Does not block. The peer is not told the reason ([`Connection::tell_failure`] does
    /// that). Over Ethernet it sees within seconds that this side has given up, and its end fails too.
    pub fn fail(&self, error: Error) {
        // A forked child has nobody to tell.
        if self.inner.is_here() {
            self.inner.monitor.fail(error);
        }
    }

    /// Tells the peer that this side has failed: its end of the connection fails with [`Error::PeerFailed`], and so all waits of
    /// its kernels over it end. `reason` says what failed and why, as in `proxy: offset 4000 is past the end`; what is
    /// longer than [`LinkMonitor::MAX_REASON`] bytes is cut. This side's end goes on. Does nothing if that has failed
    /// already. Does not block.
    pub fn tell_failure(&self, reason: &str) {
        let mut end = reason.len().min(LinkMonitor::MAX_REASON);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        if self.check().is_ok() {
            self.inner.link.tell_failure(&reason[..end]);
        }
    }

    /// A reference that does not keep it open.
    #[must_use]
    pub fn downgrade(&self) -> WeakConnection {
        WeakConnection { inner: self.inner.beside(Arc::downgrade(&self.inner)) }
    }

    /// This side's transport.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.inner.local.transport()
    }

    /// The peer's transport: the same as this side's, or a different one of its family, such as a different InfiniBand device.
    #[must_use]
    pub fn remote_transport(&self) -> Transport {
        // What came from the peer has no name.
        let (local, remote) = (self.transport(), self.inner.remote.transport);
        if local == remote { local } else { remote }
    }

    /// The context that made it.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// This side's device.
    #[must_use]
    pub fn local_device(&self) -> Device {
        self.inner.local.device()
    }

    /// How many operations may wait to be sent, if the local endpoint's configuration says that; none for the transport's own
    /// limit.
    #[must_use]
    pub fn max_write_queue_size(&self) -> Option<u32> {
        self.inner.local.max_write_queue_size()
    }

    /// What errors and logs call the peer; a communicator sets it to `rank N`.
    #[must_use]
    pub fn label(&self) -> String {
        self.inner.monitor.label()
    }

    /// Sets [`Connection::label`].
    pub fn set_label(&self, label: impl Into<String>) {
        self.inner.monitor.set_label(label.into());
    }

    /// Whether it was made in this process, which is no fork of that one.
    pub(crate) fn is_here(&self) -> bool {
        self.inner.is_here()
    }

    /// Whether the other is a clone of this.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    pub(crate) fn monitor(&self) -> &LinkMonitor {
        &self.inner.monitor
    }

    /// Whether both ends are on one device of one host.
    #[must_use]
    pub fn is_within_a_device(&self) -> bool {
        let (local, remote) = (self.inner.local.info(), &self.inner.remote);
        let device = |info: &EndpointInfo| (info.device.kind, info.device_uuid);
        local.host == remote.host && device(local) == device(remote)
    }

    pub(crate) fn local_endpoint(&self) -> &Endpoint {
        &self.inner.local
    }

    pub(crate) fn remote_endpoint(&self) -> &EndpointInfo {
        &self.inner.remote
    }

    pub(crate) fn local_gpu(&self) -> Option<&Gpu> {
        self.inner.local.as_local().and_then(|local| local.gpu.as_ref())
    }

    /// On which GPU, and in which memory of it, tokens of this side are; none for a CPU.
    pub(crate) fn token_place(&self) -> Result<Option<(&Gpu, TokenMemory)>> {
        self.local_gpu().map(|gpu| Ok((gpu, self.inner.link.token_memory()?))).transpose()
    }

    /// What writes of this connection from `src` are made with.
    pub(crate) fn source(&self, src: &RegisteredMemory) -> Result<Arc<dyn Registration>> {
        self.inner.here()?;
        let transport = self.transport();
        src.source("the source", transport, |region| self.inner.provider.local_source(transport, region))
    }

    /// The peer's memory, as this side of the connection reaches it; made at the first use.
    pub(crate) fn map(&self, what: &'static str, memory: &RegisteredMemory) -> Result<Arc<dyn RemoteRegion>> {
        if memory.process() != self.inner.here()?.remote.process {
            return Err(Error::InvalidArgument(format!(
                "{what} is no memory of the process at the other end of this connection ({})",
                self.label()
            )));
        }
        let gpu = self.local_gpu();
        memory.imported(what, self.remote_transport(), gpu, |info| {
            tracing::debug!(
                target: "mscclpp::conn", peer = %self.label(), bytes = info.len, transport = %info.transport,
                "importing memory"
            );
            self.inner.provider.import(info, gpu).map_err(|error| error.naming(&self.label()))
        })
    }
}

impl OwnQueue {
    /// The ticket of a flush behind everything; none if there is no room for it now.
    fn request_flush(&mut self) -> Result<Option<u64>> {
        // So that flushes which time out and are repeated do not pile up.
        if !self.is_flushed {
            // SAFETY: a flush has no memory.
            let taken = unsafe { self.queue.submit(&[Operation::Flush { ticket: self.ticket + 1 }])? };
            if taken == 0 {
                self.queue.progress()?;
                return Ok(None);
            }
            self.ticket += 1;
            self.is_flushed = true;
        }
        Ok(Some(self.ticket))
    }
}

/// A reference to a [`Connection`] that does not keep it open.
#[derive(Clone)]
pub struct WeakConnection {
    inner: OfProcess<Weak<Inner>>,
}

impl WeakConnection {
    /// The connection, while it is open.
    #[must_use]
    pub fn upgrade(&self) -> Option<Connection> {
        self.inner.upgrade().map(|inner| Connection { inner: self.inner.beside(inner) })
    }

    /// Whether it is that connection, or a clone of it.
    #[must_use]
    pub fn is(&self, connection: &Connection) -> bool {
        std::ptr::eq(self.inner.as_ptr(), Arc::as_ptr(&connection.inner))
    }

    /// Whether the connection is closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.inner.strong_count() == 0
    }
}

impl fmt::Debug for WeakConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakConnection").field("closed", &self.is_closed()).finish()
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("local", &self.inner.local.info().to_string())
            .field("remote", &self.inner.remote.to_string())
            .field("transport", &self.transport())
            .finish_non_exhaustive()
    }
}
