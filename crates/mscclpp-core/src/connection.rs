use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use mscclpp_gpu::{DevicePtr, Gpu, fork::OfProcess};
use parking_lot::Mutex;

use crate::{
    Context, Device, Endpoint, EndpointInfo, Error, LinkMonitor, RegisteredMemory, Result, Transport,
    provider::{Ends, Link, Queue, Registration, RemoteRegion, TokenMemory, TransportProvider},
    retired::Retired,
};

use self::own_queue::OwnQueue;
pub(crate) use self::own_queue::ROOM_TIMEOUT;

mod operations;
mod own_queue;

/// A live link from an endpoint of this process to a peer's. Cheap to clone. It is closed when the last clone, and the last
/// semaphore or channel over it, is dropped.
///
/// Its methods may be called from any thread. Operations take effect at the peer in the order of the calls.
/// Operations of a [`SendQueue`](crate::SendQueue) of the connection are ordered among themselves only.
#[derive(Clone)]
pub struct Connection {
    inner: OfProcess<Arc<ConnectionState>>,
}

struct ConnectionState {
    // Fields are dropped in this order: the queue before its link, the link before its endpoint.
    /// The queue for the connection's own operations, opened with the first of them.
    queue: Mutex<Option<OwnQueue>>,
    retired: Arc<Retired>,
    link: Arc<dyn Link>,
    provider: Arc<dyn TransportProvider>,
    local: Endpoint,
    remote: Arc<EndpointInfo>,
    monitor: LinkMonitor,
    context: Context,
}

impl Drop for ConnectionState {
    fn drop(&mut self) {
        // Nobody is left who could wait for these queues.
        self.retired.clear();
    }
}

impl Context {
    /// Connects an endpoint made here with a peer's endpoint, or with one of this process (another or the same).
    ///
    /// Each side makes its own connection; both endpoints must exist meanwhile. Blocks until the peer's process has
    /// answered, for about 10 seconds at most.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `local` came from a peer; [`Error::TransportMismatch`]; [`Error::Unreachable`]
    /// with the reason (two nodes, two platforms, no peer access, ...); [`Error::PeerLost`], [`Error::Timeout`].
    pub fn connect(&self, local: &Endpoint, remote: &Endpoint) -> Result<Connection> {
        let provider = self.provider(local.transport())?;
        if !provider.pairs_with(local.transport(), remote.transport()) {
            return Err(Error::TransportMismatch { local: local.transport(), remote: remote.transport() });
        }
        let Some(parts) = local.as_local() else {
            return Err(Error::InvalidArgument(format!(
                "the local endpoint ({}) was made by a peer; give one of this process first, the peer's second",
                local.info()
            )));
        };
        let remote = remote.info().clone();
        parts.check_platform(&remote)?;
        let monitor = LinkMonitor::new(format!("the peer at {remote}"));
        let link = provider
            .connect(Ends { local: &parts.endpoint, remote: &remote }, monitor.clone())
            .map_err(|error| error.naming(&monitor.label()))?;
        tracing::debug!(
            target: "mscclpp::conn", local = %local.info(), %remote, transport = %local.transport(), "connected"
        );
        let retired = Retired::new(monitor.clone(), parts.gpu.clone());
        let (queue, local, context) = (Mutex::default(), local.clone(), self.clone());
        let inner = ConnectionState { queue, retired, link, provider, local, remote, monitor, context };
        Ok(Connection { inner: OfProcess::new(Arc::new(inner)) })
    }
}

impl Connection {
    /// Goes on serving a queue that has been dropped, until all it was given has landed. Returns the queue's number,
    /// for [`Connection::await_retired`].
    pub(crate) fn retire(&self, queue: Box<dyn Queue>, ticket: u64) -> u64 {
        self.inner.retired.add(queue, self.inner.link.clone(), ticket)
    }

    /// Blocks until all that a retired queue was given has landed, for at most `timeout`.
    pub(crate) fn await_retired(&self, number: u64, timeout: Duration) -> Result<()> {
        let what = "what a queue was given that has been dropped";
        let waiting =
            || format!("waiting until {} has {what}, which a signal must not overtake", self.label());
        self.until(what, timeout, waiting, || Ok(self.inner.retired.has_landed(number)))?;
        // A failure counts as landed too, and may have come since `until` last checked for one.
        self.check()
    }

    /// Lets the link process inbound data, as the calling thread waits for something from the peer.
    pub(crate) fn progress_inbound(&self) -> bool {
        self.inner.link.progress_inbound()
    }

    pub(crate) fn link_queue(&self) -> Result<Box<dyn Queue>> {
        self.inner.link.open_queue().map_err(|error| error.naming(&self.label()))
    }

    /// Returns the address at which device code of this side reaches `memory` of the peer; `None` over a transport
    /// that does not map memory.
    ///
    /// Maps the memory at the first call, which may block for some seconds. The address is valid as long as `memory`
    /// or a clone of it is kept: memory that its owner frees meanwhile stays mapped.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], [`Error::NotRegistered`]; errors of mapping; [`Error::PeerLost`] and the like.
    pub fn peer_ptr(&self, memory: &RegisteredMemory) -> Result<Option<DevicePtr>> {
        self.check()?;
        Ok(self.map("the memory", memory)?.ptr())
    }

    /// Checks that the connection still works.
    ///
    /// # Errors
    /// The error that the connection failed with, such as that the peer's process is gone, or that the peer closed
    /// its side. In a forked child of the process that made the connection, an error that says so.
    pub fn check(&self) -> Result<()> {
        self.inner.here()?.monitor.check()
    }

    /// Makes the connection fail: every call on it fails with `error` from now on, and device waits on its semaphores
    /// return false. Does nothing if it has failed already. Does not block. The reason is not sent to the peer
    /// ([`Connection::tell_failure`] does that). Over Ethernet the peer sees within seconds that this side has given
    /// up, and its end fails too.
    pub fn fail(&self, error: Error) {
        // A forked child shares no connection with the peer.
        if self.inner.is_here() {
            self.inner.monitor.fail(error);
        }
    }

    /// Tells the peer that this side has failed: the peer's end of the connection fails with [`Error::PeerFailed`],
    /// and so all waits of its kernels over it end. `reason` says what failed and why, as in `proxy: offset 4000 is
    /// past the end`; a reason longer than [`LinkMonitor::MAX_REASON`] bytes is cut. This side's end goes on, if it
    /// has not failed by itself. Does nothing if the peer is gone, if the peer failed first and said so, or if the
    /// job was aborted. Does not block.
    pub fn tell_failure(&self, reason: &str) {
        let mut end = reason.len().min(LinkMonitor::MAX_REASON);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        if self.inner.is_here() && !self.inner.monitor.check().is_err_and(|error| error.is_end_of_peer()) {
            self.inner.link.tell_failure(&reason[..end]);
        }
    }

    /// Returns a reference that does not keep the connection open.
    #[must_use]
    pub fn downgrade(&self) -> WeakConnection {
        WeakConnection { inner: self.inner.beside(Arc::downgrade(&self.inner)) }
    }

    /// This side's transport.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.inner.local.transport()
    }

    /// The peer's transport: the same as this side's, or another one of its family, such as another InfiniBand
    /// device.
    #[must_use]
    pub fn remote_transport(&self) -> Transport {
        // A transport that was read from a peer's bytes has no name, so the local one is returned if they are equal.
        let (local, remote) = (self.transport(), self.inner.remote.transport);
        if local == remote { local } else { remote }
    }

    /// Whether device code of this side may reach memory of the peer by itself over this transport
    /// ([`Connection::peer_ptr`]).
    #[must_use]
    pub fn maps_memory(&self) -> bool {
        self.inner.provider.maps_memory(self.transport())
    }

    /// The context that made the connection.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// This side's device.
    #[must_use]
    pub fn local_device(&self) -> Device {
        self.inner.local.device()
    }

    /// How many operations may wait to be sent, as the local endpoint's configuration says; `None` for the
    /// transport's own limit.
    #[must_use]
    pub fn max_write_queue_size(&self) -> Option<u32> {
        self.inner.local.max_write_queue_size()
    }

    /// The name of the peer in errors and logs; a communicator sets it to `rank N`.
    #[must_use]
    pub fn label(&self) -> String {
        self.inner.monitor.label()
    }

    /// Sets [`Connection::label`].
    pub fn set_label(&self, label: impl Into<String>) {
        self.inner.monitor.set_label(label.into());
    }

    /// Whether the connection was made in this process, and not in a process of which this one is a fork.
    pub(crate) fn is_here(&self) -> bool {
        self.inner.is_here()
    }

    /// Whether `other` is a clone of this connection.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    pub(crate) fn monitor(&self) -> &LinkMonitor {
        &self.inner.monitor
    }

    /// Whether both ends are on the same device of the same node.
    #[must_use]
    pub fn is_within_a_device(&self) -> bool {
        let (local, remote) = (self.inner.local.info(), &self.inner.remote);
        let device = |info: &EndpointInfo| (info.device.kind, info.device_uuid);
        local.host == remote.host && device(local) == device(remote)
    }

    /// The error for device code that needs an address in the peer's memory where the transport maps none.
    pub(crate) fn is_not_mapped(&self) -> Error {
        Error::Unreachable {
            local: self.local_device().to_string(),
            remote: self.label(),
            transport: self.transport(),
            reason: "device code cannot reach the peer's memory over this transport; use a port channel"
                .to_owned(),
        }
    }

    pub(crate) fn local_endpoint(&self) -> &Endpoint {
        &self.inner.local
    }

    pub(crate) fn remote_endpoint(&self) -> &EndpointInfo {
        &self.inner.remote
    }

    /// This side's GPU; `None` for a CPU.
    #[must_use]
    pub fn local_gpu(&self) -> Option<&Gpu> {
        self.inner.local.as_local().and_then(|local| local.gpu.as_ref())
    }

    /// The GPU that tokens of this side are on, and the memory of it that they are in; `None` for a CPU.
    ///
    /// # Errors
    /// Fails if there is no memory in which a token is seen only after the data sent before it.
    pub fn token_place(&self) -> Result<Option<(&Gpu, TokenMemory)>> {
        self.local_gpu().map(|gpu| Ok((gpu, self.inner.link.token_memory()?))).transpose()
    }

    /// The registration that this connection needs to write from `src`.
    pub(crate) fn source(&self, src: &RegisteredMemory) -> Result<Arc<dyn Registration>> {
        self.inner.here()?;
        let transport = self.transport();
        src.source("the source", transport, |region| self.inner.provider.local_source(transport, region))
    }

    /// Imports the peer's memory for this connection, at the first use.
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

/// A reference to a [`Connection`] that does not keep it open.
#[derive(Clone)]
pub struct WeakConnection {
    inner: OfProcess<Weak<ConnectionState>>,
}

impl WeakConnection {
    /// The connection, while it is open.
    #[must_use]
    pub fn upgrade(&self) -> Option<Connection> {
        self.inner.upgrade().map(|inner| Connection { inner: self.inner.beside(inner) })
    }

    /// Whether it refers to `connection` or a clone of it.
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

mscclpp_os::debug_fields!(WeakConnection, |this| closed: this.is_closed());

mscclpp_os::debug_fields!(Connection, |this|
    local: this.inner.local.info().to_string(), remote: this.inner.remote.to_string(), transport: this.transport(), ..
);
