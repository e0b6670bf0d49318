//! A transport provider as somebody outside this project would write it: within one process, where every queue has a
//! worker thread that carries bytes from one simulated device's memory to another's.
//!
//! How it keeps a provider's promises:
//! 1. The operations of a queue go to one worker, which carries them out in order; an update is a release store behind
//!    the data.
//! 2. Nothing blocks: orders go through a channel without a limit.
//! 3. An endpoint tells the monitors of all links that lead to it when it closes.

use std::{
    any::Any,
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use mscclpp_core::{
    EndpointConfig, EndpointInfo, Error, LinkMonitor, MemoryRegion, RegionInfo, Result, Transport,
    TransportFlags,
    provider::{Link, LocalEndpoint, Queue, Registration, RemoteRegion, TransportProvider},
};
use mscclpp_gpu::{DevicePtr, Gpu, Platform};

/// How device code may use a peer's memory. All of it works here; less is for tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Not at all, as over a network.
    Nothing,
    /// With loads and stores, as between most PCIe pairs.
    Stores,
    /// With atomics too.
    Atomics,
}

/// The provider. Clones serve each other's endpoints.
#[derive(Clone)]
pub(crate) struct Courier {
    reach: Reach,
    endpoints: Arc<Mutex<HashMap<u64, Weak<Endpoint>>>>,
    held: Arc<AtomicBool>,
}

impl Courier {
    /// The transport it serves.
    pub(crate) const TRANSPORT: Transport = Transport::custom(3);

    pub(crate) fn new(reach: Reach) -> Self {
        Self { reach, endpoints: Arc::default(), held: Arc::default() }
    }

    /// Has the workers of all its queues stop before their next order, or go on.
    #[allow(dead_code, reason = "for tests of what else goes on meanwhile")]
    pub(crate) fn hold(&self, held: bool) {
        self.held.store(held, Ordering::Relaxed);
    }

    fn unreachable<T>(remote: String, reason: &str) -> Result<T> {
        Err(Error::Unreachable {
            local: "this process".to_owned(),
            remote,
            transport: Self::TRANSPORT,
            reason: reason.to_owned(),
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn number(blob: &[u8], what: &'static str) -> Result<u64> {
    blob.try_into().map(u64::from_le_bytes).map_err(|_| Error::Malformed {
        what,
        problem: format!("its courier part has {} bytes, not 8", blob.len()),
    })
}

struct Endpoint {
    blob: [u8; 8],
    /// Of the links that lead here.
    monitors: Mutex<Vec<LinkMonitor>>,
}

impl LocalEndpoint for Endpoint {
    fn blob(&self) -> &[u8] {
        &self.blob
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        for monitor in lock(&self.monitors).drain(..) {
            monitor.closed();
        }
    }
}

/// A region at its owner's, and at the peer's: in one process it is the same.
struct Region {
    region: Arc<MemoryRegion>,
    blob: [u8; 8],
    reach: Reach,
}

impl Registration for Region {
    fn blob(&self) -> &[u8] {
        &self.blob
    }
}

impl RemoteRegion for Region {
    fn ptr(&self) -> Option<DevicePtr> {
        (self.reach != Reach::Nothing).then(|| self.region.ptr())
    }

    fn native_atomics(&self) -> bool {
        self.reach == Reach::Atomics
    }

    /// Of simulated devices: their kernels store a line's flag behind its data.
    fn whole_lines(&self) -> bool {
        self.reach == Reach::Atomics
    }
}

// ANCHOR: provider
impl TransportProvider for Courier {
    fn transports(&self) -> TransportFlags {
        Self::TRANSPORT.into()
    }

    fn open_endpoint(&self, _: &EndpointConfig, gpu: Option<&Gpu>) -> Result<Arc<dyn LocalEndpoint>> {
        if gpu.is_none_or(|gpu| gpu.platform() != Platform::Host) {
            return Err(Error::InvalidArgument("a courier goes between simulated GPUs only".to_owned()));
        }
        let mut endpoints = lock(&self.endpoints);
        endpoints.retain(|_, endpoint| endpoint.strong_count() > 0);
        let id = (0..).find(|id| !endpoints.contains_key(id)).unwrap_or_default();
        let endpoint = Arc::new(Endpoint { blob: id.to_le_bytes(), monitors: Mutex::default() });
        endpoints.insert(id, Arc::downgrade(&endpoint));
        Ok(endpoint)
    }

    fn register(&self, _: Transport, region: &Arc<MemoryRegion>) -> Result<Arc<dyn Registration>> {
        Ok(Arc::new(Region { region: region.clone(), blob: region.id().to_le_bytes(), reach: self.reach }))
    }

    fn import(&self, region: &RegionInfo, _: Option<&Gpu>) -> Result<Arc<dyn RemoteRegion>> {
        let id = number(region.blob, "a registered memory")?;
        match &region.local {
            Some(local) if local.id() == id => {
                Ok(Arc::new(Region { region: local.clone(), blob: id.to_le_bytes(), reach: self.reach }))
            }
            _ => Self::unreachable(format!("region {id}"), "it is not one of this process"),
        }
    }

    fn connect(
        &self,
        _: &Arc<dyn LocalEndpoint>,
        remote: &EndpointInfo,
        monitor: LinkMonitor,
    ) -> Result<Arc<dyn Link>> {
        if !remote.is_in_this_process() || remote.platform != Platform::Host {
            return Self::unreachable(
                remote.to_string(),
                "a courier goes between simulated GPUs of one process only",
            );
        }
        let id = number(&remote.blob, "an endpoint")?;
        match lock(&self.endpoints).get(&id).and_then(Weak::upgrade) {
            Some(endpoint) => lock(&endpoint.monitors).push(monitor),
            None => return Self::unreachable(remote.to_string(), "the endpoint is closed"),
        }
        Ok(Arc::new(CourierLink { held: self.held.clone() }))
    }
}
// ANCHOR_END: provider

/// What a queue's worker is asked to do. It keeps the memories alive until it is done.
enum Order {
    Copy { dst: Arc<MemoryRegion>, dst_offset: u64, src: Arc<MemoryRegion>, src_offset: u64, len: u64 },
    Update { dst: Arc<MemoryRegion>, offset: u64, value: u64 },
}

struct CourierLink {
    held: Arc<AtomicBool>,
}

impl Link for CourierLink {
    fn open_queue(&self) -> Result<Box<dyn Queue>> {
        let (orders, worker) = mpsc::channel();
        let done = Arc::new(AtomicU64::new(0));
        let (count, held) = (done.clone(), self.held.clone());
        // It ends when the queue, which has the only sender, is dropped and everything is carried out.
        let work = move || {
            for order in worker {
                while held.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(1));
                }
                carry_out(&order);
                // The release pairs with the acquire of who looks how far this has come.
                count.fetch_add(1, Ordering::Release);
            }
        };
        thread::Builder::new()
            .name("courier".to_owned())
            .spawn(work)
            .map_err(|e| Error::System { operation: "starting a courier".to_owned(), source: Arc::new(e) })?;
        Ok(Box::new(CourierQueue { orders, given: 0, done }))
    }
}

struct CourierQueue {
    orders: mpsc::Sender<Order>,
    given: u64,
    done: Arc<AtomicU64>,
}

impl CourierQueue {
    fn give(&mut self, order: Order) -> Result<()> {
        self.orders.send(order).map_err(|_| Error::System {
            operation: "giving an order to the courier".to_owned(),
            source: Arc::new(std::io::Error::other("its thread is gone")),
        })?;
        self.given += 1;
        Ok(())
    }
}

fn carry_out(order: &Order) {
    match order {
        Order::Copy { dst, dst_offset, src, src_offset, len } => {
            let (dst, src) = (dst.ptr().add(*dst_offset), src.ptr().add(*src_offset));
            for i in 0..*len {
                // SAFETY: the ranges are inside both regions, which `order` keeps; memory of simulated devices is
                // mapped in this process and accessed with atomics.
                unsafe {
                    let byte = AtomicU8::from_ptr(src.add(i).as_mut_ptr()).load(Ordering::Relaxed);
                    AtomicU8::from_ptr(dst.add(i).as_mut_ptr()).store(byte, Ordering::Relaxed);
                }
            }
        }
        Order::Update { dst, offset, value } => {
            // SAFETY: as above; the core checked that the offset is a multiple of 8, `CourierQueue::update` where the
            // memory starts.
            unsafe { AtomicU64::from_ptr(dst.ptr().add(*offset).as_mut_ptr()) }
                .store(*value, Ordering::Release);
        }
    }
}

fn downcast<'a>(any: &'a dyn Any, what: &str) -> Result<&'a Arc<MemoryRegion>> {
    let region: Option<&Region> = any.downcast_ref();
    region
        .map(|region| &region.region)
        .ok_or_else(|| Error::InvalidArgument(format!("{what} is not the courier's")))
}

impl Queue for CourierQueue {
    fn write(
        &mut self,
        dst: &Arc<dyn RemoteRegion>,
        dst_offset: u64,
        src: &Arc<dyn Registration>,
        src_offset: u64,
        len: u64,
    ) -> Result<()> {
        let (dst, src) = (downcast(&**dst, "the destination")?, downcast(&**src, "the source")?);
        self.give(Order::Copy { dst: dst.clone(), dst_offset, src: src.clone(), src_offset, len })
    }

    fn update(&mut self, dst: &Arc<dyn RemoteRegion>, offset: u64, value: u64) -> Result<()> {
        let dst = downcast(&**dst, "the destination")?;
        if !dst.ptr().0.is_multiple_of(8) {
            return Err(Error::InvalidArgument(format!("{:?} is no multiple of 8", dst.ptr())));
        }
        self.give(Order::Update { dst: dst.clone(), offset, value })
    }

    fn request_flush(&mut self) -> Result<u64> {
        Ok(self.given)
    }

    fn progress(&mut self) -> Result<u64> {
        Ok(self.done.load(Ordering::Acquire))
    }
}
