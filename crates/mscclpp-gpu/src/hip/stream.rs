use std::{
    any::Any,
    ffi::c_void,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use mscclpp_gpu_sys::hip::{
    CAPTURE_MODE_THREAD_LOCAL, Hip, HipResult, MEMCPY_DEFAULT, STREAM_NON_BLOCKING, Stream,
};
use parking_lot::Mutex;

use super::{
    bookkeeping::capture_of,
    device::Device,
    event::{HipEvent, event_of},
    failure::{check, failure, forget, log_failure},
    graph::HipGraph,
};
use crate::{
    DevicePtr, Error, Owner, Result,
    backend::{EventBackend, GraphBackend, StreamBackend},
    driver::{
        DriverStream,
        captures::{CaptureId, Captures, Given},
        foreign::Number,
        in_use::InUse,
    },
};

/// Of the process: a capture may span devices.
pub(super) static CAPTURES: Captures = Captures::new();

pub(super) struct HipStream {
    pub(super) device: &'static Device,
    pub(super) raw: Stream,
    owned: bool,
    pub(super) in_use: InUse<HipEvent>,
    /// Whether others have its handle, or it waited for an event: they may capture it.
    pub(super) is_known: AtomicBool,
    /// The capture that was begun through this value and has not been ended through it.
    capture: Mutex<Option<CaptureId>>,
    given: Mutex<Given>,
}

// SAFETY: HIP's functions may be called with a stream from any thread; `raw` is never dereferenced here.
unsafe impl Send for HipStream {}
// SAFETY: as above.
unsafe impl Sync for HipStream {}

/// `hipStreamLegacy`, the default stream, as null is.
const LEGACY_HANDLE: usize = 1;
/// `hipStreamLegacy` and `hipStreamPerThread` are handles too, of whatever device is the thread's.
const LAST_SPECIAL_HANDLE: usize = 2;

impl HipStream {
    /// A non-blocking stream of the thread's device, owned by nobody.
    pub(super) fn create_raw(hip: &Hip) -> Result<Stream> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is valid for the write; the caller made a device the thread's.
        let result = unsafe { (hip.stream_create_with_flags)(&raw mut raw, STREAM_NON_BLOCKING) };
        check(hip, result, "hipStreamCreateWithFlags")?;
        Ok(raw)
    }

    pub(super) fn create(device: &'static Device) -> Result<Self> {
        let _entered = device.ordinal().enter()?;
        Ok(Self::new(device, Self::create_raw(device.hip())?, true))
    }

    fn new(device: &'static Device, raw: Stream, owned: bool) -> Self {
        Self {
            device,
            raw,
            owned,
            in_use: InUse::default(),
            is_known: AtomicBool::new(!owned),
            capture: Mutex::default(),
            given: Mutex::default(),
        }
    }

    pub(super) fn default_of(device: &'static Device) -> Self {
        Self::new(device, std::ptr::null_mut(), false)
    }

    /// The value for somebody's stream, the same for each call if HIP tells streams apart (ROCm 7.1).
    ///
    /// # Safety
    /// `raw` is a live stream, and stays so as long as the value is used.
    pub(super) unsafe fn of_others(device: &'static Device, raw: *mut c_void) -> Result<Arc<Self>> {
        if raw as usize <= LEGACY_HANDLE {
            return Ok(device.the_default_stream());
        }
        // SAFETY: the caller's promise.
        let wrap = || unsafe { Self::wrap(device, raw) };
        let get_id = device.hip().stream_get_id.filter(|_| raw as usize > LAST_SPECIAL_HANDLE);
        let Some(get_id) = get_id else { return wrap().map(Arc::new) };
        let number = {
            let _bound = device.ordinal().bind()?;
            // SAFETY: the caller promises a live stream.
            match unsafe { capture_of(device.hip(), raw) } {
                // To ask for the stream's own number would break the capture.
                Some((capture, _)) => Number::Capture(capture),
                None => {
                    let mut number = 0;
                    // SAFETY: the caller promises a live stream; `number` is valid for the write.
                    check(device.hip(), unsafe { get_id(raw, &raw mut number) }, "hipStreamGetId")?;
                    Number::Stream(number)
                }
            }
        };
        device.foreign().get(raw as usize, number, device.left_behind(), wrap)
    }

    /// # Safety
    /// `raw` is a live stream, and stays so.
    unsafe fn wrap(device: &'static Device, raw: *mut c_void) -> Result<Self> {
        if raw as usize > LAST_SPECIAL_HANDLE {
            let hip = device.hip();
            let _entered = device.ordinal().enter()?;
            let mut number = -1;
            // SAFETY: the caller promises a live stream; `number` is valid for the write.
            check(hip, unsafe { (hip.stream_get_device)(raw, &raw mut number) }, "hipStreamGetDevice")?;
            if number != device.ordinal().number {
                return Err(Error::InvalidArgument(format!(
                    "stream {raw:p} is one of device {number}, not of {}",
                    device.display()
                )));
            }
        }
        Ok(Self::new(device, raw, false))
    }

    /// The stream behind the trait, unless it is one of another platform.
    pub(super) fn of(stream: &dyn StreamBackend) -> Result<&Self> {
        (stream as &dyn Any)
            .downcast_ref()
            .ok_or_else(|| Error::InvalidArgument("the stream is one of another platform".to_owned()))
    }

    pub(super) fn handle(&self) -> Stream {
        self.raw
    }

    /// Submits one operation. Submissions may be part of a capture, so they leave the capture mode alone.
    pub(super) fn submit(&self, operation: &'static str, call: impl FnOnce(&Hip) -> HipResult) -> Result<()> {
        let hip = self.device.hip();
        let _bound = self.device.ordinal().bind()?;
        check(hip, call(hip), operation)
    }

    /// The number of the last launch that keeps something; zero if nothing is kept.
    pub(super) fn last_launch(&self) -> u64 {
        self.in_use.last_launch()
    }

    /// The stream was found idle after launch number `last_launch`.
    pub(super) fn release(&self, last_launch: u64) {
        self.in_use.release(last_launch);
        // Not on the streams of transports, which launch nothing: what is dropped may wait for the thread that asked.
        if last_launch > 0 || self.raw.is_null() {
            self.device.left_behind().sweep();
            CAPTURES.sweep();
        }
    }

    /// Drops what its launches needed, if it is idle.
    pub(super) fn sweep(&self) {
        self.in_use.sweep(self);
    }

    /// It was just given a launch, of a kernel or a graph, which needs `owners`, its modules among them.
    pub(super) fn keep(&self, owners: &[Owner]) {
        if !CAPTURES.note(self, &self.given, owners, &[]) {
            self.in_use.add(self, owners);
        }
    }
}

impl StreamBackend for HipStream {
    fn raw(&self) -> *mut c_void {
        self.is_known.store(true, Ordering::Relaxed);
        self.raw
    }

    fn in_use(&self) -> Vec<Owner> {
        self.in_use.owners()
    }

    fn take_failed(&self) -> Vec<Owner> {
        self.in_use.take_failed()
    }

    fn synchronize(&self) -> Result<()> {
        let hip = self.device.hip();
        let launches = self.in_use.last_launch();
        {
            let _entered = self.device.ordinal().enter()?;
            // SAFETY: the stream lives.
            check(hip, unsafe { (hip.stream_synchronize)(self.raw) }, "hipStreamSynchronize")?;
        }
        self.release(launches);
        Ok(())
    }

    fn query(&self) -> Result<bool> {
        let hip = self.device.hip();
        let launches = self.in_use.last_launch();
        let result = {
            let _entered = self.device.ordinal().enter()?;
            // SAFETY: the stream lives.
            unsafe { (hip.stream_query)(self.raw) }
        };
        match result {
            HipResult::SUCCESS => {
                self.release(launches);
                Ok(true)
            }
            HipResult::NOT_READY => {
                forget(hip);
                Ok(false)
            }
            result => Err(failure(hip, result, "hipStreamQuery")),
        }
    }

    unsafe fn copy(&self, dst: DevicePtr, src: DevicePtr, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller promises both ranges until the copy is complete.
        self.submit("hipMemcpyAsync", |hip| unsafe {
            (hip.memcpy_async)(dst.as_mut_ptr(), src.as_mut_ptr(), bytes as usize, MEMCPY_DEFAULT, self.raw)
        })
    }

    unsafe fn fill(&self, dst: DevicePtr, bytes: u64, value: u8) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller promises the range until the fill is complete.
        self.submit("hipMemsetD8Async", |hip| unsafe {
            (hip.memset_d8_async)(dst.as_mut_ptr(), value, bytes as usize, self.raw)
        })
    }

    unsafe fn write_u64(&self, dst: DevicePtr, value: u64) -> Result<()> {
        if !dst.0.is_multiple_of(8) {
            return Err(Error::InvalidArgument(format!("write_u64: {dst:?} is no multiple of 8")));
        }
        // SAFETY: the caller promises the 8 bytes until the write is complete.
        self.submit("hipStreamWriteValue64", |hip| unsafe {
            (hip.stream_write_value64)(self.raw, dst.as_mut_ptr(), value, 0)
        })
    }

    fn record(&self, event: &Arc<dyn EventBackend>) -> Result<()> {
        self.record_event(event_of(event)?)
    }

    fn wait_event(&self, event: &Arc<dyn EventBackend>) -> Result<()> {
        let event = event_of(event)?;
        self.is_known.store(true, Ordering::Relaxed);
        // SAFETY: both live; the runtime keeps what was recorded even if the event is destroyed.
        self.submit("hipStreamWaitEvent", |hip| unsafe { (hip.stream_wait_event)(self.raw, event.raw(), 0) })
    }

    fn begin_capture(&self) -> Result<()> {
        if self.raw as usize <= LAST_SPECIAL_HANDLE {
            return Err(Error::InvalidArgument(
                "a default stream cannot be captured; use Gpu::stream".to_owned(),
            ));
        }
        // Asked first: a call that the runtime refuses would end the capture in progress.
        if self.is_capturing()? {
            return Err(Error::InvalidArgument("the stream is capturing already".to_owned()));
        }
        self.is_known.store(true, Ordering::Relaxed);
        // SAFETY: the stream lives.
        self.submit("hipStreamBeginCapture", |hip| unsafe {
            (hip.stream_begin_capture)(self.raw, CAPTURE_MODE_THREAD_LOCAL)
        })?;
        if let Some((id, _)) = self.capture() {
            CAPTURES.begin(id);
            *self.capture.lock() = Some(id);
        }
        Ok(())
    }

    fn end_capture(&self) -> Result<Arc<dyn GraphBackend>> {
        if self.raw as usize <= LAST_SPECIAL_HANDLE || !self.is_capturing()? {
            return Err(Error::InvalidArgument("the stream is not capturing".to_owned()));
        }
        // It may have been begun through another value of the same stream.
        let begun_here = self.capture.lock().take();
        let id = self.capture().map(|(id, _)| id).or(begun_here);
        let needs = id.map(|id| CAPTURES.end(id)).unwrap_or_default();
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream lives; `graph` is valid for the write.
        self.submit("hipStreamEndCapture", |hip| unsafe {
            (hip.stream_end_capture)(self.raw, &raw mut graph)
        })?;
        // SAFETY: the graph was made by the capture and is given away here.
        Ok(Arc::new(unsafe { HipGraph::instantiate(self.device, graph, needs)? }))
    }
}

impl Drop for HipStream {
    fn drop(&mut self) {
        let needed = self.in_use.take_all();
        if !needed.is_empty() {
            self.device.left_behind().take_over(self, needed);
        }
        // One that somebody else ended, or nobody: if it went on, its graph would not be ours.
        if let Some(id) = self.capture.get_mut().take() {
            CAPTURES.end(id);
        }
        if !self.owned {
            return;
        }
        let Some(_entered) = self.device.ordinal().enter_to_drop() else { return };
        let hip = self.device.hip();
        // SAFETY: made by `create`, destroyed once; work still in it goes on.
        log_failure(hip, unsafe { (hip.stream_destroy)(self.raw) }, "hipStreamDestroy");
    }
}
