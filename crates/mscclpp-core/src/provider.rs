//! What a transport brings. A provider needs no change here: see [`crate::Transport::custom`].
//!
//! # What a provider may rely on
//! 1. Ranges were checked against the sizes of both memories before a [`Link`] is called.
//! 2. `connect` gets endpoints whose transports [pair](crate::Transport::pairs_with), the local one opened by the same
//!    provider.
//! 3. What comes in [`EndpointInfo::blob`] and [`RegionInfo::blob`] are the bytes that the peer's provider made, or
//!    that somebody else made up: parse them as hostile.
//!
//! # What a provider promises
//! 1. Operations of one link take effect in the order of the calls: whoever sees the value of an [`Link::update`]
//!    sees the data of every earlier [`Link::write`] of that link.
//! 2. Nothing blocks but `connect`, `import` and `flush`, and those have a bound.
//! 3. When the peer goes, the link's [`LinkMonitor`] is told, once, within 5 seconds, and calls in flight fail.

use std::{any::Any, sync::Arc, time::Duration};

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
}

/// A live connection of a transport, from this side's view. Closed when dropped.
///
/// All methods may be called from any thread; the order of calls made by one thread is kept.
pub trait Link: Send + Sync + Any {
    /// Starts a copy of `len` bytes from `src` to `dst`. Returns at once; `src` must keep its contents until a flush.
    ///
    /// # Errors
    /// [`crate::Error::PeerLost`], or the provider's own.
    fn write(
        &self,
        dst: &Arc<dyn RemoteRegion>,
        dst_offset: u64,
        src: &Arc<dyn Registration>,
        src_offset: u64,
        len: u64,
    ) -> Result<()>;

    /// Stores 8 bytes at `dst_offset` (a multiple of 8), visible only after all earlier writes of this link.
    ///
    /// # Errors
    /// As [`Link::write`].
    fn update(&self, dst: &Arc<dyn RemoteRegion>, dst_offset: u64, value: u64) -> Result<()>;

    /// Blocks until all earlier operations of this link are complete at the peer.
    ///
    /// # Errors
    /// [`crate::Error::Timeout`]: nothing is undone and the call can be repeated; as [`Link::write`].
    fn flush(&self, timeout: Duration) -> Result<()>;

    /// Asks to be told when all earlier operations are complete: the ticket that [`Link::progress`] will reach.
    ///
    /// # Errors
    /// As [`Link::write`].
    fn request_flush(&self) -> Result<u64>;

    /// The highest ticket whose operations are complete. Never blocks; drives the transport where it needs driving.
    ///
    /// # Errors
    /// As [`Link::write`].
    fn progress(&self) -> Result<u64>;
}
