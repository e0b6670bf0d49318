use std::{
    any::Any,
    ffi::c_void,
    ptr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, ThreadId},
};

use mscclpp_gpu_sys::{CAPTURE_MODE_THREAD_LOCAL, Code, Entry, STREAM_NON_BLOCKING};
use parking_lot::Mutex;

use super::{
    DriverStream,
    api::{Api, Direction, Handle, Transfer},
    bookkeeping::capture_of,
    captures::{CaptureId, Given},
    context::Context,
    device::Device,
    event::{Event, event_of},
    failure::{check, failure},
    foreign::Name,
    graph::Graph,
    in_use::InUse,
};
use crate::{
    DevicePtr, Error, Owner, Result,
    backend::{EventBackend, GraphBackend, StreamBackend},
};

pub(crate) struct Stream<D: Api> {
    pub(crate) device: &'static Device<D>,
    raw: Handle<D::Stream>,
    owned: bool,
    /// The thread whose stream it is, of the handle that means another stream in each thread.
    pub(super) thread: Option<ThreadId>,
    pub(super) in_use: InUse<Event<D>>,
    /// Whether others have its handle, or it waited for an event: they may capture it.
    pub(super) is_known: AtomicBool,
    /// The capture that was begun through this value and has not been ended through it.
    capture: Mutex<Option<CaptureId>>,
    given: Mutex<Given>,
}

/// `CU_STREAM_LEGACY` and `hipStreamLegacy`, the default stream, as null is.
const LEGACY_HANDLE: usize = 1;
/// `CU_STREAM_PER_THREAD` and `hipStreamPerThread`: a stream of each thread, on whatever device is the thread's. It goes when the
/// thread ends.
const PER_THREAD_HANDLE: usize = 2;

/// A non-blocking stream of the thread's device, owned by nobody.
pub(super) fn create_raw<D: Api>(context: &Context<D>) -> Result<Handle<D::Stream>> {
    let Entry(name, create) = context.functions.stream_create;
    let mut raw = ptr::null_mut();
    // SAFETY: `raw` is valid for the write; the caller made the device the thread's.
    check(context.driver, unsafe { create(&raw mut raw, STREAM_NON_BLOCKING) }, name)?;
    Ok(Handle(raw))
}

impl<D: Api> Stream<D> {
    pub(super) fn create(device: &'static Device<D>) -> Result<Self> {
        let _entered = device.context.enter()?;
        Ok(Self::new(device, create_raw(&device.context)?, true))
    }

    fn new(device: &'static Device<D>, raw: Handle<D::Stream>, owned: bool) -> Self {
        let thread = (raw.0 as usize == PER_THREAD_HANDLE).then(|| thread::current().id());
        Self {
            device,
            raw,
            owned,
            thread,
            in_use: InUse::default(),
            is_known: AtomicBool::new(!owned),
            capture: Mutex::default(),
            given: Mutex::default(),
        }
    }

    pub(super) fn default_of(device: &'static Device<D>) -> Self {
        Self::new(device, Handle(ptr::null_mut()), false)
    }

    /// The value for somebody's stream, the same for each call if the driver tells streams apart (CUDA 12, ROCm 7.1).
    ///
    /// # Safety
    /// `raw` is a live stream, and stays so as long as the value is used.
    pub(super) unsafe fn of_others(device: &'static Device<D>, raw: *mut c_void) -> Result<Arc<Self>> {
        if raw as usize <= LEGACY_HANDLE {
            return Ok(device.the_default_stream());
        }
        // SAFETY: the caller's promise.
        let wrap = || unsafe { Self::wrap(device, raw.cast()) };
        if raw as usize == PER_THREAD_HANDLE {
            return device.foreign.get(Name::Thread(thread::current().id()), 0, &device.left_behind, wrap);
        }
        let Some(Entry(operation, get_id)) = device.functions().stream_get_id else {
            return wrap().map(Arc::new);
        };
        let (name, number) = {
            let _bound = device.context.bind()?;
            // SAFETY: the caller promises a live stream.
            match unsafe { capture_of(&device.context, raw.cast()) } {
                // To ask for the stream's own number would break the capture.
                Some((capture, _)) => (Name::Capture(raw as usize), capture),
                None => {
                    let mut number = 0;
                    // SAFETY: the caller promises a live stream; `number` is valid for the write.
                    check(device.driver(), unsafe { get_id(raw.cast(), &raw mut number) }, operation)?;
                    (Name::Stream(raw as usize), number)
                }
            }
        };
        device.foreign.get(name, number, &device.left_behind, wrap)
    }

    /// # Safety
    /// `raw` is a live stream, and stays so.
    unsafe fn wrap(device: &'static Device<D>, raw: *mut D::Stream) -> Result<Self> {
        if raw as usize != PER_THREAD_HANDLE {
            let Entry(name, get_context) = device.functions().stream_get_context;
            let _entered = device.context.enter()?;
            let mut context = D::NO_CONTEXT;
            // SAFETY: the caller promises a live stream; `context` is valid for the write.
            check(device.driver(), unsafe { get_context(raw, &raw mut context) }, name)?;
            if context != device.context.raw() {
                let why = D::stream_of_another(context, &device.to_string());
                return Err(Error::invalid(format!("stream {raw:p} is {why}")));
            }
        }
        Ok(Self::new(device, Handle(raw), false))
    }

    /// Returns the stream behind the trait, for a launch by the calling thread: an error for a stream of another platform, and
    /// for another thread's per-thread stream, whose handle means the calling thread's own to the driver.
    pub(crate) fn of(stream: &dyn StreamBackend) -> Result<&Self> {
        let of_another = || Error::invalid("the stream is one of another platform");
        let stream: &Self = (stream as &dyn Any).downcast_ref().ok_or_else(of_another)?;
        stream.check_thread().map(|()| stream)
    }

    pub(crate) fn handle(&self) -> *mut D::Stream {
        self.raw.0
    }

    /// Checks that the handle means this stream in the calling thread.
    pub(super) fn check_thread(&self) -> Result<()> {
        match self.thread {
            Some(thread) if thread != thread::current().id() => Err(Error::invalid(format!(
                "the stream is the per-thread stream of {thread:?}, and {:?} cannot use it; wait for an event that {thread:?} \
                 has recorded in it, or take a stream that is not a thread's",
                thread::current().id()
            ))),
            _ => Ok(()),
        }
    }

    /// Submits one operation. Submissions may be part of a capture, so they leave the capture mode alone.
    pub(crate) fn submit(&self, call: impl FnOnce(&D) -> (&'static str, D::Code)) -> Result<()> {
        self.check_thread()?;
        let _bound = self.device.context.bind()?;
        let (operation, result) = call(self.device.driver());
        check(self.device.driver(), result, operation)
    }

    /// Submits one operation by one of the entry points that all drivers have.
    pub(super) fn call<F: Copy>(&self, entry: &Entry<F>, call: impl FnOnce(F) -> D::Code) -> Result<()> {
        self.submit(|_| entry.call(call))
    }

    /// The number of the last launch that keeps something; zero if nothing is kept.
    pub(super) fn last_launch(&self) -> u64 {
        self.in_use.last_launch()
    }

    /// The stream was found idle after launch number `last_launch`.
    pub(super) fn release(&self, last_launch: u64) {
        self.in_use.release(last_launch);
        // Not on the streams of transports, which launch nothing: what is dropped may wait for the thread that asked.
        if last_launch > 0 || self.handle().is_null() {
            self.device.left_behind.sweep();
            D::process().captures.sweep();
        }
    }

    /// Drops what its launches needed, if it is idle.
    pub(super) fn sweep(&self) {
        self.in_use.sweep(self);
    }

    /// Keeps `owners` for the launch that the stream was just given, of a kernel or a graph. A graph of it also needs
    /// `modules`, whose code it runs.
    pub(crate) fn keep(&self, owners: &[Owner], modules: &[Owner]) {
        if D::LAUNCHES_KEEP_MODULES && !modules.is_empty() {
            return self.keep(&[owners, modules].concat(), &[]);
        }
        if !D::process().captures.note(self, &self.given, owners, modules) {
            self.in_use.add(self, owners);
        }
    }
}

impl<D: Api> StreamBackend for Stream<D> {
    fn raw(&self) -> *mut c_void {
        self.is_known.store(true, Ordering::Relaxed);
        self.handle().cast()
    }

    fn in_use(&self) -> Vec<Owner> {
        self.in_use.owners()
    }

    fn take_failed(&self) -> Vec<Owner> {
        self.in_use.take_failed()
    }

    fn synchronize(&self) -> Result<()> {
        self.check_thread()?;
        let synchronize = self.device.functions().stream_synchronize;
        let launches = self.in_use.last_launch();
        // SAFETY: the stream lives.
        self.device.context.run(|_| synchronize.call(|synchronize| unsafe { synchronize(self.handle()) }))?;
        self.release(launches);
        Ok(())
    }

    fn query(&self) -> Result<bool> {
        self.check_thread()?;
        let driver = self.device.driver();
        let Entry(name, query) = self.device.functions().stream_query;
        let launches = self.in_use.last_launch();
        let result = {
            let _entered = self.device.context.enter()?;
            // SAFETY: the stream lives.
            unsafe { query(self.handle()) }
        };
        if result == D::Code::SUCCESS {
            self.release(launches);
            Ok(true)
        } else if result == D::Code::NOT_READY {
            driver.forget();
            Ok(false)
        } else {
            Err(failure(driver, result, name))
        }
    }

    unsafe fn copy(&self, dst: DevicePtr, src: DevicePtr, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let transfer = Transfer { direction: Direction::Any, dst, src, bytes };
        // SAFETY: the caller promises both ranges until the copy is complete.
        self.submit(|driver| unsafe { driver.copy(transfer, self.handle()) })
    }

    unsafe fn fill(&self, dst: DevicePtr, bytes: u64, value: u8) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller promises the range until the fill is complete.
        self.call(&self.device.functions().memset_d8_async, |set| unsafe {
            set(dst.0, value, bytes as usize, self.handle())
        })
    }

    unsafe fn write_u64(&self, dst: DevicePtr, value: u64) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { D::write_u64(self, dst, value) }
    }

    unsafe fn write_two_at_once(&self, values: [(DevicePtr, u64); 2]) -> Result<bool> {
        // SAFETY: the caller's promise.
        unsafe { D::write_two_at_once(self, values) }
    }

    fn record(&self, event: &Arc<dyn EventBackend>) -> Result<()> {
        self.record_event(event_of(&**event)?)
    }

    fn wait_event(&self, event: &Arc<dyn EventBackend>) -> Result<()> {
        let event: &Event<D> = event_of(&**event)?;
        self.is_known.store(true, Ordering::Relaxed);
        // SAFETY: both live; the driver keeps what was recorded even if the event is destroyed.
        self.call(&self.device.functions().stream_wait_event, |wait| unsafe {
            wait(self.handle(), event.handle(), 0)
        })
    }

    fn is_foreign(&self) -> bool {
        !self.owned && self.handle() as usize > LEGACY_HANDLE
    }

    fn is_being_captured(&self) -> Result<bool> {
        // The driver is not asked about a stream that nobody else can have captured: it is asked in front of each collective.
        Ok(self.may_be_captured() && self.is_capturing()?)
    }

    fn capture_id(&self) -> Result<Option<u64>> {
        Ok(if self.is_capturing()? { self.capture().map(|(id, _)| id) } else { None })
    }

    fn begin_capture(&self) -> Result<()> {
        if self.handle() as usize <= PER_THREAD_HANDLE {
            return Err(Error::invalid("a default stream cannot be captured; use Gpu::stream"));
        }
        // Asked first: a call that the driver refuses would end the capture in progress.
        if self.is_capturing()? {
            return Err(Error::invalid("the stream is capturing already"));
        }
        self.is_known.store(true, Ordering::Relaxed);
        // SAFETY: the stream lives.
        self.call(&self.device.functions().stream_begin_capture, |begin| unsafe {
            begin(self.handle(), CAPTURE_MODE_THREAD_LOCAL)
        })?;
        if let Some((id, _)) = self.capture() {
            D::process().captures.begin(id);
            *self.capture.lock() = Some(id);
        }
        Ok(())
    }

    fn end_capture(&self) -> Result<Arc<dyn GraphBackend>> {
        if self.handle() as usize <= PER_THREAD_HANDLE || !self.is_capturing()? {
            return Err(Error::invalid("the stream is not capturing"));
        }
        // It may have been begun through another value of the same stream.
        let begun_here = self.capture.lock().take();
        let id = self.capture().map(|(id, _)| id).or(begun_here);
        let needs = id.map(|id| D::process().captures.end(id)).unwrap_or_default();
        let mut graph = ptr::null_mut();
        // SAFETY: the stream lives; `graph` is valid for the write.
        self.call(&self.device.functions().stream_end_capture, |end| unsafe {
            end(self.handle(), &raw mut graph)
        })?;
        // SAFETY: the graph was made by the capture and is given away here.
        Ok(Arc::new(unsafe { Graph::instantiate(self.device, graph, needs)? }))
    }
}

impl<D: Api> Drop for Stream<D> {
    fn drop(&mut self) {
        self.device.left_behind.take_over_failed(&self.in_use);
        let needed = self.in_use.take_all();
        if !needed.is_empty() {
            self.device.left_behind.take_over(self, needed);
        }
        // One that somebody else ended, or nobody: if it went on, its graph would not be ours.
        if let Some(id) = self.capture.get_mut().take() {
            D::process().captures.end(id);
        }
        if !self.owned {
            return;
        }
        let destroy = self.device.functions().stream_destroy;
        // SAFETY: made by `create`, destroyed once; work still in it goes on.
        self.device.context.take_down(|_| destroy.call(|destroy| unsafe { destroy(self.handle()) }));
    }
}
