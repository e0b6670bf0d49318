//! Streams and captures of other libraries, which call the runtime themselves.

use std::{
    ffi::c_void,
    ptr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use mscclpp_gpu::{
    Error, Event, Gpu, Kernel, KernelArgs, KernelObject, LaunchConfig, Module, Owner, Platform, Result,
    Stream,
};
use mscclpp_gpu_sys::{
    CAPTURE_MODE_RELAXED, EVENT_DISABLE_TIMING, STREAM_NON_BLOCKING,
    hip::{Hip, HipResult},
};
use mscclpp_test_support::until;

use crate::{
    fake::Fake,
    scenario::{BYTES, SOURCE, WORDS},
};

const ONE_EACH: LaunchConfig = LaunchConfig::linear((WORDS / 64) as u32, 64);

/// A stream that another library made, on the thread's device.
struct Theirs {
    hip: &'static Hip,
    raw: *mut c_void,
}

impl Theirs {
    fn new(gpu: &Gpu) -> Self {
        gpu.make_current().expect("the device is the thread's");
        let (hip, mut raw) = (Hip::load().expect("the fake"), ptr::null_mut());
        // SAFETY: `raw` is valid for the write.
        let made = unsafe { (hip.common.stream_create.1)(&raw mut raw, STREAM_NON_BLOCKING) };
        assert_eq!(made, HipResult::SUCCESS);
        Self { hip, raw }
    }

    fn stream(&self, gpu: &Gpu) -> Result<Stream> {
        // SAFETY: the stream lives as long as `self`, which outlives the streams of these tests.
        unsafe { Stream::from_raw(gpu, self.raw) }
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once.
        let _ = unsafe { (self.hip.common.stream_destroy.1)(self.raw) };
    }
}

fn kernel(gpu: &Gpu) -> Result<Kernel> {
    Module::load(gpu, &SOURCE)?.kernel("add")
}

/// Launches on a stream that is given by its handle for each launch, as from Python.
pub(crate) fn launches(fake: &Fake) -> Result<()> {
    let gpu = Platform::Hip.gpu(0)?;
    let (kernel, theirs) = (kernel(&gpu)?, Theirs::new(&gpu));
    let sentinel = Arc::new(());
    let args = || -> Result<KernelArgs> {
        Ok(KernelArgs::new().with(&gpu.allocate(BYTES)?).with(1u64).keeping(sentinel.clone()))
    };
    let launch = |stream: &Stream, args: &KernelArgs| {
        // SAFETY: the kernel's arguments, one thread for each word.
        unsafe { kernel.launch(stream, ONE_EACH, args) }
    };
    let kept = args()?;
    launch(&theirs.stream(&gpu)?, &kept)?;
    let made = [
        "hipEventCreateWithFlags",
        "hipEventRecord",
        "hipEventQuery",
        "hipStreamQuery",
        "hipStreamGetDevice",
    ];
    let calls = || made.map(|entry| fake.calls(entry));
    let before = calls();
    for _ in 0..50 {
        launch(&theirs.stream(&gpu)?, &kept)?;
    }
    assert_eq!(calls(), before, "{made:?}");

    // Arguments that are new each time are released while launches go on, whichever value of the stream they use.
    drop(kept);
    until("a later launch to let go of what earlier ones needed", || {
        let new = args().and_then(|args| launch(&theirs.stream(&gpu)?, &args));
        new.expect("a launch");
        Arc::strong_count(&sentinel) < 5
    });
    // A wait releases the rest.
    theirs.stream(&gpu)?.synchronize()?;
    assert_eq!(Arc::strong_count(&sentinel), 1);
    // This also holds for launches after the last event.
    let kept = args()?;
    launch(&theirs.stream(&gpu)?, &kept)?;
    launch(&theirs.stream(&gpu)?, &kept)?;
    drop(kept);
    gpu.synchronize()?;
    assert_eq!(Arc::strong_count(&sentinel), 1);
    refuses_the_stream_of_another_thread(&gpu, &kernel, &args()?)?;
    records_in_an_event(&gpu, &theirs)
}

/// Launches on a stream whose handle means to the runtime a stream of the calling thread.
fn refuses_the_stream_of_another_thread(gpu: &Gpu, kernel: &Kernel, args: &KernelArgs) -> Result<()> {
    let captures = gpu.stream()?;
    captures.begin_capture()?;
    let graph = captures.end_capture()?;
    // SAFETY: the handle of the thread's own stream.
    let own = unsafe { Stream::from_raw(gpu, ptr::without_provenance_mut(2))? };
    // SAFETY: the kernel's arguments, one thread for each word; an empty graph.
    let launch = || unsafe { [kernel.launch(&own, ONE_EACH, args), graph.launch(&own)] };
    for refused in std::thread::scope(|scope| scope.spawn(launch).join().expect("no panic")) {
        let error = refused.expect_err("it is another thread's").to_string();
        assert!(error.contains("per-thread stream of ThreadId("), "{error}");
    }
    launch().into_iter().collect::<Result<()>>()?;
    own.synchronize()
}

/// Records in an event that another library made, which must still be there to be destroyed.
fn records_in_an_event(gpu: &Gpu, theirs: &Theirs) -> Result<()> {
    let (functions, mut raw) = (&theirs.hip.common, ptr::null_mut());
    // SAFETY: `raw` is valid for the write.
    let made = unsafe { (functions.event_create.1)(&raw mut raw, EVENT_DISABLE_TIMING) };
    assert_eq!(made, HipResult::SUCCESS);
    // SAFETY: the event is destroyed below, after its last use.
    let event = unsafe { Event::from_raw(gpu, raw)? };
    theirs.stream(gpu)?.record(&event)?;
    let waits = gpu.stream()?;
    waits.wait_event(&event)?;
    waits.synchronize()?;
    assert!(event.query()?, "a stream has waited for it");
    drop(event);
    // SAFETY: made once, destroyed once.
    assert_eq!(unsafe { (functions.event_destroy.1)(raw) }, HipResult::SUCCESS);
    Ok(())
}

/// Captures a graph with three launches as another library does. Calls `with` with the graph's executable, when the
/// arguments and the kernel are gone, and before graph and executable are destroyed.
pub(crate) fn captured(
    gpu: &Gpu,
    args: KernelArgs,
    with: impl FnOnce(&'static Hip, *mut c_void) -> Result<()>,
) -> Result<()> {
    let (kernel, theirs) = (kernel(gpu)?, Theirs::new(gpu));
    let (hip, mut graph, mut executable) = (theirs.hip, ptr::null_mut(), ptr::null_mut());
    // SAFETY: the stream lives.
    let _ = unsafe { (hip.common.stream_begin_capture.1)(theirs.raw, CAPTURE_MODE_RELAXED) };
    let launched = (0..3).try_for_each(|_| {
        // SAFETY: the kernel's arguments, one thread for each word.
        unsafe { kernel.launch(&theirs.stream(gpu)?, ONE_EACH, &args) }
    });
    drop((args, kernel));
    // SAFETY: the handles are valid for the writes, and what is made is destroyed once.
    unsafe {
        let _ = (hip.common.stream_end_capture.1)(theirs.raw, &raw mut graph);
        let _ = (hip.common.graph_instantiate.1)(&raw mut executable, graph, 0);
        let done = launched.and_then(|()| with(hip, executable));
        let _ = (hip.common.graph_destroy.1)(graph);
        let _ = (hip.common.graph_exec_destroy.1)(executable);
        done
    }
}

pub(crate) fn captures(fake: &Fake) -> Result<()> {
    let gpu = Platform::Hip.gpu(0)?;
    let sentinel = Arc::new(());
    let words = gpu.allocate(BYTES)?;
    let args = KernelArgs::new().with(&words).with(1u64).keeping(sentinel.clone());
    let kept = || Arc::strong_count(&sentinel) - 1;
    captured(&gpu, args, |hip, executable| {
        assert_eq!(kept(), 1, "the graph keeps it, once");
        assert_eq!(fake.calls("hipUserObjectCreate"), 1, "for three launches of the same");
        gpu.synchronize()?;
        gpu.allocate(8)?;
        assert_eq!(kept(), 1, "as long as it exists");
        let stream = Theirs::new(&gpu);
        // SAFETY: both live; the graph keeps what its kernels need.
        let _ = unsafe { (hip.common.graph_launch.1)(executable, stream.raw) };
        stream.stream(&gpu)?.synchronize()
    })?;
    let mut word = [0; 8];
    words.read(0, &mut word)?;
    assert_eq!(u64::from_ne_bytes(word), 3);
    gpu.allocate(8)?;
    assert_eq!(kept(), 0, "the graph is gone");
    Ok(())
}

/// An object whose waits have failed if `is_lost` says so.
#[derive(Default)]
struct Lost {
    is_lost: AtomicBool,
    asked: AtomicU64,
}

impl KernelObject for Lost {
    fn may_have_failed(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    fn check(&self) -> Result<()> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Err(Error::InvalidArgument("lost rank 2".to_owned()))
    }
}

/// Checks on streams of all kinds that a synchronize reports the failure of an object that launches have released in
/// some way.
pub(crate) fn lost_waits() -> Result<()> {
    let gpu = Platform::Hip.gpu(0)?;
    let (kernel, theirs, words) = (kernel(&gpu)?, Theirs::new(&gpu), gpu.allocate(BYTES)?);
    let sound = Arc::new(Lost::default());
    let launch = |stream: &Stream, object: &Arc<Lost>| {
        let args = KernelArgs::new().with(&words).with(1u64).with_owner(Arc::clone(object) as Owner);
        // SAFETY: the kernel's arguments, one thread for each word.
        unsafe { kernel.launch(stream, ONE_EACH, &args) }
    };
    type Way<'a> = (&'static str, &'a dyn Fn(&Stream, &Arc<Lost>) -> Result<()>);
    let ways: [Way<'_>; 5] = [
        ("synchronize", &|_, _| Ok(())),
        ("query", &|stream, _| {
            until("the end of the work", || stream.query().expect("a query"));
            Ok(())
        }),
        ("later launches", &|stream, lost| {
            until("a later launch to look", || {
                launch(stream, &Arc::default()).expect("a launch");
                // One reference is here, and one belongs to the object that waits to be asked.
                Arc::strong_count(lost) == 2 && gpu.allocate(8).is_ok() && stream.query().expect("a query")
            });
            Ok(())
        }),
        ("another value of the stream", &|_, _| Ok(())),
        ("a graph", &|stream, lost| {
            stream.synchronize().expect_err("the launch itself");
            stream.begin_capture()?;
            launch(stream, lost)?;
            let graph = stream.end_capture()?;
            // SAFETY: the graph keeps the objects it needs.
            unsafe { graph.launch(stream) }
        }),
    ];
    let streams = [gpu.stream()?, theirs.stream(&gpu)?, gpu.default_stream()?];
    for (place, stream) in streams.iter().enumerate() {
        for (way, let_go) in ways {
            if way == "a graph" && place == 2 {
                continue; // default streams are not captured
            }
            let lost = Arc::new(Lost { is_lost: AtomicBool::new(true), ..Lost::default() });
            let asked = || lost.asked.load(Ordering::Relaxed);
            launch(stream, &sound)?;
            launch(stream, &lost)?;
            let_go(stream, &lost)?;
            let before = asked();
            let error = match (way, place) {
                ("another value of the stream", 1) => theirs.stream(&gpu)?.synchronize().unwrap_err(),
                ("another value of the stream", _) => gpu.synchronize().unwrap_err(),
                ("query", _) => stream.synchronize_timeout(crate::LIMIT).unwrap_err(),
                _ => stream.synchronize().unwrap_err(),
            };
            assert!(error.to_string().contains("lost rank 2"), "{way} on stream {place}: {error}");
            assert_eq!(asked() - before, 1, "{way} on stream {place}");
            stream.synchronize()?;
            gpu.synchronize()?;
            assert_eq!((Arc::strong_count(&lost), asked() - before), (1, 1), "{way} on stream {place}");
        }
    }
    for dropped in ["at work", "idle"] {
        let (stream, lost) =
            (gpu.stream()?, Arc::new(Lost { is_lost: AtomicBool::new(true), ..Lost::default() }));
        launch(&stream, &lost)?;
        if dropped == "idle" {
            until("the end of the work", || stream.query().expect("a query"));
        }
        drop(stream);
        let error = gpu.synchronize().unwrap_err();
        assert!(error.to_string().contains("lost rank 2"), "of a stream dropped {dropped}: {error}");
        gpu.synchronize()?;
        assert_eq!(Arc::strong_count(&lost), 1, "of a stream dropped {dropped}");
    }
    assert_eq!(sound.asked.load(Ordering::Relaxed), 0, "what has not failed is not asked");
    Ok(())
}
