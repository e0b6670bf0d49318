use std::{
    any::Any,
    ffi::c_void,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use mscclpp_gpu_sys::cuda::{
    CUstream, CUstream_flags, CUstreamBatchMemOpParams, CUstreamBatchMemOpType, CUstreamCaptureMode,
    CUstreamWriteValue_flags, CuResult, Driver,
};

use parking_lot::Mutex;

use super::{
    bookkeeping::capture_of,
    device::Device,
    event::{CudaEvent, event_of},
    failure::{check, failure, log_failure},
    graph::CudaGraph,
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

pub(super) struct CudaStream {
    pub(super) device: &'static Device,
    pub(super) raw: CUstream,
    owned: bool,
    pub(super) in_use: InUse<CudaEvent>,
    /// Whether others have its handle, or it waited for an event: they may capture it.
    pub(super) is_known: AtomicBool,
    /// The capture that was begun through this value and has not been ended through it.
    capture: Mutex<Option<CaptureId>>,
    given: Mutex<Given>,
}

// SAFETY: the driver's functions may be called with a stream from any thread; `raw` is never dereferenced here.
unsafe impl Send for CudaStream {}
// SAFETY: as above.
unsafe impl Sync for CudaStream {}

/// `CU_STREAM_LEGACY`, the default stream, as null is.
const LEGACY_HANDLE: usize = 1;
/// `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD` are handles too, of whatever context is current.
const LAST_SPECIAL_HANDLE: usize = 2;

impl CudaStream {
    /// A non-blocking stream in the current context, owned by nobody.
    pub(super) fn create_raw(driver: &Driver) -> Result<CUstream> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is valid for the write; the caller made a context current.
        let result =
            unsafe { (driver.stream_create)(&raw mut raw, CUstream_flags::CU_STREAM_NON_BLOCKING as u32) };
        check(driver, result, "cuStreamCreate")?;
        Ok(raw)
    }

    pub(super) fn create(device: &'static Device) -> Result<Self> {
        let _entered = device.context().enter()?;
        Ok(Self::new(device, Self::create_raw(device.driver())?, true))
    }

    fn new(device: &'static Device, raw: CUstream, owned: bool) -> Self {
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

    pub(super) fn legacy_default(device: &'static Device) -> Self {
        Self::new(device, std::ptr::null_mut(), false)
    }

    /// The value for somebody's stream, the same for each call if the driver tells streams apart (CUDA 12).
    ///
    /// # Safety
    /// `raw` is a live stream, and stays so as long as the value is used.
    pub(super) unsafe fn of_others(device: &'static Device, raw: *mut c_void) -> Result<Arc<Self>> {
        if raw as usize <= LEGACY_HANDLE {
            return Ok(device.the_default_stream());
        }
        // SAFETY: the caller's promise.
        let wrap = || unsafe { Self::wrap(device, raw) };
        let get_id = device.driver().stream_get_id.filter(|_| raw as usize > LAST_SPECIAL_HANDLE);
        let Some(get_id) = get_id else { return wrap().map(Arc::new) };
        let number = {
            let _bound = device.context().bind()?;
            // SAFETY: the caller promises a live stream.
            match unsafe { capture_of(device.driver(), raw.cast()) } {
                // To ask for the stream's own number would break the capture.
                Some((capture, _)) => Number::Capture(capture),
                None => {
                    let mut number = 0;
                    // SAFETY: the caller promises a live stream; `number` is valid for the write.
                    check(device.driver(), unsafe { get_id(raw.cast(), &raw mut number) }, "cuStreamGetId")?;
                    Number::Stream(number)
                }
            }
        };
        device.foreign().get(raw as usize, number, device.left_behind(), wrap)
    }

    /// # Safety
    /// `raw` is a live stream, and stays so.
    unsafe fn wrap(device: &'static Device, raw: *mut c_void) -> Result<Self> {
        let raw: CUstream = raw.cast();
        if raw as usize > LAST_SPECIAL_HANDLE {
            let driver = device.driver();
            let _entered = device.context().enter()?;
            let mut context = std::ptr::null_mut();
            // SAFETY: the caller promises a live stream; `context` is valid for the write.
            check(driver, unsafe { (driver.stream_get_ctx)(raw, &raw mut context) }, "cuStreamGetCtx")?;
            if context != device.context().raw() {
                return Err(Error::InvalidArgument(format!(
                    "stream {raw:p} is not one of the primary context of {}",
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

    pub(super) fn device(&self) -> &'static Device {
        self.device
    }

    pub(super) fn handle(&self) -> CUstream {
        self.raw
    }

    /// Submits one operation. Submissions may be part of a capture, so they leave the capture mode alone.
    pub(super) fn submit(
        &self,
        operation: &'static str,
        call: impl FnOnce(&Driver) -> CuResult,
    ) -> Result<()> {
        let driver = self.device.driver();
        let _bound = self.device.context().bind()?;
        check(driver, call(driver), operation)
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

    /// It was just given a launch, of a kernel or a graph, which needs `owners`, and whose code is in `modules`.
    pub(super) fn keep(&self, owners: &[Owner], modules: &[Owner]) {
        if !CAPTURES.note(self, &self.given, owners, modules) {
            self.in_use.add(self, owners);
        }
    }
}

/// Value writes with a barrier in front: all earlier writes of the stream are visible before the value is.
const WITH_BARRIER: u32 = CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32;

fn is_word(dst: DevicePtr) -> Result<()> {
    match dst.0.is_multiple_of(8) {
        true => Ok(()),
        false => Err(Error::InvalidArgument(format!("write_u64: {dst:?} is no multiple of 8"))),
    }
}

impl StreamBackend for CudaStream {
    fn raw(&self) -> *mut c_void {
        self.is_known.store(true, Ordering::Relaxed);
        self.raw.cast()
    }

    fn in_use(&self) -> Vec<Owner> {
        self.in_use.owners()
    }

    fn take_failed(&self) -> Vec<Owner> {
        self.in_use.take_failed()
    }

    fn synchronize(&self) -> Result<()> {
        let driver = self.device.driver();
        let launches = self.in_use.last_launch();
        {
            let _entered = self.device.context().enter()?;
            // SAFETY: the stream lives.
            check(driver, unsafe { (driver.stream_synchronize)(self.raw) }, "cuStreamSynchronize")?;
        }
        self.release(launches);
        Ok(())
    }

    fn query(&self) -> Result<bool> {
        let driver = self.device.driver();
        let launches = self.in_use.last_launch();
        let result = {
            let _entered = self.device.context().enter()?;
            // SAFETY: the stream lives.
            unsafe { (driver.stream_query)(self.raw) }
        };
        match result {
            CuResult::SUCCESS => {
                self.release(launches);
                Ok(true)
            }
            CuResult::NOT_READY => Ok(false),
            result => Err(failure(driver, result, "cuStreamQuery")),
        }
    }

    unsafe fn copy(&self, dst: DevicePtr, src: DevicePtr, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller promises both ranges until the copy is complete.
        self.submit("cuMemcpyAsync", |driver| unsafe {
            (driver.memcpy_async)(dst.0, src.0, bytes as usize, self.raw)
        })
    }

    unsafe fn fill(&self, dst: DevicePtr, bytes: u64, value: u8) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller promises the range until the fill is complete.
        self.submit("cuMemsetD8Async", |driver| unsafe {
            (driver.memset_d8_async)(dst.0, value, bytes as usize, self.raw)
        })
    }

    unsafe fn write_u64(&self, dst: DevicePtr, value: u64) -> Result<()> {
        is_word(dst)?;
        if let Some(write_value) = self.device.value_writes() {
            // SAFETY: the caller promises the 8 bytes until the write is complete.
            return self.submit("cuStreamWriteValue64", |_| unsafe {
                write_value(self.raw, dst.0, value, WITH_BARRIER)
            });
        }
        if self.is_capturing()? {
            return Err(Error::InvalidArgument(format!(
                "{} has no stream value writes, and what stands in for them cannot be captured",
                self.device.display()
            )));
        }
        // SAFETY: the caller's promise.
        unsafe { self.device.value_slots().write(self, dst, value) }
    }

    unsafe fn write_two_at_once(&self, values: [(DevicePtr, u64); 2]) -> Result<bool> {
        let Some(batch) = self.device.value_batches() else { return Ok(false) };
        values.iter().try_for_each(|(dst, _)| is_word(*dst))?;
        let mut writes = values.map(|(dst, value)| {
            // The driver looks at all of an element, so what a write does not use is zero.
            let mut write = CUstreamBatchMemOpParams { pad: [0; 6] };
            write.writeValue.operation = CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_64;
            write.writeValue.address = dst.0;
            write.writeValue.__bindgen_anon_1.value64 = value;
            write.writeValue.flags = WITH_BARRIER;
            write
        });
        // SAFETY: the caller promises the words until the writes are complete; the driver copies the elements.
        self.submit("cuStreamBatchMemOp", |_| unsafe { batch(self.raw, 2, writes.as_mut_ptr(), 0) })?;
        Ok(true)
    }

    fn record(&self, event: &Arc<dyn EventBackend>) -> Result<()> {
        self.record_event(event_of(event)?)
    }

    fn wait_event(&self, event: &Arc<dyn EventBackend>) -> Result<()> {
        let event = event_of(event)?;
        self.is_known.store(true, Ordering::Relaxed);
        // SAFETY: both live; the driver keeps what was recorded even if the event is destroyed.
        self.submit("cuStreamWaitEvent", |driver| unsafe {
            (driver.stream_wait_event)(self.raw, event.raw(), 0)
        })
    }

    fn begin_capture(&self) -> Result<()> {
        if self.raw as usize <= LAST_SPECIAL_HANDLE {
            return Err(Error::InvalidArgument(
                "a default stream cannot be captured; use Gpu::stream".to_owned(),
            ));
        }
        // Asked first: a call that the driver refuses would end the capture in progress.
        if self.is_capturing()? {
            return Err(Error::InvalidArgument("the stream is capturing already".to_owned()));
        }
        self.is_known.store(true, Ordering::Relaxed);
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as u32;
        // SAFETY: the stream lives.
        self.submit("cuStreamBeginCapture", |driver| unsafe {
            (driver.stream_begin_capture)(self.raw, mode)
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
        self.submit("cuStreamEndCapture", |driver| unsafe {
            (driver.stream_end_capture)(self.raw, &raw mut graph)
        })?;
        // SAFETY: the graph was made by the capture and is given away here.
        Ok(Arc::new(unsafe { CudaGraph::instantiate(self.device, graph, needs)? }))
    }
}

impl Drop for CudaStream {
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
        let Some(_entered) = self.device.context().enter_to_drop() else { return };
        let driver = self.device.driver();
        // SAFETY: made by `create`, destroyed once; work still in it goes on.
        log_failure(driver, unsafe { (driver.stream_destroy)(self.raw) }, "cuStreamDestroy");
    }
}
