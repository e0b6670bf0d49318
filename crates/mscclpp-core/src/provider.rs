//! What a transport brings. A provider needs no change here: see [`crate::Transport::custom`].
//!
//! # What a provider may rely on
//! 1. Ranges were checked against the sizes of both memories before a [`Queue`] is called.
//! 2. `connect` gets endpoints whose transports [pair](crate::Transport::pairs_with), the local one opened by the same
//!    provider.
//! 3. What comes in [`EndpointInfo::blob`] and [`RegionInfo::blob`] are the bytes that the peer's provider made, or
//!    that somebody else made up: parse them as hostile.
//!
//! # What a provider promises
//! 1. Operations of one [`Queue`] take effect in the order of the calls: whoever sees the value of a [`Queue::update`]
//!    sees the data of every earlier [`Queue::write`] of that queue.
//! 2. Nothing blocks but `connect`, `import` and `open_queue`, and those have a bound.
//! 3. When the peer goes, the link's [`LinkMonitor`] is told, once, within 5 seconds, and calls in flight fail.

use std::{any::Any, sync::Arc};

use mscclpp_gpu::{DevicePtr, Gpu};

use crate::{
    EndpointConfig, EndpointInfo, LinkMonitor, MemoryRegion, RegionInfo, Result, Transport, TransportFlags,
};

/// A transport, or a family of them.
pub trait TransportProvider: Send + Sync {
    /// Which transports it serves here and now.
    fn transports(&self) -> TransportFlags;

    /// Opens this side's end. `gpu` is the device of the configuration, or none for a CPU.
    ///
    /// # Errors
    /// Whatever hinders the endpoint, in words a user can act on.
    fn open_endpoint(&self, config: &EndpointConfig, gpu: Option<&Gpu>) -> Result<Arc<dyn LocalEndpoint>>;

    /// Makes `region` reachable for peers over `transport`, until the registration is dropped.
    ///
    /// # Errors
    /// [`crate::Error::Gpu`] for memory that cannot be shared this way, or the provider's own.
    fn register(&self, transport: Transport, region: &Arc<MemoryRegion>) -> Result<Arc<dyn Registration>>;

    /// Makes a peer's region usable here, from `gpu` if one is given. Blocks while the peer is asked, with a bound.
    ///
    /// # Errors
    /// [`crate::Error::Unreachable`], [`crate::Error::PeerLost`], [`crate::Error::Timeout`], or the provider's own.
    fn import(&self, region: &RegionInfo, gpu: Option<&Gpu>) -> Result<Arc<dyn RemoteRegion>>;

    /// Connects an endpoint of this provider with a peer's. Blocks while the peer answers, with a bound.
    ///
    /// # Errors
    /// As [`TransportProvider::import`].
    fn connect(
        &self,
        local: &Arc<dyn LocalEndpoint>,
        remote: &EndpointInfo,
        monitor: LinkMonitor,
    ) -> Result<Arc<dyn Link>>;
}

/// This side's end of connections to come. Closed when dropped.
pub trait LocalEndpoint: Send + Sync + Any {
    /// What the peer's provider needs to connect, at most a few KiB.
    fn blob(&self) -> &[u8];
}

/// A region that peers can reach. Withdrawn when dropped.
pub trait Registration: Send + Sync + Any {
    /// What the peer's provider needs to import the region, at most a few KiB.
    fn blob(&self) -> &[u8];
}

/// A peer's region, usable here. Unmapped when dropped.
pub trait RemoteRegion: Send + Sync + Any {
    /// Where device code of the importing GPU reaches the region itself, if the transport allows that.
    fn ptr(&self) -> Option<DevicePtr>;

    /// Whether device code may use atomic operations there too. Only asked where [`RemoteRegion::ptr`] is some.
    fn native_atomics(&self) -> bool {
        false
    }

    /// Whether a line of 128 bytes that the threads of a warp store at once arrives there whole, so that who sees a part
    /// of it sees all of it. Only asked where [`RemoteRegion::ptr`] is some.
    fn whole_lines(&self) -> bool {
        false
    }
}

/// A live connection of a transport, from this side's view. Closed when dropped.
pub trait Link: Send + Sync + Any {
    /// Opens a way for operations to the peer. May block as [`TransportProvider::connect`] does.
    ///
    /// The link outlives its queues.
    ///
    /// # Errors
    /// [`crate::Error::PeerLost`], or the provider's own.
    fn open_queue(&self) -> Result<Box<dyn Queue>>;
}

/// Operations on their way to the peer, in the order in which they were given. Queues of one link know nothing of each
/// other's order.
///
/// A queue has one owner, so that nothing needs a lock on the path that runs per operation. Nothing blocks, and in the
/// long run nothing allocates. What was given before a queue is dropped is carried out or fails; meanwhile the queue's
/// transport keeps the memories.
pub trait Queue: Send {
    /// Starts a copy of `len` bytes from `src` to `dst`. `src` must keep its contents until a flush.
    ///
    /// # Errors
    /// [`crate::Error::PeerLost`], or the provider's own.
    fn write(
        &mut self,
        dst: &Arc<dyn RemoteRegion>,
        dst_offset: u64,
        src: &Arc<dyn Registration>,
        src_offset: u64,
        len: u64,
    ) -> Result<()>;

    /// Stores 8 bytes at `dst_offset` (a multiple of 8), visible only after all earlier writes of this queue.
    ///
    /// # Errors
    /// As [`Queue::write`].
    fn update(&mut self, dst: &Arc<dyn RemoteRegion>, dst_offset: u64, value: u64) -> Result<()>;

    /// Stores `value` in the 8 bytes of local device memory at `word` once all earlier operations are complete at the
    /// peer, so that kernels learn it without the host. Only called where [`Queue::stores_completions`] says so.
    ///
    /// # Errors
    /// As [`Queue::write`].
    ///
    /// # Safety
    /// `word` must be 8-byte aligned, and valid until the store is done.
    unsafe fn store_when_complete(&mut self, word: DevicePtr, value: u64) -> Result<()> {
        Err(crate::Error::InvalidArgument(format!(
            "this transport cannot store {value} at {word:?} by itself; ask it with request_flush and progress"
        )))
    }

    /// [`Queue::update`] and [`Queue::store_when_complete`], one behind the other, for transports that do the two faster
    /// together.
    ///
    /// # Errors
    /// As [`Queue::write`].
    ///
    /// # Safety
    /// As [`Queue::store_when_complete`].
    unsafe fn update_and_store(
        &mut self,
        dst: &Arc<dyn RemoteRegion>,
        dst_offset: u64,
        value: u64,
        word: DevicePtr,
        done: u64,
    ) -> Result<()> {
        self.update(dst, dst_offset, value)?;
        // SAFETY: the caller's promise.
        unsafe { self.store_when_complete(word, done) }
    }

    /// Whether [`Queue::store_when_complete`] works.
    fn stores_completions(&self) -> bool {
        false
    }

    /// Asks to be told when all earlier operations are complete at the peer: the ticket that [`Queue::progress`] will
    /// reach.
    ///
    /// # Errors
    /// As [`Queue::write`].
    fn request_flush(&mut self) -> Result<u64>;

    /// The highest ticket whose operations are complete. Drives the transport where it needs driving.
    ///
    /// # Errors
    /// As [`Queue::write`].
    fn progress(&mut self) -> Result<u64>;
}
