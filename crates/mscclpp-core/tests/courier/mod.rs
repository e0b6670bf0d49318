//! A transport provider as somebody outside this project would write it: within one process, where every link has a
//! worker thread that carries bytes from one simulated device's memory to another's.
//!
//! How it keeps a provider's promises:
//! 1. A link's operations go through one queue to one worker, so they take effect in order; an update is a release
//!    store behind the data.
//! 2. Queueing never blocks; a flush waits on a condition variable with a deadline.
//! 3. An endpoint tells the monitors of all links that lead to it when it closes.

use std::{
    any::Any,
    collections::HashMap,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU8, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use mscclpp_core::{
    EndpointConfig, EndpointInfo, Error, LinkMonitor, MemoryRegion, RegionInfo, Result, Transport,
    TransportFlags,
    provider::{Link, LocalEndpoint, Registration, RemoteRegion, TransportProvider},
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
}

impl Courier {
    /// The transport it serves.
    pub(crate) const TRANSPORT: Transport = Transport::custom(3);

    pub(crate) fn new(reach: Reach) -> Self {
        Self { reach, endpoints: Arc::default() }
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
        Ok(Arc::new(CourierLink::start()?))
    }
}
// ANCHOR_END: provider

/// What a link's worker is asked to do. It keeps the memories alive until it is done.
enum Order {
    Copy { dst: Arc<MemoryRegion>, dst_offset: u64, src: Arc<MemoryRegion>, src_offset: u64, len: u64 },
    Update { dst: Arc<MemoryRegion>, offset: u64, value: u64 },
}

struct CourierLink {
    /// The queue to the worker, and how many orders went into it.
    queue: Mutex<(mpsc::Sender<Order>, u64)>,
    done: Arc<Done>,
}

/// How many orders are carried out, or none if the worker is gone.
#[derive(Default)]
struct Done {
    count: Mutex<u64>,
    changed: Condvar,
}

impl CourierLink {
    fn start() -> Result<Self> {
        let (sender, orders) = mpsc::channel();
        let done = Arc::new(Done::default());
        let worker = done.clone();
        // It ends when the link, which holds the only sender, is dropped and the queue is empty.
        thread::Builder::new().name("courier".to_owned()).spawn(move || work(&orders, &worker)).map_err(
            |e| Error::System { operation: "starting a courier".to_owned(), message: e.to_string() },
        )?;
        Ok(Self { queue: Mutex::new((sender, 0)), done })
    }

    fn send(&self, order: Order) -> Result<()> {
        let mut queue = lock(&self.queue);
        queue.0.send(order).map_err(|_| Error::System {
            operation: "giving an order to the courier".to_owned(),
            message: "its thread is gone".to_owned(),
        })?;
        queue.1 += 1;
        Ok(())
    }
}

fn work(orders: &mpsc::Receiver<Order>, done: &Done) {
    for order in orders {
        carry_out(&order);
        *lock(&done.count) += 1;
        done.changed.notify_all();
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
            // SAFETY: as above; the core checked that the offset is a multiple of 8, `CourierLink::update` where the
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

impl Link for CourierLink {
    fn write(
        &self,
        dst: &Arc<dyn RemoteRegion>,
        dst_offset: u64,
        src: &Arc<dyn Registration>,
        src_offset: u64,
        len: u64,
    ) -> Result<()> {
        let (dst, src) = (downcast(&**dst, "the destination")?, downcast(&**src, "the source")?);
        self.send(Order::Copy { dst: dst.clone(), dst_offset, src: src.clone(), src_offset, len })
    }

    fn update(&self, dst: &Arc<dyn RemoteRegion>, offset: u64, value: u64) -> Result<()> {
        let dst = downcast(&**dst, "the destination")?;
        if !dst.ptr().0.is_multiple_of(8) {
            return Err(Error::InvalidArgument(format!("{:?} is no multiple of 8", dst.ptr())));
        }
        self.send(Order::Update { dst: dst.clone(), offset, value })
    }

    fn flush(&self, timeout: Duration) -> Result<()> {
        let (ticket, deadline) = (self.request_flush()?, Instant::now() + timeout);
        let mut count = lock(&self.done.count);
        while *count < ticket {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::Timeout { operation: "a courier's flush".to_owned(), after: timeout });
            }
            count = self.done.changed.wait_timeout(count, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    fn request_flush(&self) -> Result<u64> {
        Ok(lock(&self.queue).1)
    }

    fn progress(&self) -> Result<u64> {
        Ok(*lock(&self.done.count))
    }
}
