//! A connection: the socket that shows when the peer goes, and streams that copy into the peer's mapped memory.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use mscclpp_core::{
    Error as CoreError, LinkMonitor, MemoryRegion, Result,
    provider::{Foreign, Link, Memories, Operation, Queue, RemoteRegion, RouteId, Routes},
};
use mscclpp_gpu::{DevicePtr, Event, Gpu, Stream};

use crate::{
    error::Error,
    hub::Hub,
    message::{Name, Token},
    region::{IpcRegion, IpcRegistration},
};

/// How long a dropped queue waits for copies under way, before it gives up their memory for lost.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// The most operations that a queue holds; its endpoint may set a smaller number. A stream has room for about 1024, and
/// calls of the driver wait when it is full. (Queues that copy on one default stream share its room.)
pub(crate) const MAX_WAITING: u64 = 768;

pub(crate) struct IpcLink {
    pub(crate) gpu: Gpu,
    pub(crate) use_default_stream: bool,
    /// The most operations that each queue holds.
    pub(crate) max_waiting: u64,
    pub(crate) monitor: LinkMonitor,
    pub(crate) hub: Arc<Hub>,
    /// The hub's watch on the peer, which ends with the link.
    pub(crate) watch: u64,
    /// The token of this side's endpoint, and the name of the peer's.
    pub(crate) ends: (Token, Name),
}

impl Link for IpcLink {
    fn open_queue(&self) -> Result<Box<dyn Queue>> {
        let stream = if self.use_default_stream { self.gpu.default_stream()? } else { self.gpu.stream()? };
        Ok(Box::new(IpcQueue {
            gpu: self.gpu.clone(),
            stream,
            max_waiting: self.max_waiting,
            monitor: self.monitor.clone(),
            routes: Routes::default(),
            released: Vec::new(),
            operations: 0,
            complete: 0,
            submitted: 0,
            ticket: 0,
            pending: VecDeque::new(),
            spare: Vec::new(),
        }))
    }

    fn tell_failure(&self, reason: &str) {
        let (endpoint, peer) = self.ends;
        self.hub.tell_failure(endpoint, peer, reason.to_owned());
    }
}

impl Drop for IpcLink {
    fn drop(&mut self) {
        self.hub.unwatch(self.watch);
    }
}

/// A stream, and the operations under way on it.
///
/// Invariant: if an operation that is not known to be complete uses a route, the route's memories are in `routes` or
/// `released`. A stream works in order, so a released route is free once a flush that was asked for after its last use
/// is complete. Sources are kept as memory, not as registrations: withdrawn memory must not stay exported, least of all
/// at an address that its owner may give to other memory before the next flush.
struct IpcQueue {
    gpu: Gpu,
    stream: Stream,
    max_waiting: u64,
    monitor: LinkMonitor,
    routes: Routes<IpcRoute>,
    released: Vec<IpcRoute>,
    /// The number of operations so far, and the number of them that are known to be complete.
    operations: u64,
    complete: u64,
    /// The last ticket that was submitted, and the last one that was reached.
    submitted: u64,
    ticket: u64,
    /// The events recorded: the last ticket and the number of operations before each. There is one for each flush, and
    /// a few more show that there is room again.
    pending: VecDeque<(u64, u64, Event)>,
    spare: Vec<Event>,
}

/// The address of a route's destination, and its memories, which it keeps.
struct IpcRoute {
    to: DevicePtr,
    region: Arc<dyn RemoteRegion>,
    source: Option<Arc<MemoryRegion>>,
    /// The number of the last operation that used it.
    last_use: u64,
}

impl IpcRoute {
    /// Whether both routes keep the same memories.
    fn keeps_what(&self, other: &Self) -> bool {
        let source = |route: &Self| route.source.as_ref().map(Arc::as_ptr);
        Arc::ptr_eq(&self.region, &other.region) && source(self) == source(other)
    }
}

fn foreign_route() -> Error {
    Foreign("the route").into()
}

impl IpcQueue {
    /// Returns the route, and notes that the next operation uses it.
    fn used(&mut self, route: RouteId) -> Result<&IpcRoute> {
        let known = self.routes.get_mut(route).ok_or_else(foreign_route)?;
        self.operations += 1;
        known.last_use = self.operations;
        Ok(known)
    }

    /// Starts the first operation of a batch, or the first two if they go together and there is room for both. Returns
    /// how many it started: none if the queue is full.
    ///
    /// # Safety
    /// The same as [`Queue::submit`].
    unsafe fn start(&mut self, batch: &[Operation]) -> Result<usize> {
        if !self.has_room()? {
            return Ok(0);
        }
        match *batch {
            // A signal through a proxy consists of these two operations: one call of the driver starts both.
            [
                Operation::Update { route, offset, value, .. },
                Operation::Complete { word, value: done },
                ..,
            ] if self.operations - self.complete + 1 < self.max_waiting => {
                let to = self.used(route)?.to.add(offset);
                self.operations += 1;
                // SAFETY: the caller has checked the range, whose memory this queue keeps until the store is
                // complete, and promises that the word is valid.
                unsafe { self.stream.write_two_u64([(to, value), (word, done)])? };
                Ok(2)
            }
            [Operation::Write { route, dst_offset, src_offset, len }, ..] => {
                let used = self.used(route)?;
                let from = used.source.as_ref().ok_or_else(foreign_route)?.ptr();
                let (to, from) = (used.to.add(dst_offset), from.add(src_offset));
                if len > 0 {
                    // SAFETY: the caller checked both ranges; this queue keeps both memories until the copy is complete.
                    unsafe { self.stream.copy(to, from, len)? };
                }
                Ok(1)
            }
            [Operation::Update { route, offset, value, .. }, ..] => {
                let to = self.used(route)?.to.add(offset);
                // SAFETY: as above.
                unsafe { self.stream.write_u64(to, value)? };
                Ok(1)
            }
            [Operation::Complete { word, value }, ..] => {
                self.operations += 1;
                // SAFETY: the caller promises that the word is valid; the stream stores after all earlier operations.
                unsafe { self.stream.write_u64(word, value)? };
                Ok(1)
            }
            [Operation::Flush { ticket }, ..] => {
                self.operations += 1;
                self.submitted = ticket;
                self.record()?;
                Ok(1)
            }
            [operation, ..] => {
                Err(CoreError::InvalidArgument(format!("CudaIpc does not know {operation:?}")))
            }
            [] => Ok(0),
        }
    }

    /// Whether there is room for one more operation.
    fn has_room(&mut self) -> Result<bool> {
        let recorded = self.pending.back().map_or(self.complete, |(_, operations, _)| *operations);
        // If nobody flushes, these events show how far the stream is. There are several, so that a full queue has room
        // before the stream is empty.
        if self.operations - recorded >= self.max_waiting.div_ceil(4) {
            self.record()?;
        }
        if self.operations - self.complete >= self.max_waiting {
            self.progress()?;
        }
        Ok(self.operations - self.complete < self.max_waiting)
    }

    /// Records an event after all operations so far.
    fn record(&mut self) -> Result<()> {
        let event = match self.spare.pop() {
            Some(event) => event,
            None => self.gpu.event(false)?,
        };
        self.stream.record(&event)?;
        self.pending.push_back((self.submitted, self.operations, event));
        Ok(())
    }
}

impl Queue for IpcQueue {
    fn prepare(&mut self, route: RouteId, memories: Memories<'_>) -> Result<()> {
        let (to, src) = memories.own::<IpcRegion, IpcRegistration>().map_err(Error::from)?;
        let source = src.map(|src| src.region().clone());
        self.routes
            .insert(route, IpcRoute { to: to.address(), region: memories.dst.clone(), source, last_use: 0 });
        Ok(())
    }

    fn release(&mut self, route: RouteId) {
        let Some(released) = self.routes.remove(route) else { return };
        if released.last_use <= self.complete {
            return;
        }
        // With this, a thousand writes between the same memories without a flush keep the memories once.
        match self.released.iter_mut().find(|known| known.keeps_what(&released)) {
            Some(known) => known.last_use = released.last_use,
            None => self.released.push(released),
        }
    }

    unsafe fn submit(&mut self, batch: &[Operation]) -> Result<usize> {
        let mut taken = 0;
        while taken < batch.len() {
            // SAFETY: the caller's promise is passed on.
            match unsafe { self.start(&batch[taken..]) } {
                Ok(0) => break,
                Ok(started) => taken += started,
                Err(error) if taken == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(taken)
    }

    fn stores_completions(&self) -> bool {
        true
    }

    fn progress(&mut self) -> Result<u64> {
        while let Some((ticket, operations, event)) = self.pending.front() {
            if !event.query()? {
                break;
            }
            (self.ticket, self.complete) = (*ticket, *operations);
            if let Some((_, _, event)) = self.pending.pop_front() {
                self.spare.push(event);
            }
            self.released.retain(|route| route.last_use > self.complete);
        }
        Ok(self.ticket)
    }
}

/// Waits until everything submitted to `stream` is complete, or returns the reason why it is not.
fn drain(stream: &Stream) -> std::result::Result<(), String> {
    // The stream is not synchronised: on the default stream, that would report failures of the user's kernels.
    match stream.query_timeout(DRAIN_TIMEOUT) {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!("it takes longer than {DRAIN_TIMEOUT:?}")),
        Err(error) => Err(error.to_string()),
    }
}

impl Drop for IpcQueue {
    fn drop(&mut self) {
        if self.complete == self.operations {
            return;
        }
        let Err(error) = drain(&self.stream) else { return };
        tracing::error!(
            target: "mscclpp::conn", error, peer = %self.monitor.label(),
            "copies of a dropped connection did not finish; their memory is kept for ever"
        );
        std::mem::forget(std::mem::take(&mut self.routes));
        std::mem::forget(std::mem::take(&mut self.released));
    }
}

#[cfg(test)]
mod tests {
    use mscclpp_gpu::{KernelArgs, KernelObject, KernelSource, LaunchConfig, Module, Platform};

    use super::*;

    /// An object through which waits have failed.
    struct Lost;

    impl KernelObject for Lost {
        fn may_have_failed(&self) -> bool {
            true
        }

        fn check(&self) -> mscclpp_gpu::Result<()> {
            Err(mscclpp_gpu::Error::InvalidArgument("lost rank 2".to_owned()))
        }
    }

    #[test]
    fn a_queue_that_is_dropped_leaves_the_failures_of_the_default_stream_to_its_user() {
        let gpu = Platform::Sim.gpu(0).unwrap();
        let stream = gpu.default_stream().unwrap();
        let source = KernelSource::new("nothing.cu", "extern \"C\" __global__ void nothing() {}");
        let kernel = Module::load(&gpu, &source).unwrap().kernel("nothing").unwrap();
        let args = KernelArgs::new().with_owner(Arc::new(Lost));
        // SAFETY: the kernel has no arguments.
        unsafe { kernel.launch(&stream, LaunchConfig::linear(1, 1), &args) }.unwrap();
        drain(&stream).unwrap();
        let told = stream.synchronize();
        assert!(matches!(&told, Err(error) if error.to_string().contains("lost rank 2")), "{told:?}");
    }
}
