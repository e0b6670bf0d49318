//! What the bookkeeping of launches asks of a stream.

use std::{ffi::c_void, ptr, sync::atomic::Ordering};

use mscclpp_gpu_sys::hip::{
    CAPTURE_STATUS_ACTIVE, CAPTURE_STATUS_NONE, GRAPH_USER_OBJECT_MOVE, Graph, Hip, HipResult, Stream,
    USER_OBJECT_NO_DESTRUCTOR_SYNC,
};

use super::{
    event::HipEvent,
    failure::{forget, log_failure},
    stream::HipStream,
};
use crate::{
    Result,
    driver::{DriverStream, captures::CaptureId, foreign::ForeignStream, in_use::InUse},
};

impl ForeignStream for HipStream {
    fn uses(&self) -> &InUse<HipEvent> {
        &self.in_use
    }
}

impl DriverStream for HipStream {
    type Event = HipEvent;
    type Graph = Graph;

    fn device_id(&self) -> usize {
        self.device.id()
    }

    fn new_event(&self) -> Result<HipEvent> {
        HipEvent::create(self.device, false)
    }

    fn record_event(&self, event: &HipEvent) -> Result<()> {
        // SAFETY: both live.
        self.submit("hipEventRecord", |hip| unsafe { (hip.event_record)(event.raw(), self.raw) })
    }

    fn is_capturing(&self) -> Result<bool> {
        let mut status = 0;
        // SAFETY: the stream lives; `status` is valid for the write.
        self.submit("hipStreamIsCapturing", |hip| unsafe {
            (hip.stream_is_capturing)(self.raw, &raw mut status)
        })?;
        Ok(status != CAPTURE_STATUS_NONE)
    }

    fn may_be_captured(&self) -> bool {
        // Whoever captures it was given its handle, or has made it wait for an event, before this launch.
        self.is_known.load(Ordering::Relaxed)
    }

    fn capture(&self) -> Option<(CaptureId, Graph)> {
        let _bound = self.device.ordinal().bind().ok()?;
        // SAFETY: the stream lives.
        unsafe { capture_of(self.device.hip(), self.raw) }
    }

    unsafe fn give_to_graph(
        &self,
        graph: Graph,
        held: *mut c_void,
        released: unsafe extern "C" fn(*mut c_void),
    ) {
        let hip = self.device.hip();
        let flags = USER_OBJECT_NO_DESTRUCTOR_SYNC;
        let mut object = ptr::null_mut();
        // SAFETY: `object` is valid for the write; the rest is the caller's promise.
        let result = unsafe { (hip.user_object_create)(&raw mut object, held, Some(released), 1, flags) };
        log_failure(hip, result, "hipUserObjectCreate (a graph of others keeps nothing alive)");
        if result != HipResult::SUCCESS {
            // SAFETY: the runtime has not taken it.
            return unsafe { released(held) };
        }
        // SAFETY: the graph is that of a capture in progress; the one reference is given to it.
        let result = unsafe { (hip.graph_retain_user_object)(graph, object, 1, GRAPH_USER_OBJECT_MOVE) };
        log_failure(hip, result, "hipGraphRetainUserObject (a graph of others keeps nothing alive)");
        if result != HipResult::SUCCESS {
            // SAFETY: the reference is still ours. The runtime calls `released`.
            log_failure(hip, unsafe { (hip.user_object_release)(object, 1) }, "hipUserObjectRelease");
        }
    }

    fn is_idle(&self) -> bool {
        let Ok(_entered) = self.device.ordinal().enter() else { return false };
        let hip = self.device.hip();
        // SAFETY: the stream lives.
        let idle = unsafe { (hip.stream_query)(self.raw) == HipResult::SUCCESS };
        if !idle {
            forget(hip);
        }
        idle
    }
}

/// The capture that the stream is part of, and its graph.
///
/// # Safety
/// `raw` is a live stream, and its device is the thread's.
pub(super) unsafe fn capture_of(hip: &Hip, raw: Stream) -> Option<(CaptureId, Graph)> {
    let (mut status, mut id, mut graph, none) = (0, 0, ptr::null_mut(), ptr::null_mut());
    let ask = hip.stream_get_capture_info;
    // SAFETY: the caller's promise; what is asked for is valid for the write, and the dependencies are not asked for.
    let result = unsafe { ask(raw, &raw mut status, &raw mut id, &raw mut graph, none, ptr::null_mut()) };
    if result != HipResult::SUCCESS {
        forget(hip);
    }
    (result == HipResult::SUCCESS && status == CAPTURE_STATUS_ACTIVE).then_some((id, graph))
}
