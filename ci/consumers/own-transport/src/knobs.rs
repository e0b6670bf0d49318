//! Post under the control of a test: how much of peers' memory is mapped, where tokens are, how many operations a queue holds,
//! and when queues stand still.
//!
//! The bytes still travel by Post. While the test holds a queue, its operations go to a worker, which later hands them over to
//! Post's queue in order. Memory of other processes is mapped through `/proc`, so mapping works on simulated devices
//! only.

use std::{
    fs::File,
    os::fd::{AsRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Sender, channel},
    },
    thread,
    time::Duration,
};

use mscclpp::{
    DevicePtr, EndpointConfig, Gpu, Transport, TransportFlags,
    errors::CoreError,
    memory::{ExportHandle, ImportedMemory},
    provider::{
        Ends, Link, LinkMonitor, LocalEndpoint, Memories, MemoryRegion, Operation, OwnTokens, Queue,
        RegionInfo, Registration, RemoteRegion, RouteId, TokenMemory, TransportProvider,
    },
};

use crate::{
    Imported, Post, PostLink, Result, foreign,
    queue::{Outgoing, PostQueue},
    unreachable,
    wire::Address,
};

/// How device code may use a peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Device code does not reach the memory, as over a network.
    Nothing,
    /// Device code loads and stores, as between most PCIe pairs.
    Stores,
    /// Device code may use atomics too.
    Atomics,
}

/// The provider. Clones serve each other's endpoints, and are held together.
#[derive(Clone)]
pub struct TestPost {
    post: Arc<Post>,
    reach: Reach,
    tokens: TokenMemory,
    /// The most operations that a queue holds, if an endpoint's configuration does not say less.
    limit: Option<u32>,
    control: Arc<Control>,
}

/// The part of a provider that its queues look at.
#[derive(Default)]
struct Control {
    held: AtomicBool,
    largest: AtomicU64,
}

impl TestPost {
    /// The transport that it serves.
    pub const TRANSPORT: Transport = Post::TRANSPORT;
    /// A second transport of the same family, whose endpoints pair with those of the first.
    pub const SECOND: Transport = Transport::custom(1).named("Post2");

    /// Opens a hub of this process, as [`Post::open`] does.
    pub fn open(reach: Reach) -> Result<Self> {
        let post = Arc::new(Post::open()?);
        Ok(Self { post, reach, tokens: TokenMemory::Device, limit: None, control: Arc::default() })
    }

    /// Sets the kind of memory in which inbound tokens are.
    pub fn with_tokens(self, tokens: TokenMemory) -> Self {
        Self { tokens, ..self }
    }

    /// Sets the number of operations with which a queue is full.
    pub fn limited_to(self, limit: u32) -> Self {
        Self { limit: Some(limit), ..self }
    }

    /// Makes all its queues stop before their next operation, or go on.
    pub fn hold(&self, held: bool) {
        self.control.held.store(held, Ordering::Relaxed);
    }

    /// Returns the size of the largest batch that a queue was given.
    pub fn largest_batch(&self) -> u64 {
        self.control.largest.load(Ordering::Relaxed)
    }
}

impl TransportProvider for TestPost {
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
        let mut config = config.clone();
        config.max_write_queue_size = config.max_write_queue_size.into_iter().chain(self.limit).min();
        self.post.open_endpoint(&config, gpu)
    }

    /// Also registers memory of the host, where tokens may be.
    fn register(&self, _: Transport, region: &Arc<MemoryRegion>) -> Result<Arc<dyn Registration>> {
        let post = Arc::new(self.post.publish(region));
        let (mut blob, mut exported) = (post.blob.clone(), None);
        if let Some(gpu) = region.gpu().filter(|_| self.reach != Reach::Nothing) {
            // SAFETY: a region is live memory as long as it exists.
            let export = unsafe { gpu.export(region.ptr(), region.len()) }?;
            if let ExportHandle::FileDescriptor(descriptor) = export.handle {
                let (offset, size) = (export.offset, export.allocation_size);
                let file = OpenFile { process: std::process::id(), descriptor: descriptor.as_raw_fd() };
                blob.extend(Allocation { file, offset, size }.encode());
                exported = Some(descriptor);
            }
        }
        Ok(Arc::new(Published { post, blob, _exported: exported }))
    }

    fn import(&self, region: &RegionInfo<'_>, gpu: Option<&Gpu>) -> Result<Arc<dyn RemoteRegion>> {
        let (of_post, exported) = region.blob.split_at(region.blob.len().min(Address::LEN));
        let post = Imported::ask(region, of_post)?;
        let refused = |reason: String| unreachable(format!("region {}", post.id), reason);
        let (at, mapped) = match (&region.local, gpu) {
            _ if self.reach == Reach::Nothing => (None, None),
            (Some(local), _) if local.id() == post.id => (Some(local.ptr()), None),
            (None, Some(gpu)) if region.platform == gpu.platform() => {
                let allocation = Allocation::decode(exported)?;
                if allocation.offset.checked_add(region.len).is_none_or(|end| end > allocation.size) {
                    return Err(refused("it is not inside its allocation".to_owned()));
                }
                let file = allocation.file.open().map_err(|e| refused(format!("it is not exported: {e}")))?;
                let mapped = gpu.import(&ExportHandle::FileDescriptor(file.into()), allocation.size)?;
                (Some(mapped.ptr().add(allocation.offset)), Some(mapped))
            }
            _ => return Err(refused("it is not one of this node's simulated devices".to_owned())),
        };
        Ok(Arc::new(Mapped { post: Arc::new(post), at, reach: self.reach, _mapped: mapped }))
    }

    fn maps_memory(&self, _: Transport) -> bool {
        self.reach != Reach::Nothing
    }

    fn connect(&self, ends: Ends<'_>, monitor: LinkMonitor) -> Result<Arc<dyn Link>> {
        let post = PostLink::connect(ends, monitor)?;
        Ok(Arc::new(HeldLink { post, tokens: self.tokens, control: self.control.clone() }))
    }
}

/// A file that a process has open, as other processes find it.
struct OpenFile {
    process: u32,
    descriptor: i32,
}

impl OpenFile {
    fn open(&self) -> std::io::Result<File> {
        let path = format!("/proc/{}/fd/{}", self.process, self.descriptor);
        File::options().read(true).write(true).open(path)
    }
}

/// The exported allocation around a region, and the region's offset in it. It follows Post's part of the blob.
struct Allocation {
    file: OpenFile,
    offset: u64,
    size: u64,
}

impl Allocation {
    fn encode(&self) -> Vec<u8> {
        let OpenFile { process, descriptor } = self.file;
        [
            &process.to_le_bytes()[..],
            &descriptor.to_le_bytes(),
            &self.offset.to_le_bytes(),
            &self.size.to_le_bytes(),
        ]
        .concat()
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let parse = || {
            let (process, rest) = bytes.split_first_chunk()?;
            let (descriptor, rest) = rest.split_first_chunk()?;
            let (offset, size) = rest.split_first_chunk()?;
            let file = OpenFile {
                process: u32::from_le_bytes(*process),
                descriptor: i32::from_le_bytes(*descriptor),
            };
            let size = u64::from_le_bytes(size.try_into().ok()?);
            Some(Self { file, offset: u64::from_le_bytes(*offset), size })
        };
        parse().ok_or_else(|| CoreError::Malformed {
            what: "a registered memory",
            problem: format!("its exported allocation has {} bytes, not 24", bytes.len()),
        })
    }
}

/// A region of this process, which other processes may map.
struct Published {
    post: Arc<dyn Registration>,
    blob: Vec<u8>,
    /// The descriptor that other processes open.
    _exported: Option<OwnedFd>,
}

impl Registration for Published {
    fn blob(&self) -> &[u8] {
        &self.blob
    }
}

/// A region of a peer, and its address here if it has one.
struct Mapped {
    post: Arc<dyn RemoteRegion>,
    at: Option<DevicePtr>,
    reach: Reach,
    _mapped: Option<ImportedMemory>,
}

impl RemoteRegion for Mapped {
    fn ptr(&self) -> Option<DevicePtr> {
        self.at
    }

    fn native_atomics(&self) -> bool {
        self.reach == Reach::Atomics
    }

    /// Holds because both ends are simulated devices, whose kernels store a line's flag after its data.
    fn whole_lines(&self) -> bool {
        self.reach == Reach::Atomics
    }
}

struct HeldLink {
    post: PostLink,
    tokens: TokenMemory,
    control: Arc<Control>,
}

impl Link for HeldLink {
    fn token_memory(&self) -> Result<TokenMemory> {
        Ok(self.tokens)
    }

    fn open_queue(&self) -> Result<Box<dyn Queue>> {
        let (post, limit, control) = (self.post.queue()?, self.post.limit as u64, self.control.clone());
        let (items, waiting) = channel();
        let (outgoing, handed_over, seen) =
            (post.outgoing.clone(), Arc::new(AtomicU64::new(0)), control.clone());
        let progress = handed_over.clone();
        // The worker ends when the queue is dropped and everything is handed over, or when Post's queue has ended.
        let work = move || {
            for item in waiting {
                while seen.held.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(1));
                }
                if outgoing.send(item).is_err() {
                    return;
                }
                progress.fetch_add(1, Ordering::Release);
            }
        };
        let started = thread::Builder::new().name("post-held".to_owned()).spawn(work);
        started.map_err(|e| CoreError::system("starting a thread", e))?;
        Ok(Box::new(HeldQueue { post, items, limit, taken: 0, handed_over, control }))
    }

    fn tell_failure(&self, reason: &str) {
        self.post.tell_failure(reason);
    }
}

/// A queue whose operations wait for the worker, which hands them over to Post's queue.
struct HeldQueue {
    post: PostQueue,
    items: Sender<Outgoing>,
    limit: u64,
    taken: u64,
    handed_over: Arc<AtomicU64>,
    control: Arc<Control>,
}

impl Queue for HeldQueue {
    fn prepare(&mut self, route: RouteId, memories: Memories<'_>) -> Result<()> {
        let (dst, src): (&Mapped, Option<&Published>) = memories.own().map_err(foreign)?;
        self.post.prepare(route, Memories { dst: &dst.post, src: src.map(|src| &src.post) })
    }

    fn release(&mut self, route: RouteId) {
        self.post.release(route);
    }

    unsafe fn submit(&mut self, batch: &[Operation]) -> Result<usize> {
        self.control.largest.fetch_max(batch.len() as u64, Ordering::Relaxed);
        self.post.monitor.check()?;
        let waiting = self.taken - self.handed_over.load(Ordering::Acquire);
        if waiting == 0 && !self.control.held.load(Ordering::Relaxed) {
            // SAFETY: the caller's promise.
            return unsafe { self.post.submit(batch) };
        }
        let room = self.limit - waiting;
        let mut taken = 0;
        for operation in batch.iter().take(room as usize) {
            match self.post.item(*operation).map(|item| self.items.send(item)) {
                Ok(Ok(())) => taken += 1,
                Ok(Err(_)) if taken == 0 => return Err(self.post.broken()),
                Err(error) if taken == 0 => return Err(error),
                _ => break,
            }
        }
        self.taken += taken as u64;
        Ok(taken)
    }

    fn progress(&mut self) -> Result<u64> {
        self.post.progress()
    }
}
