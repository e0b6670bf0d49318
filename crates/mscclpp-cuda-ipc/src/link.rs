//! A connection: the socket that tells when the peer goes, and streams that copy into the peer's mapped memory.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use mscclpp_core::{
    LinkMonitor, MemoryRegion, Result,
    provider::{Link, Queue, Registration, RemoteRegion},
};
use mscclpp_gpu::{DevicePtr, Event, Gpu, Stream};

use crate::{
    hub::Hub,
    region::{IpcRegion, IpcRegistration},
};

/// How long a queue that is dropped waits for copies under way, before it gives up their memory for lost.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct IpcLink {
    gpu: Gpu,
    use_default_stream: bool,
    monitor: LinkMonitor,
    hub: Arc<Hub>,
    watch: u64,
}

impl IpcLink {
    /// `watch` is the hub's watch on the peer, which ends with the link.
    pub(crate) fn new(
        gpu: Gpu,
        use_default_stream: bool,
        monitor: LinkMonitor,
        hub: Arc<Hub>,
        watch: u64,
    ) -> Self {
        Self { gpu, use_default_stream, monitor, hub, watch }
    }
}

impl Link for IpcLink {
    fn open_queue(&self) -> Result<Box<dyn Queue>> {
        let stream = if self.use_default_stream { self.gpu.default_stream()? } else { self.gpu.stream()? };
        Ok(Box::new(IpcQueue {
            gpu: self.gpu.clone(),
            stream,
            monitor: self.monitor.clone(),
            regions: Vec::new(),
            sources: Vec::new(),
            operations: 0,
            requested: 0,
            completed: 0,
            pending: VecDeque::new(),
            spare: Vec::new(),
        }))
    }
}

impl Drop for IpcLink {
    fn drop(&mut self) {
        self.hub.unwatch(self.watch);
    }
}

/// A stream, and what is under way on it.
///
/// Invariant: every region that a copy not known to be complete touches is in `regions` or `sources`. A stream works in
/// order, so all of them are free once a flush asked for after the last copy is complete. Sources are kept as memory,
/// not as registrations: what is withdrawn must not be exported any longer, least of all under an address that its
/// owner may give to other memory before the next flush.
struct IpcQueue {
    gpu: Gpu,
    stream: Stream,
    monitor: LinkMonitor,
    regions: Vec<Arc<dyn RemoteRegion>>,
    sources: Vec<Arc<MemoryRegion>>,
    /// How many operations there have been.
    operations: u64,
    requested: u64,
    completed: u64,
    /// Flushes asked for: ticket, operations before it, and the event behind those.
    pending: VecDeque<(u64, u64, Event)>,
    spare: Vec<Event>,
}

fn remember<T: ?Sized>(list: &mut Vec<Arc<T>>, item: &Arc<T>) {
    if !list.iter().any(|known| Arc::ptr_eq(known, item)) {
        list.push(item.clone());
    }
}

impl Queue for IpcQueue {
    fn write(
        &mut self,
        dst: &Arc<dyn RemoteRegion>,
        dst_offset: u64,
        src: &Arc<dyn Registration>,
        src_offset: u64,
        len: u64,
    ) -> Result<()> {
        let (region, source) = (IpcRegion::of(&**dst)?, IpcRegistration::of(&**src)?.region());
        let (to, from) = (region.address().add(dst_offset), source.ptr().add(src_offset));
        remember(&mut self.regions, dst);
        remember(&mut self.sources, source);
        self.operations += 1;
        if len > 0 {
            // SAFETY: the caller checked both ranges; this queue keeps both memories until the copy is complete.
            unsafe { self.stream.copy(to, from, len)? };
        }
        Ok(())
    }

    fn update(&mut self, dst: &Arc<dyn RemoteRegion>, dst_offset: u64, value: u64) -> Result<()> {
        let to = IpcRegion::of(&**dst)?.address().add(dst_offset);
        remember(&mut self.regions, dst);
        self.operations += 1;
        // SAFETY: the caller checked the range; this queue keeps the memory until the store is complete.
        unsafe { Ok(self.stream.write_u64(to, value)?) }
    }

    unsafe fn store_when_complete(&mut self, word: DevicePtr, value: u64) -> Result<()> {
        // Counted, so that a flush asked for before it does not pass for one asked for after it.
        self.operations += 1;
        // SAFETY: the caller's promise; the stream does it behind all earlier operations.
        unsafe { Ok(self.stream.write_u64(word, value)?) }
    }

    unsafe fn update_and_store(
        &mut self,
        dst: &Arc<dyn RemoteRegion>,
        dst_offset: u64,
        value: u64,
        word: DevicePtr,
        done: u64,
    ) -> Result<()> {
        let to = IpcRegion::of(&**dst)?.address().add(dst_offset);
        remember(&mut self.regions, dst);
        self.operations += 2;
        // SAFETY: the caller checked the range, whose memory this queue keeps until the store is complete, and promises
        // the word.
        unsafe { Ok(self.stream.write_two_u64([(to, value), (word, done)])?) }
    }

    fn stores_completions(&self) -> bool {
        true
    }

    fn request_flush(&mut self) -> Result<u64> {
        // So that flushes which time out and are repeated do not pile up.
        if let Some((ticket, operations, _)) = self.pending.back()
            && *operations == self.operations
        {
            return Ok(*ticket);
        }
        let event = match self.spare.pop() {
            Some(event) => event,
            None => self.gpu.event(false)?,
        };
        self.stream.record(&event)?;
        self.requested += 1;
        self.pending.push_back((self.requested, self.operations, event));
        Ok(self.requested)
    }

    fn progress(&mut self) -> Result<u64> {
        while let Some((ticket, operations, event)) = self.pending.front() {
            if !event.query()? {
                break;
            }
            self.completed = *ticket;
            if *operations == self.operations {
                self.regions.clear();
                self.sources.clear();
            }
            if let Some((_, _, event)) = self.pending.pop_front() {
                self.spare.push(event);
            }
        }
        Ok(self.completed)
    }
}

impl Drop for IpcQueue {
    fn drop(&mut self) {
        if self.regions.is_empty() && self.sources.is_empty() {
            return;
        }
        if let Err(error) = self.stream.synchronize_timeout(DRAIN_TIMEOUT) {
            tracing::error!(
                target: "mscclpp::conn", %error, peer = %self.monitor.label(),
                "copies of a dropped connection did not finish; their memory is kept for ever"
            );
            std::mem::forget(std::mem::take(&mut self.regions));
            std::mem::forget(std::mem::take(&mut self.sources));
        }
    }
}
