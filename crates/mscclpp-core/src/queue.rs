use std::{fmt, sync::Arc};

use mscclpp_gpu::DevicePtr;

use crate::{
    Connection, Error, RegisteredMemory, Result, Signaller,
    provider::{Queue, Registration, RemoteRegion},
};

/// Operations of one connection for one owner, in the order in which they are given.
///
/// What the thread of a proxy drives: nothing here blocks or takes a lock, and what needs looking up is looked up once
/// ([`SendQueue::route`]). Opened by [`Connection::open_queue`]; keeps the connection. Queues of one connection have no
/// order among each other.
pub struct SendQueue {
    // Closed before the connection.
    queue: Box<dyn Queue>,
    connection: Connection,
}

/// From a memory of this process to one of the peer's, over one connection, ready to be written along any number of
/// times. Keeps both memories.
#[derive(Clone)]
pub struct Route {
    dst: Arc<dyn RemoteRegion>,
    src: Arc<dyn Registration>,
    dst_memory: RegisteredMemory,
    src_memory: RegisteredMemory,
    connection: Connection,
}

impl SendQueue {
    pub(crate) fn new(connection: Connection, queue: Box<dyn Queue>) -> Self {
        Self { queue, connection }
    }

    /// The connection it belongs to.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Prepares writes from `src`, registered here, to the peer's `dst`. Maps `dst` the first time, which may block for
    /// some seconds.
    ///
    /// # Errors
    /// [`Error::NotRegistered`]; [`Error::InvalidArgument`] for a memory of the wrong process; errors of mapping;
    /// [`Error::PeerLost`] and the like.
    pub fn route(&self, dst: &RegisteredMemory, src: &RegisteredMemory) -> Result<Route> {
        Route::new(&self.connection, dst, src)
    }

    /// Starts copying `size` bytes along `route`. Returns at once; the source must keep its contents until a flush.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; [`Error::InvalidArgument`] for a route of another connection; [`Error::PeerLost`] and the
    /// like once the connection has failed.
    pub fn write(&mut self, route: &Route, dst_offset: u64, src_offset: u64, size: u64) -> Result<()> {
        Error::bounds("write: destination", dst_offset, size, route.dst_memory.size())?;
        Error::bounds("write: source", src_offset, size, route.src_memory.size())?;
        if !route.connection.is(&self.connection) {
            return Err(Error::InvalidArgument(format!(
                "the route leads to {}, the queue to {}",
                route.connection.label(),
                self.connection.label()
            )));
        }
        self.connection.check()?;
        self.queue.write(&route.dst, dst_offset, &route.src, src_offset, size)
    }

    /// Signals the peer, after everything this queue was given before.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for the signaller of another connection's semaphore; [`Error::PeerLost`] and the like.
    pub fn signal(&mut self, signaller: &mut Signaller) -> Result<()> {
        self.leads_with(signaller)?;
        signaller.signal(&mut *self.queue)
    }

    /// [`SendQueue::signal`] and [`SendQueue::store_when_complete`], which is faster than one after the other.
    ///
    /// # Errors
    /// As those two.
    ///
    /// # Safety
    /// As [`SendQueue::store_when_complete`].
    pub unsafe fn signal_and_store(
        &mut self,
        signaller: &mut Signaller,
        word: DevicePtr,
        value: u64,
    ) -> Result<()> {
        self.leads_with(signaller)?;
        // SAFETY: the caller's promise.
        unsafe { signaller.signal_and_store(&mut *self.queue, word, value) }
    }

    /// Whether the signaller is of this queue's connection, and that in good health.
    fn leads_with(&self, signaller: &Signaller) -> Result<()> {
        if !signaller.connection().is(&self.connection) {
            return Err(Error::InvalidArgument(format!(
                "the semaphore belongs to the connection to {}, the queue to that to {}",
                signaller.connection().label(),
                self.connection.label()
            )));
        }
        self.connection.check()
    }

    /// Stores `value` in the 8 bytes of local device memory at `word` once everything given so far is complete at the
    /// peer. Kernels may wait for it there.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where [`SendQueue::stores_completions`] is false; [`Error::PeerLost`] and the like.
    ///
    /// # Safety
    /// `word` must be 8-byte aligned, and valid until the store is done.
    pub unsafe fn store_when_complete(&mut self, word: DevicePtr, value: u64) -> Result<()> {
        self.connection.check()?;
        // SAFETY: the caller's promise.
        unsafe { self.queue.store_when_complete(word, value) }
    }

    /// Whether the transport can tell kernels by itself that operations are complete.
    #[must_use]
    pub fn stores_completions(&self) -> bool {
        self.queue.stores_completions()
    }

    /// Asks to be told when everything given so far is complete at the peer: the ticket that [`SendQueue::progress`]
    /// will reach. Tickets never fall.
    ///
    /// # Errors
    /// [`Error::PeerLost`] and the like.
    pub fn request_flush(&mut self) -> Result<u64> {
        self.connection.check()?;
        self.queue.request_flush()
    }

    /// The highest ticket that has been reached. To be called again and again while one is waited for: it drives
    /// transports that need driving.
    ///
    /// # Errors
    /// [`Error::PeerLost`] and the like.
    pub fn progress(&mut self) -> Result<u64> {
        self.connection.check()?;
        self.queue.progress()
    }
}

impl Route {
    /// As [`SendQueue::route`], for whichever queue of the connection.
    ///
    /// # Errors
    /// As there.
    pub fn new(connection: &Connection, dst: &RegisteredMemory, src: &RegisteredMemory) -> Result<Self> {
        connection.check()?;
        Ok(Self {
            src: src.registration("the source", connection.transport())?.clone(),
            dst: connection.map("the destination", dst)?,
            dst_memory: dst.clone(),
            src_memory: src.clone(),
            connection: connection.clone(),
        })
    }

    /// Where kernels of this side reach the destination, if the transport maps it.
    #[must_use]
    pub fn dst_ptr(&self) -> Option<DevicePtr> {
        self.dst.ptr()
    }

    /// Size in bytes of the destination and of the source.
    #[must_use]
    pub fn sizes(&self) -> [u64; 2] {
        [self.dst_memory.size(), self.src_memory.size()]
    }
}

impl fmt::Debug for SendQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendQueue").field("connection", &self.connection).finish_non_exhaustive()
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Route")
            .field("dst", &self.dst_memory)
            .field("src", &self.src_memory)
            .finish_non_exhaustive()
    }
}
