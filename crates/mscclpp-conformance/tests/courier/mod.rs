//! A transport under the control of a test, written as somebody outside this project would write it: between
//! simulated devices of one node, where every queue has a worker thread that carries bytes from one device's memory
//! to another's. Memory of another process is mapped through `/proc`. A test decides how much of peers' memory is
//! mapped, where tokens are, when queues are full, and when their workers stop. (The example for users,
//! `ci/consumers/own-transport`, has none of this.)
//!
//! The courier keeps a provider's promises in these ways:
//! 1. The operations of a queue go to one worker, which carries them out in order; an update is a release store behind
//!    the data.
//! 2. Nothing blocks: commands go through a channel. The number of commands in it can be limited; then the queue is
//!    full.
//! 3. When an endpoint closes, it notifies the monitors of all links of its own process that lead to it. Other
//!    processes read from a pipe whose other end the endpoint holds, and into which nobody ever writes.
//! 4. Within its process, a link that tells of a failure notifies the monitors of the links back.

#![allow(dead_code, reason = "each test program uses a part of this")]

mod queue;

use std::{
    any::Any,
    collections::HashMap,
    fs::File,
    io::{self, PipeReader, PipeWriter, Read},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::{FileTypeExt, OpenOptionsExt},
    },
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use mscclpp_core::{
    EndpointConfig, EndpointInfo, Error, LinkMonitor, MemoryRegion, RegionInfo, Result, Transport,
    TransportFlags, host_id,
    provider::{
        Ends, Link, LocalEndpoint, OwnTokens, Registration, RemoteRegion, TokenMemory, TransportProvider,
    },
};
use mscclpp_gpu::{DevicePtr, ExportHandle, Gpu, ImportedMemory, Platform};
use queue::CourierLink;

/// How device code may use a peer's memory. Everything works on simulated devices; the lower levels are for tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Device code does not reach the memory, as over a network.
    Nothing,
    /// Device code loads and stores, as between most PCIe pairs.
    Stores,
    /// Device code may use atomics too.
    Atomics,
}

/// The provider. Clones serve each other's endpoints.
#[derive(Clone)]
pub(crate) struct Courier {
    reach: Reach,
    /// The kind of memory in which inbound tokens are.
    tokens: TokenMemory,
    /// The most commands that a queue holds, if an endpoint's configuration does not say less.
    limit: u64,
    endpoints: Arc<Mutex<HashMap<u64, Weak<Endpoint>>>>,
    /// The number of endpoints so far.
    opened: Arc<AtomicU64>,
    held: Arc<AtomicBool>,
    largest: Arc<AtomicU64>,
}

impl Courier {
    /// The transport that it serves.
    pub(crate) const TRANSPORT: Transport = Transport::custom(3).named("Courier");
    /// A second transport of the same family, whose endpoints pair with those of the first.
    pub(crate) const SECOND: Transport = Transport::custom(4).named("Courier2");

    pub(crate) fn new(reach: Reach) -> Self {
        Self {
            reach,
            tokens: TokenMemory::Device,
            limit: 1 << 16,
            endpoints: Arc::default(),
            opened: Arc::default(),
            held: Arc::default(),
            largest: Arc::default(),
        }
    }

    pub(crate) fn with_tokens(self, tokens: TokenMemory) -> Self {
        Self { tokens, ..self }
    }

    /// Sets the number of commands with which a queue is full.
    pub(crate) fn limited_to(self, limit: u64) -> Self {
        Self { limit, ..self }
    }

    /// Makes the workers of all its queues stop before their next command, or go on.
    pub(crate) fn hold(&self, held: bool) {
        self.held.store(held, Ordering::Relaxed);
    }

    /// Returns the size of the largest batch that a queue was given.
    pub(crate) fn largest_batch(&self) -> u64 {
        self.largest.load(Ordering::Relaxed)
    }

    fn unreachable<T>(remote: impl Into<String>, reason: impl Into<String>) -> Result<T> {
        Err(Error::Unreachable {
            local: "this process".to_owned(),
            remote: remote.into(),
            transport: Self::TRANSPORT,
            reason: reason.into(),
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The part of an endpoint or a region that is sent to peers: its number, its process and a file descriptor of that
/// process. An endpoint's descriptor is its pipe. A region's is its memory (-1 for none), with the region's offset
/// there and the memory's size.
#[derive(Debug, Clone, Copy)]
struct Blob {
    id: u64,
    process: u32,
    descriptor: i32,
    offset: u64,
    size: u64,
}

impl Blob {
    fn encode(self) -> Vec<u8> {
        let Self { id, process, descriptor, offset, size } = self;
        [id, u64::from(process) << 32 | u64::from(descriptor.cast_unsigned()), offset, size]
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect()
    }

    fn decode(bytes: &[u8], what: &'static str) -> Result<Self> {
        let mut words =
            bytes.chunks_exact(8).map(|chunk| chunk.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b)));
        match (bytes.len(), words.next(), words.next(), words.next(), words.next()) {
            (32, Some(id), Some(place), Some(offset), Some(size)) => Ok(Self {
                id,
                process: (place >> 32) as u32,
                descriptor: (place as u32).cast_signed(),
                offset,
                size,
            }),
            (len, ..) => {
                Err(Error::Malformed { what, problem: format!("its courier part has {len} bytes, not 32") })
            }
        }
    }

    /// Opens the descriptor's file in this process.
    fn open(&self, options: &std::fs::OpenOptions) -> io::Result<File> {
        options.open(format!("/proc/{}/fd/{}", self.process, self.descriptor))
    }
}

struct Endpoint {
    blob: Vec<u8>,
    id: u64,
    limit: u64,
    /// The monitors of this process's links that lead here, each with the number of the endpoint that its link comes
    /// from.
    monitors: Mutex<Vec<(u64, LinkMonitor)>>,
    /// The pipe that other processes watch.
    _pipe: (PipeReader, PipeWriter),
}

impl LocalEndpoint for Endpoint {
    fn blob(&self) -> &[u8] {
        &self.blob
    }
}

impl Endpoint {
    /// Returns the monitors of the links that come from the endpoint `peer`.
    fn monitors_of(&self, peer: u64) -> Vec<LinkMonitor> {
        let all = lock(&self.monitors);
        all.iter().filter(|(from, _)| *from == peer).map(|(_, monitor)| monitor.clone()).collect()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        for (_, monitor) in lock(&self.monitors).drain(..) {
            monitor.closed();
        }
    }
}

/// A region, as its owner has it or as the peer has it.
struct Region {
    at: DevicePtr,
    keep: Keep,
    blob: Vec<u8>,
    reach: Reach,
    /// The descriptor that other processes open.
    _exported: Option<OwnedFd>,
}

#[derive(Clone)]
enum Keep {
    Region(Arc<MemoryRegion>),
    Mapped(Arc<ImportedMemory>),
}

impl Registration for Region {
    fn blob(&self) -> &[u8] {
        &self.blob
    }
}

impl RemoteRegion for Region {
    fn ptr(&self) -> Option<DevicePtr> {
        (self.reach != Reach::Nothing).then_some(self.at)
    }

    fn native_atomics(&self) -> bool {
        self.reach == Reach::Atomics
    }

    /// Holds because both ends are simulated devices, whose kernels store a line's flag after its data.
    fn whole_lines(&self) -> bool {
        self.reach == Reach::Atomics
    }
}

// ANCHOR: provider
impl TransportProvider for Courier {
    fn transports(&self) -> TransportFlags {
        Self::TRANSPORT | Self::SECOND
    }

    fn pairs_with(&self, local: Transport, remote: Transport) -> bool {
        self.transports().has(local) && self.transports().has(remote)
    }

    fn own_tokens(&self, _: Transport, gpu: &Gpu, len: u64) -> Result<OwnTokens> {
        let memory = gpu.allocate_pinned(len)?;
        let ptr = memory.ptr();
        // SAFETY: the memory is zeroed, starts at a page, lives as long as it is kept, and has no other users;
        // kernels reach pinned memory.
        Ok(unsafe { OwnTokens::new(ptr, None, Arc::new(memory)) })
    }

    fn open_endpoint(&self, config: &EndpointConfig, gpu: Option<&Gpu>) -> Result<Arc<dyn LocalEndpoint>> {
        if gpu.is_none_or(|gpu| gpu.platform() != Platform::Sim) {
            return Err(Error::InvalidArgument("a courier goes between simulated GPUs only".to_owned()));
        }
        let pipe = io::pipe().map_err(|e| Error::system("making a pipe", e))?;
        let mut endpoints = lock(&self.endpoints);
        endpoints.retain(|_, endpoint| endpoint.strong_count() > 0);
        // No number is given out twice: an endpoint that is gone stays gone.
        let id = self.opened.fetch_add(1, Ordering::Relaxed);
        let (process, descriptor) = (std::process::id(), pipe.0.as_raw_fd());
        let endpoint = Arc::new(Endpoint {
            blob: Blob { id, process, descriptor, offset: 0, size: 0 }.encode(),
            id,
            limit: config.max_write_queue_size.map_or(self.limit, |max| self.limit.min(max.into())),
            monitors: Mutex::default(),
            _pipe: pipe,
        });
        endpoints.insert(id, Arc::downgrade(&endpoint));
        Ok(endpoint)
    }

    fn register(&self, _: Transport, region: &Arc<MemoryRegion>) -> Result<Arc<dyn Registration>> {
        let mut blob =
            Blob { id: region.id(), process: std::process::id(), descriptor: -1, offset: 0, size: 0 };
        // SAFETY: a region is live memory as long as it exists.
        let export = region.gpu().map(|gpu| unsafe { gpu.export(region.ptr(), region.len()) }).transpose()?;
        let mut exported = None;
        if let Some(export) = export
            && let ExportHandle::FileDescriptor(descriptor) = export.handle
        {
            blob.descriptor = descriptor.as_raw_fd();
            (blob.offset, blob.size) = (export.offset, export.allocation_size);
            exported = Some(descriptor);
        }
        Ok(Arc::new(Region {
            at: region.ptr(),
            keep: Keep::Region(region.clone()),
            blob: blob.encode(),
            reach: self.reach,
            _exported: exported,
        }))
    }

    fn import(&self, region: &RegionInfo, gpu: Option<&Gpu>) -> Result<Arc<dyn RemoteRegion>> {
        let blob = Blob::decode(region.blob, "a registered memory")?;
        let remote = format!("region {} of process {}", blob.id, blob.process);
        let (at, keep) = match (&region.local, gpu) {
            (Some(local), _) if local.id() == blob.id => (local.ptr(), Keep::Region(local.clone())),
            (None, Some(gpu)) if region.host == host_id()? && region.platform == gpu.platform() => {
                if blob.offset.checked_add(region.len).is_none_or(|end| end > blob.size) {
                    return Self::unreachable(remote, "it is not inside its allocation");
                }
                let opened = blob.open(File::options().read(true).write(true));
                let Ok(file) = opened else {
                    return Self::unreachable(remote, format!("it is not exported: {opened:?}"));
                };
                let handle = ExportHandle::FileDescriptor(file.into());
                let mapped = gpu.import(&handle, blob.size)?;
                (mapped.ptr().add(blob.offset), Keep::Mapped(Arc::new(mapped)))
            }
            _ => return Self::unreachable(remote, "it is not one of this host's simulated devices"),
        };
        Ok(Arc::new(Region { at, keep, blob: region.blob.to_vec(), reach: self.reach, _exported: None }))
    }

    fn maps_memory(&self, _: Transport) -> bool {
        self.reach != Reach::Nothing
    }

    fn connect(&self, ends: Ends<'_>, monitor: LinkMonitor) -> Result<Arc<dyn Link>> {
        let remote = ends.remote;
        let any: Arc<dyn Any + Send + Sync> = ends.local.clone();
        let Ok(local) = any.downcast::<Endpoint>() else {
            return Err(Error::InvalidArgument("the local endpoint is not the courier's".to_owned()));
        };
        if remote.host != host_id()? || remote.platform != Platform::Sim {
            return Self::unreachable(
                remote.to_string(),
                "a courier goes between simulated GPUs of one host only",
            );
        }
        let blob = Blob::decode(&remote.blob, "an endpoint")?;
        let link = Arc::new(CourierLink {
            limit: local.limit,
            tokens: self.tokens,
            held: self.held.clone(),
            largest: self.largest.clone(),
            open: Arc::new(()),
            ends: (Arc::downgrade(&local), blob.id),
        });
        if !remote.is_in_this_process() {
            watch(&blob, remote, monitor, Arc::downgrade(&link.open))?;
            return Ok(link);
        }
        match lock(&self.endpoints).get(&blob.id).and_then(Weak::upgrade) {
            Some(endpoint) => lock(&endpoint.monitors).push((local.id, monitor)),
            None => return Self::unreachable(remote.to_string(), "the endpoint is closed"),
        }
        Ok(link)
    }
}
// ANCHOR_END: provider

/// The time between two looks of a link whether its peer in another process still exists.
const LOOK: Duration = Duration::from_millis(10);

/// Watches an endpoint of another process by reading from its pipe, which ends when the endpoint does.
fn watch(blob: &Blob, remote: &EndpointInfo, monitor: LinkMonitor, link: Weak<()>) -> Result<()> {
    const O_NONBLOCK: i32 = 0o4000;
    let opened = blob.open(File::options().read(true).custom_flags(O_NONBLOCK));
    let is_pipe = |pipe: &File| pipe.metadata().is_ok_and(|data| data.file_type().is_fifo());
    let mut pipe = match opened {
        Ok(pipe) if is_pipe(&pipe) => pipe,
        other => return Courier::unreachable(remote.to_string(), format!("it is gone: {other:?}")),
    };
    let look = move || {
        while link.strong_count() > 0 {
            match pipe.read(&mut [0]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(LOOK),
                _ => return monitor.lost("its process, or its endpoint, is gone"),
            }
        }
    };
    let started = thread::Builder::new().name("courier-watch".to_owned()).spawn(look);
    started.map(drop).map_err(|e| Error::system("starting to watch a peer", e))
}
