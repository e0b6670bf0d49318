//! The objects that launches and graphs keep alive, while a kernel of a simulated device waits at a gate.

use std::sync::Arc;

use mscclpp_gpu::{
    Abort, DeviceBuffer, DevicePtr, Error, Gpu, KernelArgs, KernelArgument, KernelObject, KernelSource,
    LaunchConfig, Module, Owner, PinnedBuffer, Platform, Result, RetiredBuffers, Stream,
};
use mscclpp_test_support::until;

const SOURCE: KernelSource<'_> = KernelSource::new("kernels.cu", include_str!("kernels.cu"));
const WORDS: u64 = 64 << 10;
const ONE: LaunchConfig = LaunchConfig::linear(1, 1);

/// A gate, which opens when the word is 1.
pub(crate) struct Gate(pub(crate) DeviceBuffer);

impl Gate {
    pub(crate) fn new(gpu: &Gpu) -> Self {
        Self(gpu.allocate(8).unwrap())
    }

    pub(crate) fn open(&self) {
        self.0.write(0, &1u64.to_ne_bytes()).unwrap();
    }

    /// Returns arguments of a kernel that waits for the gate, and then stores all over `out`. As long as a launch's copy
    /// of `sentinel` lives, the kernel's memory must live, too.
    fn args<'a>(&'a self, out: impl KernelArgument + 'a, sentinel: &Arc<()>) -> KernelArgs {
        KernelArgs::new().with(&self.0).with(1u64).with(out).with(WORDS).keeping(sentinel.clone())
    }
}

/// Submits the kernel. The module and the kernel are dropped when this returns.
fn launch(stream: &Stream, args: &KernelArgs) -> Result<()> {
    let kernel = Module::load(stream.gpu(), &SOURCE)?.kernel("gate_then_store")?;
    // SAFETY: the kernel's arguments; what they point to are buffers, which they keep.
    unsafe { kernel.launch(stream, ONE, args) }
}

fn is_kept(sentinel: &Arc<()>) -> bool {
    Arc::strong_count(sentinel) > 1
}

#[test]
fn retired_buffers_live_until_the_default_stream_is_idle() {
    // No other test uses this device: its memory is counted.
    let gpu = Platform::Sim.gpu(4).unwrap();
    let (stream, gate, retired) = (gpu.default_stream().unwrap(), Gate::new(&gpu), RetiredBuffers::new());
    let before = gpu.memory_info().unwrap().free;
    let out = gpu.allocate(8 * WORDS).unwrap();
    launch(&stream, &gate.args(out.ptr(), &Arc::default())).unwrap();
    retired.retire(out);
    retired.free();
    assert!(!retired.is_empty(), "the kernel has only its address");
    assert_eq!(before - gpu.memory_info().unwrap().free, 8 * WORDS);
    gate.open();
    stream.synchronize().unwrap();
    retired.free();
    assert!(retired.is_empty());
    assert_eq!(gpu.memory_info().unwrap().free, before);
}

#[test]
fn a_panic_in_the_thread_of_a_stream_is_an_error_of_the_stream() {
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("this is the test");
        }
    }
    let gpu = Platform::Sim.gpu(0).unwrap();
    let (stream, gate, out) = (gpu.stream().unwrap(), Gate::new(&gpu), gpu.allocate(8 * WORDS).unwrap());
    launch(&stream, &gate.args(&out, &Arc::default()).keeping(Panics)).unwrap();
    gate.open();
    let error = stream.synchronize_timeout(std::time::Duration::from_secs(60)).unwrap_err();
    assert!(error.to_string().contains("simulated stream"), "{error}");
}

#[test]
fn buffers_live_until_the_launch_is_complete() {
    // No other test uses this device: its memory is counted.
    let gpu = Platform::Sim.gpu(5).unwrap();
    let (stream, gate, sentinel) = (gpu.stream().unwrap(), Gate::new(&gpu), Arc::new(()));
    let before = gpu.memory_info().unwrap().free;
    {
        let out = gpu.allocate(8 * WORDS).unwrap();
        launch(&stream, &gate.args(&out, &sentinel)).unwrap();
        let pinned: PinnedBuffer = gpu.allocate_pinned(8 * WORDS).unwrap();
        launch(&stream, &gate.args(&Arc::new(pinned), &sentinel)).unwrap();
    }
    let timed_out = stream.synchronize_timeout(std::time::Duration::from_millis(1));
    assert!(matches!(timed_out, Err(Error::Timeout { .. })), "{timed_out:?}");
    assert_eq!((Arc::strong_count(&sentinel), before - gpu.memory_info().unwrap().free), (3, 8 * WORDS));
    gate.open();
    stream.synchronize().unwrap();
    assert_eq!((Arc::strong_count(&sentinel), gpu.memory_info().unwrap().free), (1, before));
}

#[test]
fn a_stream_may_be_dropped_at_work() {
    let gpu = Platform::Sim.gpu(0).unwrap();
    let (gate, sentinel) = (Gate::new(&gpu), Arc::new(()));
    {
        let stream = gpu.stream().unwrap();
        launch(&stream, &gate.args(&gpu.allocate(8 * WORDS).unwrap(), &sentinel)).unwrap();
    }
    assert!(is_kept(&sentinel));
    gate.open();
    until("the end of a launch whose stream is gone", || !is_kept(&sentinel));
}

/// An object through which waits have failed.
struct Lost;

impl KernelObject for Lost {
    fn may_have_failed(&self) -> bool {
        true
    }

    fn check(&self) -> Result<()> {
        Err(Error::InvalidArgument("lost rank 2".to_owned()))
    }
}

#[test]
fn a_wait_that_failed_is_told_although_its_stream_was_dropped() {
    // No other test uses this device: all of its streams are waited for.
    let gpu = Platform::Sim.gpu(6).unwrap();
    for dropped in ["at work", "before it was waited for", "idle"] {
        let (gate, stream) = (Gate::new(&gpu), gpu.stream().unwrap());
        let args = gate.args(&gpu.allocate(8 * WORDS).unwrap(), &Arc::default()).with_owner(Arc::new(Lost));
        launch(&stream, &args).unwrap();
        match dropped {
            "at work" => {
                drop(stream);
                gate.open();
            }
            "before it was waited for" => {
                gate.open();
                drop(stream);
            }
            _ => {
                gate.open();
                until("the end of the launch", || stream.query().unwrap());
                drop(stream);
            }
        }
        let told = gpu.synchronize();
        assert!(
            matches!(&told, Err(error) if error.to_string().contains("lost rank 2")),
            "{dropped}: {told:?}"
        );
        gpu.synchronize().expect("it was told");
    }
}

#[test]
fn a_graph_keeps_what_it_was_captured_with_and_so_do_its_launches() {
    let gpu = Platform::Sim.gpu(0).unwrap();
    let (stream, gate, sentinel) = (gpu.stream().unwrap(), Gate::new(&gpu), Arc::new(()));
    let out = gpu.allocate(8 * WORDS).unwrap();
    let capture = || {
        stream.begin_capture().unwrap();
        launch(&stream, &gate.args(&out, &sentinel)).unwrap();
        stream.end_capture().unwrap()
    };
    drop(capture());
    assert!(!is_kept(&sentinel), "a graph that is gone");
    let graph = capture();
    gate.open();
    for value in [7u8, 9] {
        out.fill(0, out.len(), value).unwrap();
        // SAFETY: the graph keeps all objects that it needs.
        unsafe { graph.launch(&stream).unwrap() };
        stream.synchronize().unwrap();
        let mut last = [0; 8];
        out.read(out.len() - 8, &mut last).unwrap();
        assert_eq!(u64::from_ne_bytes(last), 1);
        assert_eq!(Arc::strong_count(&sentinel), 2, "the graph has it");
    }
    gate.0.fill(0, 8, 0).unwrap();
    // SAFETY: the same as above.
    unsafe { graph.launch(&stream).unwrap() };
    drop((graph, out));
    assert!(is_kept(&sentinel), "the launch needs it");
    gate.open();
    stream.synchronize().unwrap();
    assert!(!is_kept(&sentinel));
}

/// An argument that has no value.
struct Nothing;

impl KernelArgument for &Nothing {
    type Param = DevicePtr;

    fn param(&self) -> Result<DevicePtr> {
        Err(Error::InvalidArgument("nothing has no address".to_owned()))
    }

    fn owner(&self) -> Option<Owner> {
        None
    }
}

/// An argument whose owner keeps a sentinel.
struct Guarded(DeviceBuffer, Owner);

impl KernelArgument for &Guarded {
    type Param = DevicePtr;

    fn param(&self) -> Result<DevicePtr> {
        Ok(self.0.ptr())
    }

    fn owner(&self) -> Option<Owner> {
        Some(self.1.clone())
    }
}

struct Guard(#[allow(dead_code, reason = "kept")] Arc<()>);

impl KernelObject for Guard {}

#[test]
fn a_slice_is_an_array_that_lives_with_its_objects_until_the_launch_is_complete() {
    let gpu = Platform::Sim.gpu(0).unwrap();
    let (stream, gate, sentinel) = (gpu.stream().unwrap(), Gate::new(&gpu), Arc::new(()));
    let buffers = [gpu.allocate(8 * WORDS).unwrap(), gpu.allocate(8 * WORDS).unwrap()];
    let slice = buffers.clone().map(|buffer| Guarded(buffer, Arc::new(Guard(sentinel.clone()))));
    let kernel = Module::load(&gpu, &SOURCE).unwrap().kernel("gate_then_store_each").unwrap();
    let args = KernelArgs::new().with(&gate.0).with(1u64).with_array(&gpu, &slice).with(slice.len() as u64);
    // SAFETY: the kernel's arguments.
    unsafe { kernel.launch(&stream, ONE, &args).unwrap() };
    drop((args, slice));
    assert!(is_kept(&sentinel));
    gate.open();
    stream.synchronize().unwrap();
    assert!(!is_kept(&sentinel));
    for buffer in &buffers {
        let mut word = [0u64];
        buffer.read_params(0, &mut word).unwrap();
        assert_eq!(word, [1], "it got the addresses");
    }
    assert_eq!(KernelArgs::new().with_array(&gpu, &[] as &[DeviceBuffer]).len(), 1, "a null pointer");
}

#[test]
fn what_is_refused_keeps_nothing() {
    let gpu = Platform::Sim.gpu(0).unwrap();
    let (stream, gate, sentinel) = (gpu.stream().unwrap(), Gate::new(&gpu), Arc::new(()));
    let refused = |args: KernelArgs, words: &str| {
        let error = launch(&stream, &args).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert!(is_kept(&sentinel), "by the arguments");
        drop(args);
        assert!(!is_kept(&sentinel), "{words}");
    };
    let why = "launch of gate_then_store: argument 2 (out: &Nothing): nothing has no address";
    refused(gate.args(&Nothing, &sentinel), why);
    // The error reports the missing value rather than that the other arguments do not fit the kernel.
    let args = gate.args(&Nothing, &sentinel);
    assert_eq!(args.len(), 3);
    refused(args.with(1u64), "nothing has no address");
    refused(gate.args(0u32, &sentinel), "its parameters have [8, 8, 8, 8] bytes");
    refused(gate.args(&gate.0, &sentinel).with(&gate.0), "its parameters");
    let other = Platform::Sim.gpu(1).unwrap().stream().unwrap();
    let kernel = Module::load(&gpu, &SOURCE).unwrap().kernel("gate_then_store").unwrap();
    // SAFETY: the launch is refused.
    let error = unsafe { kernel.launch(&other, ONE, &gate.args(&gate.0, &sentinel)) }.unwrap_err();
    assert!(error.to_string().contains("the stream is one of sim device 1"), "{error}");
    assert!(!is_kept(&sentinel));
    stream.synchronize().unwrap();
}

#[test]
fn launches_of_a_stream_that_has_failed_keep_nothing() {
    let gpu = Platform::Sim.gpu(0).unwrap();
    let (stream, gate, sentinel) = (gpu.stream().unwrap(), Gate::new(&gpu), Arc::new(()));
    let module = Module::load(&gpu, &SOURCE).unwrap();
    let wait = KernelArgs::new().with(&gate.0).with(1u64);
    // SAFETY: the kernels' arguments.
    unsafe {
        module.kernel("gate").unwrap().launch(&stream, ONE, &wait).unwrap();
        module.kernel("fails").unwrap().launch(&stream, ONE, &KernelArgs::new().with(0u32)).unwrap();
    }
    launch(&stream, &gate.args(&gate.0, &sentinel)).unwrap();
    gate.open();
    assert!(matches!(stream.synchronize(), Err(Error::KernelFailed { .. })));
    assert!(!is_kept(&sentinel), "it was skipped");
    launch(&stream, &gate.args(&gate.0, &sentinel)).unwrap_err();
    assert!(!is_kept(&sentinel));
}

/// The object through which the gate's kernels wait: aborting it opens the gate.
struct Waits<'a> {
    gate: &'a Gate,
    /// The result of a check before an abort.
    known: Result<()>,
}

impl Abort for Waits<'_> {
    type Error = Error;

    fn abort(&self, reason: &str) {
        assert!(reason.contains("rank 3") && reason.contains("1ms"), "{reason}");
        self.gate.open();
    }

    fn check(&self) -> Result<()> {
        self.known.clone()
    }

    fn peers(&self) -> Vec<String> {
        vec!["rank 3".to_owned()]
    }
}

#[test]
fn time_that_runs_out_aborts_and_waits_and_says_for_whom() {
    const SHORT: std::time::Duration = std::time::Duration::from_millis(1);
    let gpu = Platform::Sim.gpu(0).unwrap();
    let (stream, sentinel, long) = (gpu.stream().unwrap(), Arc::new(()), mscclpp_test_support::LIMIT);
    let known = || Err(Error::InvalidArgument("rank 3 was lost".to_owned()));
    for (known, text) in
        [(Ok(()), "wait for rank 3, did not finish within 1ms"), (known(), "rank 3 was lost")]
    {
        let gate = Gate::new(&gpu);
        launch(&stream, &gate.args(&gpu.allocate(8 * WORDS).unwrap(), &sentinel)).unwrap();
        let waits = Waits { gate: &gate, known };
        let error = stream.synchronize_or_abort(SHORT, &[&waits]).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
        assert!(stream.query().unwrap() && !is_kept(&sentinel), "it has waited for the end");
        // If the kernels end in time, only the known result counts.
        let waits = vec![waits];
        for limit in [long, std::time::Duration::MAX] {
            assert_eq!(stream.synchronize_or_abort(limit, &waits).is_err(), text.ends_with("lost"));
        }
    }
}
