//! The traits that a transport implements. A new provider needs no change in this crate: see
//! [`Transport::custom`](crate::Transport::custom).
//!
//! The book's page "Writing a transport" (`docs/src/writing-a-transport.md`) leads through a whole provider. This
//! page is the contract in short.
//!
//! # What a provider may rely on
//! 1. Ranges were checked against the sizes of both memories before a [`Queue`] is given an [`Operation`].
//! 2. `connect` gets endpoints whose transports [pair](TransportProvider::pairs_with); the local one was opened by
//!    the same provider, and GPUs at both ends are of one platform.
//! 3. The bytes in [`EndpointInfo::blob`] and [`RegionInfo::blob`] were made by the peer's provider or made up by
//!    somebody else: parse them as hostile.
//!
//! # What a provider promises
//! 1. Operations of one [`Queue`] take effect in the order in which they were given: whoever sees the value of an
//!    [`Operation::Update`] sees the data of every earlier [`Operation::Write`] of that queue. Of two writes to the
//!    same bytes with no update or flush between them, a transport may leave either, if its documentation says so.
//! 2. Nothing blocks but `connect`, `import` and `open_queue`, and those have a limit. Operations that a queue has
//!    taken are carried out even if nobody calls [`Queue::progress`].
//! 3. When the peer goes, the link's [`LinkMonitor`] is notified within 5 seconds, and calls in flight fail.
//! 4. The reason given to [`Link::tell_failure`] reaches the peer's [`LinkMonitor`], if the peer is connected to this
//!    side.

mod regions;
mod routes;

pub use regions::{Registration, RemoteRegion};
pub use routes::Routes;

use std::{any::Any, sync::Arc};

use mscclpp_gpu::{DevicePtr, Gpu};

use crate::{
    EndpointConfig, EndpointInfo, Error, LinkMonitor, MemoryRegion, RegionInfo, Result, Transport,
    TransportFlags,
};

/// A transport, or a family of them.
pub trait TransportProvider: Send + Sync {
    /// The transports that the provider serves in this process now.
    fn transports(&self) -> TransportFlags;

    /// Returns the reason why the provider does not serve `transport` in this process now, if that is one of its own:
    /// the thing that is missing, and the remedy. The reason becomes part of the error that a user gets.
    fn why_not(&self, transport: Transport) -> Option<String> {
        let _ = transport;
        None
    }

    /// Returns the transport of this provider that serves `gpu` best, such as the nearest adapter, if it has several.
    /// By default, none is better than others.
    fn nearest(&self, gpu: &Gpu) -> Option<Transport> {
        let _ = gpu;
        None
    }

    /// Whether an endpoint of `local`, which this provider serves, can be connected with one of `remote`. By default,
    /// they must be the same.
    fn pairs_with(&self, local: Transport, remote: Transport) -> bool {
        local == remote
    }

    /// Allocates memory of the provider's own for tokens of `gpu`, if a link asks for it ([`TokenMemory::Own`]):
    /// `len` bytes, which many semaphores over `transport` share, and which are then registered like any region. The
    /// default has none.
    ///
    /// # Errors
    /// Fails if the memory cannot be allocated.
    fn own_tokens(&self, transport: Transport, gpu: &Gpu, len: u64) -> Result<OwnTokens> {
        let _ = (gpu, len);
        Err(Error::InvalidArgument(format!(
            "a link over {transport} wants tokens in memory of its provider, which makes none (own_tokens)"
        )))
    }

    /// Opens this side's end. `gpu` is the device of the configuration, `None` for a CPU.
    ///
    /// # Errors
    /// The reason why it cannot be opened, in words that a user can act on.
    fn open_endpoint(&self, config: &EndpointConfig, gpu: Option<&Gpu>) -> Result<Arc<dyn LocalEndpoint>>;

    /// Makes `region` reachable for peers over `transport`, until the registration is dropped.
    ///
    /// # Errors
    /// [`Error::Gpu`] for memory that cannot be shared this way, or the provider's own error.
    fn register(&self, transport: Transport, region: &Arc<MemoryRegion>) -> Result<Arc<dyn Registration>>;

    /// Makes the source that a queue needs to write from `region` over `transport`, for a region that is registered
    /// for no transport. Such memory is for local use, and no peer may reach it. The default, `None`, means that
    /// memory must be registered even to be read from, as with adapters. Called once for each memory.
    ///
    /// # Errors
    /// Fails if the memory cannot be read.
    fn local_source(
        &self,
        transport: Transport,
        region: &Arc<MemoryRegion>,
    ) -> Result<Option<Arc<dyn Registration>>> {
        let _ = (transport, region);
        Ok(None)
    }

    /// Makes a peer's region usable here, from `gpu` if one is given. Blocks until the peer answers, with a bound.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::PeerLost`],
    /// [`Error::Timeout`], or the provider's own error.
    fn import(&self, region: &RegionInfo, gpu: Option<&Gpu>) -> Result<Arc<dyn RemoteRegion>>;

    /// Whether a region that is imported over `transport` may have an address here ([`RemoteRegion::ptr`]). The
    /// default is true. If it is false, nothing is imported just to find out
    /// ([`Context::map_memory`](crate::Context::map_memory)).
    fn maps_memory(&self, transport: Transport) -> bool {
        let _ = transport;
        true
    }

    /// Connects an endpoint of this provider with a peer's. Blocks until the peer answers, with a bound.
    ///
    /// # Errors
    /// The same as [`TransportProvider::import`].
    fn connect(&self, ends: Ends<'_>, monitor: LinkMonitor) -> Result<Arc<dyn Link>>;
}

/// Memory for inbound tokens: see [`Link::token_memory`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TokenMemory {
    /// Memory of the device whose kernels wait.
    Device,
    /// Pinned host memory that the device reaches.
    PinnedHost,
    /// The provider's own ([`TransportProvider::own_tokens`]).
    Own,
}

/// Memory of a provider's own for tokens.
pub struct OwnTokens {
    pub(crate) ptr: DevicePtr,
    pub(crate) gpu: Option<Gpu>,
    pub(crate) owner: Arc<dyn Any + Send + Sync>,
}

impl OwnTokens {
    /// Memory at `ptr`, of the device `gpu`, or of the host.
    ///
    /// # Safety
    /// At `ptr`, a multiple of 128, are as many bytes as were asked for. They are zero, nobody has references to
    /// them, and they are valid until `owner` is dropped. Kernels of the device for which they were asked load 8
    /// bytes at once from there, and so does the host if `gpu` is `None`.
    #[must_use]
    pub unsafe fn new(ptr: DevicePtr, gpu: Option<Gpu>, owner: Arc<dyn Any + Send + Sync>) -> Self {
        Self { ptr, gpu, owner }
    }
}

mscclpp_os::debug_fields!(OwnTokens, |this| ptr: this.ptr, ..);

/// This side's end of connections to come. Closed when dropped.
pub trait LocalEndpoint: Send + Sync + Any {
    /// The bytes that the peer's provider needs to connect, at most a few KiB. Nothing else of the configuration is
    /// sent.
    fn blob(&self) -> &[u8];
}

/// A live connection of a transport, from this side's view. Closed when dropped.
pub trait Link: Send + Sync + Any {
    /// Opens a queue for operations to the peer. May block as [`TransportProvider::connect`] does.
    ///
    /// The link outlives its queues.
    ///
    /// # Errors
    /// [`Error::PeerLost`], or the provider's own error.
    fn open_queue(&self) -> Result<Box<dyn Queue>>;

    /// The memory in which the tokens are that the peer raises over this link and kernels of this side's GPU poll. It
    /// decides how fast a signal is seen, and how a token is kept from overtaking its data. Called for each
    /// semaphore, and returns the same each time. The default is device memory. Endpoints on a CPU use host memory,
    /// without a call.
    ///
    /// # Errors
    /// Fails if there is no memory in which a token is seen only after the data sent before it.
    fn token_memory(&self) -> Result<TokenMemory> {
        Ok(TokenMemory::Device)
    }

    /// Carries out operations that have come for this side and wait for a thread of the transport, such as storing
    /// tokens. A host thread calls it again and again while it waits for a signal over this link, so that it need not
    /// wait for that other thread to wake up. Does not block. Returns whether something had come; the caller then
    /// looks at its token at once. Most transports have nothing to do here.
    fn progress_inbound(&self) -> bool {
        false
    }

    /// Tells the peer that this side has failed, so that nobody there waits for signals that will not come: the
    /// monitor of the peer's link to this side's endpoint is notified, by [`LinkMonitor::peer_failed`]. `reason` has
    /// at most [`LinkMonitor::MAX_REASON`] bytes. Does not block, and this side goes on. A peer that has no link to
    /// this side is not notified.
    ///
    /// The default sends nothing; then waits of the peer end by their own limits.
    fn tell_failure(&self, reason: &str) {
        let _ = reason;
    }
}

/// The number of a pair of memories in a [`Queue`]. The core counts them up from 0, so that they can be indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteId(u32);

impl RouteId {
    /// Makes a number. The core numbers the routes; a provider makes numbers only for tests of its queue.
    ///
    /// ```
    /// # use mscclpp_core::provider::RouteId;
    /// assert_eq!(RouteId::new(3).index(), 3);
    /// ```
    #[must_use]
    pub const fn new(number: usize) -> Self {
        Self(number as u32)
    }

    /// Returns the number as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// An operation that a [`Queue`] carries out. Plain data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Copy `len` bytes. The source does not change until a later flush is reached.
    Write {
        /// The two memories.
        route: RouteId,
        /// The offset in the peer's memory.
        dst_offset: u64,
        /// The offset in the local memory.
        src_offset: u64,
        /// The number of bytes; may be 0.
        len: u64,
    },
    /// Store 8 bytes, visible only after all earlier operations of this queue.
    Update {
        /// The peer's memory; the local one, if there is one, is not used.
        route: RouteId,
        /// The offset in that memory, a multiple of 8.
        offset: u64,
        /// The value to store.
        value: u64,
        /// The value before this, if it is known. It is known for tokens: the peer's link has chosen their memory
        /// ([`Link::token_memory`]), only this side changes them, and they only grow. So a transport may add the
        /// difference instead of storing `value`.
        previous: Option<u64>,
    },
    /// Store `value` in 8 bytes of local device memory once all earlier operations are complete at the peer, so that
    /// kernels learn of it without the host. Only given if [`Queue::stores_completions`] is true.
    Complete {
        /// The word's address, a multiple of 8.
        word: DevicePtr,
        /// The value to store.
        value: u64,
    },
    /// Let [`Queue::progress`] return `ticket` once all earlier operations are complete at the peer.
    Flush {
        /// The flush's number: one more than that of the flush before.
        ticket: u64,
    },
}

/// Operations on their way to the peer, in the order in which they were given. Operations of different queues of a
/// link are not ordered among each other.
///
/// A queue has one owner at a time: the thread of a proxy, or under a lock whoever calls the connection. So nothing
/// needs a lock on the path that runs for every operation. Nothing blocks, and in the long run nothing allocates.
/// Operations that were given before a queue is dropped are carried out or fail; meanwhile the transport keeps the
/// memories.
pub trait Queue: Send {
    /// Learns which memories `route` stands for from now on. Look up and downcast the memories ([`Memories::own`])
    /// here, once.
    ///
    /// The queue keeps the memories until the route is released. Of the source it keeps the [`MemoryRegion`] and not
    /// the registration, so that the owner can still withdraw the registration.
    ///
    /// # Errors
    /// The provider's own error: for memory of another provider, or, if there is no source, for memory on which it
    /// cannot carry out an [`Operation::Update`], such as one that is not aligned.
    fn prepare(&mut self, route: RouteId, memories: Memories<'_>) -> Result<()>;

    /// Ends the use of `route`: nothing more will be given for it, and its number may be used for other memories.
    /// Operations that were given before are still carried out.
    fn release(&mut self, route: RouteId);

    /// Takes as many of the operations as there is room for, from the first on, and returns how many. Fewer than were
    /// given means that the queue is full. That is no failure: the rest is given again later. A queue that has
    /// nothing under way takes at least one. Operations that were taken are carried out, also if nobody calls
    /// [`Queue::progress`].
    ///
    /// # Errors
    /// [`Error::PeerLost`], or the provider's own error. The error is about the first operation, and nothing was
    /// taken. If a later operation cannot be started, those before it are taken.
    ///
    /// # Safety
    /// Routes are prepared, and writes are given only along routes with a source; ranges are inside the memories of
    /// their routes; [`Operation::Complete`] is only given if [`Queue::stores_completions`] is true, and its word is
    /// aligned, and valid until the store is done.
    unsafe fn submit(&mut self, batch: &[Operation]) -> Result<usize>;

    /// Whether the queue can carry out [`Operation::Complete`].
    fn stores_completions(&self) -> bool {
        false
    }

    /// Returns the highest ticket whose earlier operations are all complete at the peer; 0 before the first. Returns
    /// at once, and is called again and again while somebody waits for a flush or for room. May drive the transport,
    /// if it can be driven faster this way.
    ///
    /// # Errors
    /// [`Error::PeerLost`], or the provider's own error, once a ticket can never be reached: this ends the waiting.
    fn progress(&mut self) -> Result<u64>;
}

/// An endpoint or a memory belongs to another provider than the one that it was passed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} belongs to another transport provider")]
pub struct Foreign(pub &'static str);

/// The two endpoints that [`TransportProvider::connect`] joins.
#[derive(Clone, Copy)]
pub struct Ends<'a> {
    /// An endpoint that the provider has opened.
    pub local: &'a Arc<dyn LocalEndpoint>,
    /// The peer's endpoint, which may be of any provider.
    pub remote: &'a EndpointInfo,
}

impl<'a> Ends<'a> {
    /// Returns the local endpoint as the provider's own type.
    ///
    /// # Errors
    /// [`Foreign`] if another provider made it.
    pub fn own<E: Any>(&self) -> Result<&'a E, Foreign> {
        own(&**self.local, "the local endpoint")
    }
}

/// The memories of a route: see [`Queue::prepare`].
#[derive(Clone, Copy)]
pub struct Memories<'a> {
    /// The peer's memory.
    pub dst: &'a Arc<dyn RemoteRegion>,
    /// The memory to write from; `None` for updates.
    pub src: Option<&'a Arc<dyn Registration>>,
}

impl<'a> Memories<'a> {
    /// Returns both memories as the provider's own types.
    ///
    /// # Errors
    /// [`Foreign`] if another provider made one of them.
    pub fn own<D: Any, S: Any>(&self) -> Result<(&'a D, Option<&'a S>), Foreign> {
        let src = self.src.map(|src| own(&**src, "the source")).transpose()?;
        Ok((own(&**self.dst, "the destination")?, src))
    }
}

fn own<'a, T: Any>(object: &'a dyn Any, what: &'static str) -> Result<&'a T, Foreign> {
    object.downcast_ref().ok_or(Foreign(what))
}
