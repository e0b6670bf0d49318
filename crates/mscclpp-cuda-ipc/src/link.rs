//! A connection: a stream that copies into the peer's mapped memory, and the socket that tells when the peer goes.

use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use mscclpp_core::{
    Error, LinkMonitor, MemoryRegion, Result,
    provider::{Link, Registration, RemoteRegion},
};
use mscclpp_gpu::{Event, Gpu, Stream};
use parking_lot::Mutex;

use crate::{
    env,
    hub::Hub,
    region::{IpcRegion, IpcRegistration},
};

/// How long a link that is dropped waits for copies under way, before it gives up their memory for lost.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct IpcLink {
    gpu: Gpu,
    stream: OnceLock<Stream>,
    flight: Mutex<Flight>,
    monitor: LinkMonitor,
    hub: Arc<Hub>,
    watch: u64,
}

/// What is under way.
///
/// Invariant: every region that a copy not known to be complete touches is in `regions` or `sources`. A stream works in
/// order, so all of them are free once a flush asked for after the last copy is complete. Sources are kept as memory,
/// not as registrations: what is withdrawn must not be exported any longer, least of all under an address that its
/// owner may give to other memory before the next flush.
#[derive(Default)]
struct Flight {
    regions: Vec<Arc<IpcRegion>>,
    sources: Vec<Arc<MemoryRegion>>,
    /// The number of operations so far, and the number at the last completed flush.
    operations: u64,
    requested: u64,
    completed: u64,
    /// Flushes asked for: ticket, operations before it, and the event behind those.
    pending: VecDeque<(u64, u64, Event)>,
    spare: Vec<Event>,
}

impl IpcLink {
    /// `watch` is the hub's watch on the peer, which ends with the link.
    pub(crate) fn new(gpu: Gpu, monitor: LinkMonitor, hub: Arc<Hub>, watch: u64) -> Self {
        Self { gpu, stream: OnceLock::new(), flight: Mutex::default(), monitor, hub, watch }
    }

    /// The stream, made at the first use: links that only kernels use need none.
    fn stream(&self) -> Result<&Stream> {
        if let Some(stream) = self.stream.get() {
            return Ok(stream);
        }
        let stream =
            if env::use_default_stream()? { self.gpu.default_stream()? } else { self.gpu.stream()? };
        Ok(self.stream.get_or_init(|| stream))
    }
}

fn remember<T>(list: &mut Vec<Arc<T>>, item: Arc<T>) {
    if !list.iter().any(|known| Arc::ptr_eq(known, &item)) {
        list.push(item);
    }
}

impl Link for IpcLink {
    fn write(
        &self,
        dst: &Arc<dyn RemoteRegion>,
        dst_offset: u64,
        src: &Arc<dyn Registration>,
        src_offset: u64,
        len: u64,
    ) -> Result<()> {
        self.monitor.check()?;
        let (region, source) = (IpcRegion::of(dst)?, IpcRegistration::of(src)?);
        let Some(base) = region.ptr() else { return Ok(()) };
        let (to, from) = (base.add(dst_offset), source.region().ptr().add(src_offset));
        let stream = self.stream()?;
        let mut flight = self.flight.lock();
        remember(&mut flight.regions, region);
        remember(&mut flight.sources, source.region().clone());
        flight.operations += 1;
        if len > 0 {
            // SAFETY: the caller checked both ranges; `flight` keeps both memories until the copy is complete.
            unsafe { stream.copy(to, from, len)? };
        }
        Ok(())
    }

    fn update(&self, dst: &Arc<dyn RemoteRegion>, dst_offset: u64, value: u64) -> Result<()> {
        self.monitor.check()?;
        let region = IpcRegion::of(dst)?;
        let Some(base) = region.ptr() else { return Ok(()) };
        let to = base.add(dst_offset);
        let stream = self.stream()?;
        let mut flight = self.flight.lock();
        remember(&mut flight.regions, region);
        flight.operations += 1;
        // SAFETY: the caller checked the range; `flight` keeps the memory until the store is complete.
        unsafe { Ok(stream.write_u64(to, value)?) }
    }

    fn flush(&self, timeout: Duration) -> Result<()> {
        let ticket = self.request_flush()?;
        let start = Instant::now();
        let mut polls = 0u32;
        while self.progress()? < ticket {
            self.monitor.check()?;
            if start.elapsed() >= timeout {
                let operation = format!("flush of the connection to {}", self.monitor.label());
                return Err(Error::Timeout { operation, after: timeout });
            }
            polls = polls.saturating_add(1);
            match polls {
                0..1000 => std::hint::spin_loop(),
                1000..2000 => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(50)),
            }
        }
        Ok(())
    }

    fn request_flush(&self) -> Result<u64> {
        self.monitor.check()?;
        let mut flight = self.flight.lock();
        // So that flushes which time out and are repeated do not pile up.
        if let Some((ticket, operations, _)) = flight.pending.back()
            && *operations == flight.operations
        {
            return Ok(*ticket);
        }
        flight.requested += 1;
        let ticket = flight.requested;
        let operations = flight.operations;
        let event = match flight.spare.pop() {
            Some(event) => event,
            None => self.gpu.event(false)?,
        };
        if let Some(stream) = self.stream.get() {
            stream.record(&event)?;
        }
        flight.pending.push_back((ticket, operations, event));
        Ok(ticket)
    }

    fn progress(&self) -> Result<u64> {
        let mut flight = self.flight.lock();
        while let Some((ticket, operations, event)) = flight.pending.front() {
            if !event.query()? {
                break;
            }
            let (ticket, operations) = (*ticket, *operations);
            if let Some((_, _, event)) = flight.pending.pop_front() {
                flight.spare.push(event);
            }
            flight.completed = ticket;
            if operations == flight.operations {
                flight.regions.clear();
                flight.sources.clear();
            }
        }
        Ok(flight.completed)
    }
}

impl Drop for IpcLink {
    fn drop(&mut self) {
        self.hub.unwatch(self.watch);
        let flight = self.flight.get_mut();
        if flight.regions.is_empty() && flight.sources.is_empty() {
            return;
        }
        let Some(stream) = self.stream.get() else { return };
        if let Err(error) = stream.synchronize_timeout(DRAIN_TIMEOUT) {
            tracing::error!(
                target: "mscclpp::conn", %error, peer = %self.monitor.label(),
                "copies of a dropped connection did not finish; their memory is kept for ever"
            );
            std::mem::forget(std::mem::take(&mut flight.regions));
            std::mem::forget(std::mem::take(&mut flight.sources));
        }
    }
}
