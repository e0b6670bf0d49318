//! The HIP platform of `mscclpp-gpu`, on the fake: its behaviour when a call of the runtime fails, and that it leaves
//! nothing behind.
//!
//! Each trial starts this program again, with the fake where the dynamic loader looks first.

mod fake;
mod others;
mod scenario;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use libtest_mimic::{Arguments, Failed, Trial};
use mscclpp_gpu::{Error, KernelSource, Module, PinnedBuffer, Platform};
use mscclpp_test_support::child;

use fake::{Existing, Fake};

const LIMIT: Duration = Duration::from_secs(60);

/// The consequence of a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The operation fails with an error that names the call.
    Error,
    /// The log has a warning, as the call was in a `drop`. The object that was to be destroyed still exists.
    LeftBehind,
    /// The failure has no consequence: the answer is not needed.
    Nothing,
}
use Outcome::{Error as IsError, LeftBehind, Nothing};

/// The calls while the platform and its devices are opened.
const OPENING: [(&str, Outcome); 13] = [
    ("hipInit", IsError),
    ("hipGetDeviceCount", IsError),
    ("hipGetDevice", IsError),
    ("hipSetDevice", IsError),
    ("hipDeviceGetName", IsError),
    ("hipDeviceGetUuid", IsError),
    ("hipDeviceGetPCIBusId", IsError),
    ("hipDeviceGetAttribute", IsError),
    ("hipGetDevicePropertiesR0600", IsError),
    ("hipThreadExchangeStreamCaptureMode", IsError),
    ("hipStreamCreateWithFlags", IsError),
    // This belongs to the warming up, which a device does without.
    ("hipExtMallocWithFlags", Nothing),
    ("hipFree", LeftBehind),
];

/// The calls while open devices are used.
const AFTERWARDS: [(&str, Outcome); 57] = [
    ("hipGetDevice", IsError),
    ("hipSetDevice", IsError),
    ("hipThreadExchangeStreamCaptureMode", IsError),
    ("hipRuntimeGetVersion", IsError),
    ("hipMemGetInfo", IsError),
    ("hipDeviceCanAccessPeer", IsError),
    ("hipDeviceGetP2PAttribute", IsError),
    ("hipDeviceEnablePeerAccess", IsError),
    ("hipDeviceGetUuid", IsError),
    ("hipDeviceGetAttribute", Nothing),
    ("hipDeviceSynchronize", IsError),
    ("hipExtMallocWithFlags", IsError),
    ("hipFree", LeftBehind),
    ("hipHostMalloc", IsError),
    ("hipHostGetDevicePointer", IsError),
    ("hipPointerGetAttribute", IsError),
    ("hipMemGetAddressRange", IsError),
    ("hipIpcGetMemHandle", IsError),
    ("hipIpcOpenMemHandle", IsError),
    ("hipIpcCloseMemHandle", LeftBehind),
    ("hipMemcpyAsync", IsError),
    ("hipMemsetD8Async", IsError),
    ("hipStreamCreateWithFlags", IsError),
    ("hipStreamDestroy", LeftBehind),
    ("hipStreamSynchronize", IsError),
    ("hipStreamQuery", IsError),
    ("hipStreamWaitEvent", IsError),
    ("hipStreamGetDevice", IsError),
    ("hipStreamGetId", IsError),
    ("hipStreamWriteValue64", IsError),
    ("hipStreamIsCapturing", IsError),
    // The graph then keeps nothing alive.
    ("hipStreamGetCaptureInfo_v2", Nothing),
    // The same holds for a graph of another library.
    ("hipUserObjectCreate", Nothing),
    ("hipGraphRetainUserObject", Nothing),
    ("hipStreamBeginCapture", IsError),
    ("hipStreamEndCapture", IsError),
    ("hipEventCreateWithFlags", IsError),
    ("hipEventDestroy", LeftBehind),
    ("hipEventRecord", IsError),
    ("hipEventQuery", IsError),
    ("hipEventElapsedTime", IsError),
    ("hipGraphInstantiateWithFlags", IsError),
    ("hipGraphLaunch", IsError),
    ("hipGraphDestroy", LeftBehind),
    ("hipGraphExecDestroy", LeftBehind),
    ("hipModuleLoadData", IsError),
    ("hipModuleUnload", LeftBehind),
    ("hipModuleGetFunction", IsError),
    ("hipModuleGetGlobal", IsError),
    ("hipModuleLaunchKernel", IsError),
    ("hipModuleLaunchCooperativeKernel", IsError),
    ("hipModuleOccupancyMaxActiveBlocksPerMultiprocessor", IsError),
    ("hiprtcCreateProgram", IsError),
    ("hiprtcCompileProgram", IsError),
    ("hiprtcGetCodeSize", IsError),
    ("hiprtcGetCode", IsError),
    ("hiprtcDestroyProgram", LeftBehind),
];

fn main() {
    if let Some(role) = child::role() {
        let role: Vec<&str> = role.iter().map(String::as_str).collect();
        return match role[..] {
            ["export"] => scenario::export(),
            ["fail", entry, when, outcome] => fails(entry, when, outcome),
            ["succeed"] => succeeds(),
            ["run out of memory"] => runs_out_of_memory(),
            ["compile what is wrong"] => compiles_what_is_wrong(),
            ["give pinned memory back"] => gives_pinned_memory_back(),
            ["let go of what was launched"] => scenario::lets_go_of_what_was_launched().expect("launches"),
            ["lose waits"] => others::lost_waits().expect("launches"),
            ["launch on streams of others"] => others::launches(&Fake::load()).expect("launches"),
            ["launch in captures of others"] => others::captures(&Fake::load()).expect("captures"),
            _ => panic!("no such role: {role:?}"),
        };
    }
    let mut trials = vec![
        on_the_fake("all_that_is_made_is_taken_down", &["succeed"]),
        on_the_fake("a_device_that_is_full_says_so", &["run out of memory"]),
        on_the_fake("pinned_memory_is_given_back_or_kept", &["give pinned memory back"]),
        on_the_fake(
            "what_launches_needed_is_let_go_when_they_are_complete",
            &["let go of what was launched"],
        ),
        on_the_fake(
            "launches_on_a_stream_of_others_make_no_more_calls_than_on_ours",
            &["launch on streams of others"],
        ),
        on_the_fake("whoever_waits_is_told_once_of_waits_that_failed", &["lose waits"]),
        on_the_fake("graphs_of_others_keep_what_their_launches_need", &["launch in captures of others"]),
        on_the_fake("what_does_not_compile_comes_with_the_compilers_log", &["compile what is wrong"]),
    ];
    for (when, entries) in [("opening", &OPENING[..]), ("afterwards", &AFTERWARDS[..])] {
        for (entry, outcome) in entries {
            let role = ["fail", entry, when, &format!("{outcome:?}")];
            trials.push(on_the_fake(&format!("a_failed_call::{when}::{entry}"), &role));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit()
}

/// Makes a trial that starts this program again, in that role.
fn on_the_fake(name: &str, role: &[&str]) -> Trial {
    let role: Vec<String> = role.iter().map(|&word| word.to_owned()).collect();
    let trial = Trial::test(name, move || {
        let folder = tempfile::tempdir()?;
        let role: Vec<&str> = role.iter().map(String::as_str).collect();
        let mut command = child::as_child(&role);
        fake::put_in_place(folder.path(), &mut command)?;
        // Each cache calls hiprtc only once.
        let calls_compiler = role.iter().any(|word| word.starts_with("hiprtc") || *word == "succeed");
        let cache = if calls_compiler { folder.path().join("cache") } else { shared_cache() };
        let output = child::output_within(LIMIT, command.env("MSCCLPP_CACHE_DIR", cache));
        match output.status.success() {
            true => Ok(()),
            false => Err(Failed::from(String::from_utf8_lossy(&output.stderr).into_owned())),
        }
    });
    // The trial is ignored if the test program was copied without the fake.
    match fake::is_there() {
        true => trial,
        false => trial.with_kind("the fake is not beside this program").with_ignored_flag(true),
    }
}

fn shared_cache() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels")
}

fn succeeds() {
    let fake = Fake::load();
    let theirs = scenario::Exporter::start();
    let devices = scenario::open().expect("devices");
    scenario::run(&devices, &theirs).expect("the scenario");
    fake.await_existing("at the end", scenario::at_the_end(&devices));
    for (entry, _) in OPENING.into_iter().chain(AFTERWARDS) {
        assert!(fake.calls(entry) > 0, "{entry} was not called, so its failures are not tested");
    }
    assert_eq!(fake.last_error(), 0, "a result was left for hipGetLastError");
}

/// The code of hipErrorUnknown; hiprtc has no such code.
const CODE: u32 = 999;

fn fails(entry: &str, when: &str, outcome: &str) {
    let fake = Fake::load();
    let theirs = scenario::Exporter::start();
    let plan = |stage| {
        if when == stage {
            // A failure in another thread, such as one that frees memory, gives no error here.
            fake.fail(entry, CODE, outcome == "Error");
        }
    };
    plan("opening");
    let result = scenario::open().and_then(|devices| {
        plan("afterwards");
        scenario::run(&devices, &theirs)
    });
    // Memory is freed by another thread.
    fake.await_failure(entry);
    match (outcome, &result) {
        ("Error", Err(error)) => {
            assert!(format!("{error:?}").contains(entry), "the error does not name {entry}: {error:?}");
        }
        ("LeftBehind" | "Nothing", Ok(())) => {}
        _ => panic!("{entry}: {outcome} was expected, not {result:?}"),
    }
    assert_eq!(fake.last_error(), 0, "a result was left for hipGetLastError");
    // The devices are as good as before. Objects that the failed run left to be destroyed later are gone then, too.
    let devices = scenario::open().expect("devices");
    scenario::run(&devices, &theirs).expect("the scenario after the failure");
    let expected = scenario::at_the_end(&devices);
    fake.await_existing(entry, if outcome == "LeftBehind" { expected.with(1, entry) } else { expected });
}

fn runs_out_of_memory() {
    let fake = Fake::load();
    let gpu = Platform::Hip.gpu(0).expect("a device");
    const LIMIT: u64 = 64 << 20;
    fake.limit_memory(LIMIT);
    match gpu.allocate(LIMIT + 1) {
        Err(Error::Driver { operation, code: 2, name, .. }) => {
            assert_eq!(
                (&*operation, &*name),
                ("hipExtMallocWithFlags(67108865 bytes)", "hipErrorOutOfMemory")
            );
        }
        other => panic!("{other:?}"),
    }
    // Memory that was dropped is there for the next allocation, though another thread frees it.
    for _ in 0..20 {
        drop(gpu.allocate(LIMIT / 4 * 3).expect("memory that was dropped before"));
    }
    let first = gpu.allocate(LIMIT / 2).expect("half of it");
    assert!(gpu.allocate(LIMIT / 4 * 3).is_err());
    first.fill(0, LIMIT / 2, 7).expect("the device still works");
    assert_eq!(fake.last_error(), 0);
    drop(first);
    fake.await_existing("at the end", Existing::default().with(1, "hipStreamDestroy"));
}

fn compiles_what_is_wrong() {
    let fake = Fake::load();
    let gpu = Platform::Hip.gpu(0).expect("a device");
    let source = KernelSource::new("wrong.cu", "extern \"C\" __global__ void f() { nonsense; }");
    let Err(Error::Compile { name, log }) = Module::load(&gpu, &source) else { panic!("it compiles") };
    assert!(name == "wrong.cu" && log.contains("nonsense"), "{name}: {log}");
    for entry in ["hiprtcGetProgramLogSize", "hiprtcGetProgramLog"] {
        fake.fail(entry, CODE, false);
        let error = Module::load(&gpu, &source).expect_err("it compiles");
        assert!(matches!(&error, Error::System(failure) if failure.operation == entry), "{error:?}");
    }
    assert_eq!(fake.existing().of("hiprtcDestroyProgram"), 0);
}

fn gives_pinned_memory_back() {
    let fake = Fake::load();
    let gpu = Platform::Hip.gpu(0).expect("a device");
    let fails = |entry: &str| {
        let error = gpu.allocate_pinned(64).map(|_: PinnedBuffer| ()).expect_err("it was to fail");
        assert!(error.to_string().contains(entry), "{error}");
    };
    fake.fail("hipHostGetDevicePointer", CODE, false);
    fails("hipHostGetDevicePointer");
    assert_eq!(fake.existing().of("hipHostFree"), 0, "what has no address on the device is freed");
    fake.fail("hipHostGetDevicePointer", CODE, false);
    fake.fail("hipHostFree", CODE, false);
    // The first failure is the one that is reported.
    fails("hipHostGetDevicePointer");
    assert_eq!(fake.existing().of("hipHostFree"), 1);
    let one: PinnedBuffer = gpu.allocate_pinned(64).expect("pinned memory");
    drop(one);
    let again: PinnedBuffer = gpu.allocate_pinned(64).expect("pinned memory");
    assert_eq!((fake.existing().of("hipHostFree"), again.len()), (2, 64), "it is used again");
}
