//! The functions of a stream that the bookkeeping of launches needs.

use std::{ffi::c_void, ptr, sync::atomic::Ordering};

use mscclpp_gpu_sys::{
    CAPTURE_STATUS_ACTIVE, CAPTURE_STATUS_NONE, Code, Entry, GRAPH_USER_OBJECT_MOVE,
    USER_OBJECT_NO_DESTRUCTOR_SYNC,
};

use super::{
    DriverStream, api::Api, captures::CaptureId, context::Context, event::Event, failure::log_failure,
    in_use::InUse, stream::Stream,
};
use crate::Result;

impl<D: Api> DriverStream for Stream<D> {
    type Event = Event<D>;
    type Graph = *mut D::Graph;

    fn uses(&self) -> &InUse<Event<D>> {
        &self.in_use
    }

    fn device_id(&self) -> usize {
        self.device.properties.id
    }

    fn new_event(&self) -> Result<Event<D>> {
        Event::create(self.device, false)
    }

    fn record_event(&self, event: &Event<D>) -> Result<()> {
        // SAFETY: both live.
        self.call(&self.device.functions().event_record, |record| unsafe {
            record(event.handle(), self.handle())
        })
    }

    fn is_of_a_thread(&self) -> bool {
        self.thread.is_some()
    }

    fn is_capturing(&self) -> Result<bool> {
        let mut status = 0;
        // SAFETY: the stream lives; `status` is valid for the write.
        self.call(&self.device.functions().stream_is_capturing, |ask| unsafe {
            ask(self.handle(), &raw mut status)
        })?;
        Ok(status != CAPTURE_STATUS_NONE)
    }

    fn may_be_captured(&self) -> bool {
        // Whoever captures it was given its handle, or has made it wait for an event, before this launch.
        self.is_known.load(Ordering::Relaxed)
    }

    fn capture(&self) -> Option<(CaptureId, *mut D::Graph)> {
        self.check_thread().ok()?;
        let _bound = self.device.context.bind().ok()?;
        // SAFETY: the stream lives.
        unsafe { capture_of(&self.device.context, self.handle()) }
    }

    unsafe fn give_to_graph(
        &self,
        graph: *mut D::Graph,
        held: *mut c_void,
        released: unsafe extern "C" fn(*mut c_void),
    ) {
        const LOST: &str = "(a graph of others keeps nothing alive)";
        let (driver, functions) = (self.device.driver(), self.device.functions());
        let Entry(name, create) = functions.user_object_create;
        // The only value: nobody waits for the call of `released`.
        let flags = USER_OBJECT_NO_DESTRUCTOR_SYNC;
        let mut object = ptr::null_mut();
        // SAFETY: `object` is valid for the write; the rest is the caller's promise.
        let result = unsafe { create(&raw mut object, held, Some(released), 1, flags) };
        log_failure(driver, result, format_args!("{name} {LOST}"));
        if result != D::Code::SUCCESS {
            // SAFETY: the driver has not taken it.
            return unsafe { released(held) };
        }
        let Entry(name, retain) = functions.graph_retain_user_object;
        // SAFETY: the graph is that of a capture in progress; the one reference is given to it.
        let result = unsafe { retain(graph, object, 1, GRAPH_USER_OBJECT_MOVE) };
        log_failure(driver, result, format_args!("{name} {LOST}"));
        if result != D::Code::SUCCESS {
            let Entry(name, release) = functions.user_object_release;
            // SAFETY: the reference is still ours. The driver calls `released`.
            log_failure(driver, unsafe { release(object, 1) }, name);
        }
    }

    fn is_idle(&self) -> bool {
        if self.check_thread().is_err() {
            return false;
        }
        let Ok(_entered) = self.device.context.enter() else { return false };
        // SAFETY: the stream lives.
        let idle = unsafe { (self.device.functions().stream_query.1)(self.handle()) } == D::Code::SUCCESS;
        if !idle {
            self.device.driver().forget();
        }
        idle
    }
}

/// The capture that the stream is part of, and its graph.
///
/// # Safety
/// `raw` is a live stream, and its device is the thread's.
pub(super) unsafe fn capture_of<D: Api>(
    context: &Context<D>,
    raw: *mut D::Stream,
) -> Option<(CaptureId, *mut D::Graph)> {
    let (mut status, mut id, mut graph) = (CAPTURE_STATUS_NONE, 0, ptr::null_mut());
    let (ask, none) = (context.functions.stream_get_capture_info.1, ptr::null_mut());
    // SAFETY: the caller's promise; what is asked for is valid for the write, and the dependencies are not asked for.
    let result = unsafe { ask(raw, &raw mut status, &raw mut id, &raw mut graph, none, ptr::null_mut()) };
    if result != D::Code::SUCCESS {
        context.driver.forget();
        return None;
    }
    (status == CAPTURE_STATUS_ACTIVE).then_some((id, graph))
}
