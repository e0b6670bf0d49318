//! What the bookkeeping of launches asks of a stream.

use std::{ffi::c_void, ptr, sync::atomic::Ordering};

use mscclpp_gpu_sys::cuda::{
    CUgraph, CUstream, CUstreamCaptureStatus, CUuserObject_flags, CUuserObjectRetain_flags, CuResult, Driver,
};

use super::{event::CudaEvent, failure::log_failure, stream::CudaStream};
use crate::{
    Result,
    driver::{DriverStream, captures::CaptureId, foreign::ForeignStream, in_use::InUse},
};

impl ForeignStream for CudaStream {
    fn uses(&self) -> &InUse<CudaEvent> {
        &self.in_use
    }
}

impl DriverStream for CudaStream {
    type Event = CudaEvent;
    type Graph = CUgraph;

    fn device_id(&self) -> usize {
        self.device.id()
    }

    fn new_event(&self) -> Result<CudaEvent> {
        CudaEvent::create(self.device, false)
    }

    fn record_event(&self, event: &CudaEvent) -> Result<()> {
        // SAFETY: both live.
        self.submit("cuEventRecord", |driver| unsafe { (driver.event_record)(event.raw(), self.raw) })
    }

    fn is_capturing(&self) -> Result<bool> {
        let mut status = 0;
        // SAFETY: the stream lives; `status` is valid for the write.
        self.submit("cuStreamIsCapturing", |driver| unsafe {
            (driver.stream_is_capturing)(self.raw, &raw mut status)
        })?;
        Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as u32)
    }

    fn may_be_captured(&self) -> bool {
        // Whoever captures it was given its handle, or has made it wait for an event, before this launch.
        self.is_known.load(Ordering::Relaxed)
    }

    fn capture(&self) -> Option<(CaptureId, CUgraph)> {
        let _bound = self.device.context().bind().ok()?;
        // SAFETY: the stream lives.
        unsafe { capture_of(self.device.driver(), self.raw) }
    }

    unsafe fn give_to_graph(
        &self,
        graph: CUgraph,
        held: *mut c_void,
        released: unsafe extern "C" fn(*mut c_void),
    ) {
        let driver = self.device.driver();
        // The only value: nobody waits for the call of `released`.
        let flags = CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as u32;
        let mut object = ptr::null_mut();
        // SAFETY: `object` is valid for the write; the rest is the caller's promise.
        let result = unsafe { (driver.user_object_create)(&raw mut object, held, Some(released), 1, flags) };
        log_failure(driver, result, "cuUserObjectCreate (a graph of others keeps nothing alive)");
        if result != CuResult::SUCCESS {
            // SAFETY: the driver has not taken it.
            return unsafe { released(held) };
        }
        let flags = CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE as u32;
        // SAFETY: the graph is that of a capture in progress; the one reference is given to it.
        let result = unsafe { (driver.graph_retain_user_object)(graph, object, 1, flags) };
        log_failure(driver, result, "cuGraphRetainUserObject (a graph of others keeps nothing alive)");
        if result != CuResult::SUCCESS {
            // SAFETY: the reference is still ours. The driver calls `released`.
            log_failure(driver, unsafe { (driver.user_object_release)(object, 1) }, "cuUserObjectRelease");
        }
    }

    fn is_idle(&self) -> bool {
        let Ok(_entered) = self.device.context().enter() else { return false };
        // SAFETY: the stream lives.
        unsafe { (self.device.driver().stream_query)(self.raw) == CuResult::SUCCESS }
    }
}

/// The capture that the stream is part of, and its graph.
///
/// # Safety
/// `raw` is a live stream, and the primary context of its device is current.
pub(super) unsafe fn capture_of(driver: &Driver, raw: CUstream) -> Option<(CaptureId, CUgraph)> {
    let (mut status, mut id, mut graph, none) = (0, 0, ptr::null_mut(), ptr::null_mut());
    let ask = driver.stream_get_capture_info;
    // SAFETY: the caller's promise; what is asked for is valid for the write, and the dependencies are not asked for.
    let result = unsafe { ask(raw, &raw mut status, &raw mut id, &raw mut graph, none, ptr::null_mut()) };
    let is_active = status == CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE as u32;
    (result == CuResult::SUCCESS && is_active).then_some((id, graph))
}
