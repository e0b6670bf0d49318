//! Streams, events and graphs.

use std::{
    cell::RefCell,
    collections::HashMap,
    ffi::{c_int, c_uint, c_ulonglong, c_void},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use mscclpp_gpu::{DevicePtr, Event, Graph, Stream};
use mscclpp_gpu_sys::{
    CAPTURE_MODE_RELAXED, CAPTURE_STATUS_ACTIVE, CAPTURE_STATUS_NONE, EVENT_DEFAULT, EVENT_DISABLE_TIMING,
    STREAM_NON_BLOCKING,
    hip::{HipResult, MEMCPY_DEFAULT},
};
use parking_lot::Mutex;

use crate::{
    devices,
    entry::{Out, done, entry_points, require},
    table::Table,
    user_objects::UserObject,
};

/// `hipStreamLegacy` and `hipStreamPerThread`.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

thread_local! {
    /// The per-thread streams of a thread, by device.
    static PER_THREAD_STREAMS: RefCell<HashMap<c_int, Stream>> = RefCell::default();
}

struct FakeStream {
    device: c_int,
    stream: Stream,
    /// The number of the capture in progress, and the handle of its graph.
    capture: Mutex<Option<(u64, usize)>>,
}

impl Drop for FakeStream {
    fn drop(&mut self) {
        if let Some((_, graph)) = *self.capture.get_mut() {
            let _ = GRAPHS.remove(graph as *mut c_void);
        }
    }
}

/// A graph, or one that can be launched.
#[derive(Default)]
pub(crate) struct FakeGraph {
    /// Empty while the graph is being captured.
    captured: OnceLock<Arc<Graph>>,
    pub(crate) objects: Mutex<Vec<Arc<UserObject>>>,
}

static STREAMS: Table<FakeStream> = Table::new(1);
static EVENTS: Table<Event> = Table::new(2);
pub(crate) static GRAPHS: Table<FakeGraph> = Table::new(3);
static EXECUTABLES: Table<FakeGraph> = Table::new(4);

/// The number of the last capture. Numbers are never used twice.
static LAST_CAPTURE: AtomicU64 = AtomicU64::new(0);

/// Counts streams, events, graphs, and graphs that can be launched.
pub(crate) fn existing() -> [u64; 4] {
    [STREAMS.len(), EVENTS.len(), GRAPHS.len(), EXECUTABLES.len()]
}

/// Calls `act` with a stream; null and `hipStreamLegacy` are the default stream of the calling thread's device.
pub(crate) fn with<T>(
    handle: *mut c_void,
    act: impl FnOnce(&Stream) -> Result<T, mscclpp_gpu::Error>,
) -> Result<T, HipResult> {
    match handle.addr() {
        0 | LEGACY => done(act(&devices::current_device()?.default_stream)),
        PER_THREAD => done(act(&per_thread()?)),
        _ => done(act(&STREAMS.get(handle)?.stream)),
    }
}

/// The stream of the calling thread on its device.
fn per_thread() -> Result<Stream, HipResult> {
    let device = devices::current();
    if let Some(stream) = PER_THREAD_STREAMS.with_borrow(|streams| streams.get(&device).cloned()) {
        return Ok(stream);
    }
    let stream = done(devices::current_device()?.gpu.stream())?;
    PER_THREAD_STREAMS.with_borrow_mut(|streams| streams.insert(device, stream.clone()));
    Ok(stream)
}

fn capture_of(handle: *mut c_void) -> Result<Option<(u64, usize)>, HipResult> {
    if handle.addr() <= PER_THREAD {
        return Ok(None);
    }
    Ok(*STREAMS.get(handle)?.capture.lock())
}

/// Converts the answer of a query.
fn ready(is_ready: bool) -> Result<(), HipResult> {
    if is_ready { Ok(()) } else { Err(HipResult::NOT_READY) }
}

entry_points! {
    fn hipStreamCreateWithFlags(stream: Out<*mut c_void>, flags: c_uint) {
        require(flags <= STREAM_NON_BLOCKING)?;
        let made = done(devices::current_device()?.gpu.stream())?;
        let fake = FakeStream { device: devices::current(), stream: made, capture: Mutex::default() };
        stream.give(STREAMS.add(fake))
    }

    fn hipStreamDestroy(stream: *mut c_void) {
        STREAMS.remove(stream).map(drop)
    }

    fn hipStreamSynchronize(stream: *mut c_void) {
        with(stream, Stream::synchronize)
    }

    fn hipStreamQuery(stream: *mut c_void) {
        with(stream, Stream::query).and_then(ready)
    }

    fn hipStreamWaitEvent(stream: *mut c_void, event: *mut c_void, flags: c_uint) {
        require(flags == 0)?;
        let event = EVENTS.get(event)?;
        with(stream, |stream| stream.wait_event(&event))
    }

    fn hipStreamGetDevice(stream: *mut c_void, device: Out<c_int>) {
        device.give(STREAMS.get(stream)?.device)
    }

    fn hipStreamGetId(stream: *mut c_void, id: Out<c_ulonglong>) {
        STREAMS.get(stream)?;
        id.give(stream as c_ulonglong)
    }

    fn hipStreamWriteValue64(stream: *mut c_void, ptr: *mut c_void, value: u64, flags: c_uint) {
        require(flags == 0)?;
        // SAFETY: the caller promises the 8 bytes.
        with(stream, |stream| unsafe { stream.write_u64(DevicePtr::from_ptr(ptr), value) })
    }

    fn hipMemcpyAsync(
        dst: *mut c_void, src: *const c_void, bytes: usize, kind: c_uint, stream: *mut c_void,
    ) {
        require(kind == MEMCPY_DEFAULT)?;
        let (dst, src) = (DevicePtr::from_ptr(dst), DevicePtr::from_ptr(src));
        // SAFETY: the caller promises both ranges.
        with(stream, |stream| unsafe { stream.copy(dst, src, bytes as u64) })
    }

    fn hipMemsetD8Async(dst: *mut c_void, value: u8, bytes: usize, stream: *mut c_void) {
        // SAFETY: the caller promises the range.
        with(stream, |stream| unsafe { stream.fill(DevicePtr::from_ptr(dst), bytes as u64, value) })
    }

    fn hipStreamIsCapturing(stream: *mut c_void, status: Out<c_uint>) {
        let active = capture_of(stream)?.is_some();
        status.give(if active { CAPTURE_STATUS_ACTIVE } else { CAPTURE_STATUS_NONE })
    }

    fn hipStreamGetCaptureInfo_v2(
        stream: *mut c_void, status: Out<c_uint>, id: Out<c_ulonglong>, graph: Out<*mut c_void>,
        _dependencies: *mut *const *mut c_void, _count: *mut usize,
    ) {
        let capture = capture_of(stream)?;
        let known = if capture.is_some() { CAPTURE_STATUS_ACTIVE } else { CAPTURE_STATUS_NONE };
        let (number, handle) = capture.unwrap_or((0, 0));
        status.give(known)?;
        id.give(number)?;
        graph.give(handle as *mut c_void)
    }

    fn hipStreamBeginCapture(stream: *mut c_void, mode: c_uint) {
        require(mode <= CAPTURE_MODE_RELAXED)?;
        let fake = STREAMS.get(stream)?;
        let mut capture = fake.capture.lock();
        done(fake.stream.begin_capture())?;
        let graph = GRAPHS.add(FakeGraph::default());
        *capture = Some((LAST_CAPTURE.fetch_add(1, Ordering::Relaxed) + 1, graph as usize));
        Ok(())
    }

    fn hipStreamEndCapture(stream: *mut c_void, graph: Out<*mut c_void>) {
        let fake = STREAMS.get(stream)?;
        let mut capture = fake.capture.lock();
        let captured = done(fake.stream.end_capture())?;
        let handle = capture.take().map_or(0, |(_, handle)| handle) as *mut c_void;
        let _ = GRAPHS.get(handle)?.captured.set(Arc::new(captured));
        graph.give(handle)
    }

    fn hipEventCreateWithFlags(event: Out<*mut c_void>, flags: c_uint) {
        let with_timing = match flags {
            EVENT_DEFAULT => true,
            EVENT_DISABLE_TIMING => false,
            _ => return Err(HipResult::INVALID_VALUE),
        };
        let made = done(devices::current_device()?.gpu.event(with_timing))?;
        event.give(EVENTS.add(made))
    }

    fn hipEventDestroy(event: *mut c_void) {
        EVENTS.remove(event).map(drop)
    }

    fn hipEventRecord(event: *mut c_void, stream: *mut c_void) {
        let event = EVENTS.get(event)?;
        with(stream, |stream| stream.record(&event))
    }

    fn hipEventQuery(event: *mut c_void) {
        done(EVENTS.get(event)?.query()).and_then(ready)
    }

    fn hipEventElapsedTime(milliseconds: Out<f32>, start: *mut c_void, stop: *mut c_void) {
        let elapsed = done(EVENTS.get(stop)?.elapsed_ms(&*EVENTS.get(start)?))?;
        milliseconds.give(elapsed)
    }

    fn hipGraphInstantiateWithFlags(executable: Out<*mut c_void>, graph: *mut c_void, flags: c_ulonglong) {
        require(flags == 0)?;
        let graph = GRAPHS.get(graph)?;
        let objects = Mutex::new(graph.objects.lock().clone());
        let made = FakeGraph { captured: graph.captured.clone(), objects };
        executable.give(EXECUTABLES.add(made))
    }

    fn hipGraphLaunch(executable: *mut c_void, stream: *mut c_void) {
        let executable = EXECUTABLES.get(executable)?;
        let graph = executable.captured.get().ok_or(HipResult::INVALID_VALUE)?;
        // SAFETY: the caller is responsible for the accesses of the graph.
        with(stream, |stream| unsafe { graph.launch(stream) })
    }

    fn hipGraphDestroy(graph: *mut c_void) {
        GRAPHS.remove(graph).map(drop)
    }

    fn hipGraphExecDestroy(executable: *mut c_void) {
        EXECUTABLES.remove(executable).map(drop)
    }
}
