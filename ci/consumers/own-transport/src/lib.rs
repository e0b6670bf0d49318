//! The transport *Post*: between devices of one node, in one process or in several. Each provider has a *hub*, a Unix socket
//! to which peers connect.
//!
//! How it keeps the promises of a provider:
//! 1. *Order.* A queue is one socket. Its sender sends operation by operation, and the peer's hub carries out each of them
//!    before it reads the next.
//! 2. *Bounds.* Calls of a queue only put operations into a list of limited length. Connecting, importing and opening a
//!    queue ask the peer's hub, and wait for its answer for five seconds at most.
//! 3. *News.* A link is a socket too, on which only the end of an endpoint is announced. The system closes it when the peer's
//!    process dies.
//! 4. *Failures.* On that socket an endpoint also announces that its side has failed, and why.

mod hub;
#[cfg(feature = "knobs")]
pub mod knobs;
mod queue;
mod staging;
mod wire;

use std::{
    io::Read,
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use mscclpp::{
    DevicePtr, EndpointConfig, Gpu, Transport, TransportFlags,
    errors::CoreError,
    provider::{
        Ends, Foreign, Link, LinkMonitor, LocalEndpoint, MemoryRegion, Queue, RegionInfo, Registration,
        RemoteRegion, TransportProvider, host_id,
    },
};

use hub::{Hub, Published};
use queue::PostQueue;
use wire::{Address, FAILED, GOODBYE, Hello};

type Result<T> = std::result::Result<T, CoreError>;

/// The provider, of which each context has its own.
pub struct Post {
    hub: Arc<Hub>,
}

impl Post {
    pub const TRANSPORT: Transport = Transport::custom(0).named("Post");

    /// Opens this process's hub.
    pub fn open() -> Result<Self> {
        Ok(Self { hub: Hub::open()? })
    }

    /// Lets peers write to a region.
    fn publish(&self, region: &Arc<MemoryRegion>) -> Registered {
        let published = self.hub.publish(region);
        let blob = self.hub.address(region.id()).encode();
        Registered { region: region.clone(), blob, _published: Some(published) }
    }
}

impl TransportProvider for Post {
    fn transports(&self) -> TransportFlags {
        Self::TRANSPORT.into()
    }

    /// Returns false, because an imported region never has an address here: the peer's hub does the writing.
    fn maps_memory(&self, _: Transport) -> bool {
        false
    }

    fn open_endpoint(&self, config: &EndpointConfig, gpu: Option<&Gpu>) -> Result<Arc<dyn LocalEndpoint>> {
        if gpu.is_none() {
            return Err(CoreError::InvalidArgument("Post is between devices, not CPUs".to_owned()));
        }
        let id = self.hub.open_endpoint();
        let blob = self.hub.address(id).encode();
        let limit = config.max_write_queue_size.unwrap_or(256) as usize;
        Ok(Arc::new(Endpoint { hub: self.hub.clone(), id, blob, limit }))
    }

    fn register(&self, _: Transport, region: &Arc<MemoryRegion>) -> Result<Arc<dyn Registration>> {
        if region.gpu().is_none() {
            return Err(CoreError::InvalidArgument("Post delivers to memory of devices".to_owned()));
        }
        Ok(Arc::new(self.publish(region)))
    }

    /// Prepares any memory of a device as the source of writes. Peers do not learn of it.
    fn local_source(
        &self,
        _: Transport,
        region: &Arc<MemoryRegion>,
    ) -> Result<Option<Arc<dyn Registration>>> {
        let source = || Registered { region: region.clone(), blob: Vec::new(), _published: None };
        Ok(region.gpu().map(|_| Arc::new(source()) as _))
    }

    fn import(&self, region: &RegionInfo<'_>, _: Option<&Gpu>) -> Result<Arc<dyn RemoteRegion>> {
        Ok(Arc::new(Imported::ask(region, region.blob)?))
    }

    fn connect(&self, ends: Ends<'_>, monitor: LinkMonitor) -> Result<Arc<dyn Link>> {
        Ok(Arc::new(PostLink::connect(ends, monitor)?))
    }
}

fn foreign(error: Foreign) -> CoreError {
    CoreError::transport(Post::TRANSPORT, error)
}

fn unreachable(remote: impl ToString, reason: impl ToString) -> CoreError {
    CoreError::Unreachable {
        local: "this process".to_owned(),
        remote: remote.to_string(),
        transport: Post::TRANSPORT,
        reason: reason.to_string(),
    }
}

/// An endpoint of this process. When it is dropped, the hub sends a goodbye on all links that lead to it.
struct Endpoint {
    hub: Arc<Hub>,
    id: u64,
    blob: Vec<u8>,
    limit: usize,
}

impl LocalEndpoint for Endpoint {
    fn blob(&self) -> &[u8] {
        &self.blob
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.hub.close_endpoint(self.id);
    }
}

/// A region of this process. Once `_published` is dropped, nothing more arrives in it.
struct Registered {
    region: Arc<MemoryRegion>,
    blob: Vec<u8>,
    _published: Option<Published>,
}

impl Registration for Registered {
    fn blob(&self) -> &[u8] {
        &self.blob
    }
}

/// A region of a peer: a number that its hub knows, and whether the region starts at a multiple of 8.
struct Imported {
    id: u64,
    aligned: bool,
}

impl Imported {
    /// Asks the owner of a region for it. The blob may come from a stranger: the owner answers whether the region exists, and
    /// how long it is.
    fn ask(region: &RegionInfo<'_>, blob: &[u8]) -> Result<Self> {
        let name = format!("region {:x} of node {}", region.id, region.host);
        if region.host != host_id()? {
            return Err(unreachable(name, "it is on another node"));
        }
        let owner = Address::decode(blob, "a registered memory")?;
        let answer = owner.dial(Hello::Region { id: owner.id, len: region.len });
        let (_, aligned) = answer.map_err(|reason| unreachable(name, reason))?;
        Ok(Self { id: owner.id, aligned })
    }
}

impl RemoteRegion for Imported {
    fn ptr(&self) -> Option<DevicePtr> {
        None
    }
}

/// This side of a connection: a socket on which the peer's hub sends a goodbye or a failure, or which ends without either.
struct PostLink {
    hub: Arc<Hub>,
    local: u64,
    peer: Address,
    stream: UnixStream,
    limit: usize,
    monitor: LinkMonitor,
    closing: Arc<AtomicBool>,
}

impl PostLink {
    fn connect(ends: Ends<'_>, monitor: LinkMonitor) -> Result<Self> {
        let remote = ends.remote;
        if remote.host != host_id()? {
            return Err(unreachable(remote, "it is on another node"));
        }
        let local: &Endpoint = ends.own().map_err(foreign)?;
        let peer = Address::decode(&remote.blob, "an endpoint")?;
        let hello = Hello::Link { id: peer.id, from: local.id };
        let (stream, _) = peer.dial(hello).map_err(|reason| unreachable(remote, reason))?;
        let closing = Arc::new(AtomicBool::new(false));
        let mut watched = stream.try_clone().map_err(|e| CoreError::system("watching a link", e))?;
        let (news, ours) = (monitor.clone(), closing.clone());
        let watch = move || {
            let mut said = [0];
            let read = watched.read(&mut said);
            match read {
                _ if ours.load(Ordering::Acquire) => {}
                Ok(1) if said == GOODBYE => news.closed(),
                Ok(1) if said == FAILED => news.peer_failed(&reason(&mut watched).unwrap_or_default()),
                _ => news.lost("its process ended (its socket closed without a goodbye)"),
            }
        };
        thread::Builder::new()
            .name("post-watch".to_owned())
            .spawn(watch)
            .map_err(|e| CoreError::system("starting a thread", e))?;
        let (hub, local, limit) = (local.hub.clone(), local.id, local.limit);
        Ok(Self { hub, local, peer, stream, limit, monitor, closing })
    }

    fn queue(&self) -> Result<PostQueue> {
        let dialled = self.peer.dial(Hello::Queue { id: self.peer.id });
        let (stream, _) = dialled.map_err(|reason| unreachable(self.monitor.label(), reason))?;
        PostQueue::open(stream, self.limit, self.monitor.clone())
    }
}

impl Link for PostLink {
    fn open_queue(&self) -> Result<Box<dyn Queue>> {
        Ok(Box::new(self.queue()?))
    }

    fn tell_failure(&self, reason: &str) {
        self.hub.tell_failure(self.local, self.peer.id, reason);
    }
}

/// Reads the reason of the peer's failure. The length comes from the peer, so nothing is allocated by it.
fn reason(stream: &mut UnixStream) -> std::io::Result<Vec<u8>> {
    let (mut len, mut reason) = ([0; 2], [0; LinkMonitor::MAX_REASON]);
    stream.read_exact(&mut len)?;
    let len = reason.len().min(u16::from_le_bytes(len).into());
    stream.read_exact(&mut reason[..len])?;
    Ok(reason[..len].to_vec())
}

impl Drop for PostLink {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Release);
        // This fails if the peer has closed the socket before.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
