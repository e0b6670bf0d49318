use std::{
    any::Any,
    ffi::c_void,
    ptr,
    sync::Arc,
    thread::{self, JoinHandle},
};

use parking_lot::Mutex;

use super::{
    event::SimEvent,
    queue::{Op, Queue},
    ranges::refuse_overrun,
};
use crate::{
    DevicePtr, Error, Owner, Result,
    backend::{EventBackend, GraphBackend, StreamBackend},
    failed::Untold,
};

/// A queue and its worker thread (invariant 3).
pub(super) struct SimStream {
    queue: Arc<Queue>,
    worker: Option<JoinHandle<()>>,
}

impl SimStream {
    pub(super) fn start(device: usize, failed_of_device: Arc<Mutex<Untold>>) -> Result<Self> {
        let queue = Arc::new(Queue::new(device));
        let worker = thread::Builder::new()
            .name("mscclpp-sim-stream".to_owned())
            .spawn({
                let queue = Arc::clone(&queue);
                move || queue.work(&failed_of_device)
            })
            .map_err(|e| Error::system("starting the thread of a simulated stream", e))?;
        Ok(Self { queue, worker: Some(worker) })
    }

    pub(super) fn of(backend: &dyn StreamBackend) -> Result<&Self> {
        (backend as &dyn Any)
            .downcast_ref()
            .ok_or_else(|| Error::invalid("work of the simulated platform was given a stream of another"))
    }

    pub(super) fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }
}

impl StreamBackend for SimStream {
    fn raw(&self) -> *mut c_void {
        ptr::null_mut()
    }

    fn synchronize(&self) -> Result<()> {
        self.queue.synchronize()
    }

    fn query(&self) -> Result<bool> {
        self.queue.is_complete()
    }

    fn in_use(&self) -> Vec<Owner> {
        self.queue.in_use()
    }

    fn take_failed(&self) -> Vec<Owner> {
        self.queue.take_failed()
    }

    unsafe fn copy(&self, dst: DevicePtr, src: DevicePtr, bytes: u64) -> Result<()> {
        refuse_overrun("Stream::copy, the destination", dst, bytes)?;
        refuse_overrun("Stream::copy, the source", src, bytes)?;
        self.queue.submit(Op::Copy { dst, src, bytes })
    }

    unsafe fn fill(&self, dst: DevicePtr, bytes: u64, value: u8) -> Result<()> {
        refuse_overrun("Stream::fill", dst, bytes)?;
        self.queue.submit(Op::Fill { dst, bytes, value })
    }

    unsafe fn write_u64(&self, dst: DevicePtr, value: u64) -> Result<()> {
        refuse_overrun("Stream::write_u64", dst, 8)?;
        self.queue.submit(Op::WriteU64 { dst, value })
    }

    fn record(&self, event: &Arc<dyn EventBackend>) -> Result<()> {
        SimEvent::of(&**event)?.record(&self.queue)
    }

    fn wait_event(&self, event: &Arc<dyn EventBackend>) -> Result<()> {
        SimEvent::of(&**event)?.wait_on(&self.queue)
    }

    fn is_being_captured(&self) -> Result<bool> {
        Ok(self.queue.is_capturing())
    }

    fn capture_id(&self) -> Result<Option<u64>> {
        Ok(self.queue.capture_id())
    }

    fn begin_capture(&self) -> Result<()> {
        self.queue.begin_capture()
    }

    fn end_capture(&self) -> Result<Arc<dyn GraphBackend>> {
        Ok(Arc::new(SimGraph { ops: self.queue.end_capture()?.into() }))
    }
}

impl Drop for SimStream {
    /// Closes the queue. As on CUDA, queued work is still done, and this does not wait for it: with nothing queued the
    /// worker ends at once and is joined, else it ends by itself.
    fn drop(&mut self) {
        let idle = self.queue.close();
        if let Some(worker) = self.worker.take().filter(|_| idle)
            && worker.join().is_err()
        {
            tracing::warn!(target: "mscclpp::gpu", "the worker of a simulated stream panicked");
        }
    }
}

/// Captured operations, in their order.
struct SimGraph {
    ops: Arc<[Op]>,
}

impl GraphBackend for SimGraph {
    unsafe fn launch(&self, stream: &dyn StreamBackend) -> Result<()> {
        SimStream::of(stream)?.queue.submit(Op::Graph(Arc::clone(&self.ops)))
    }
}
