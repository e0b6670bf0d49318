//! The behaviour of devices in a forked child, on simulated devices and on GPUs.
//!
//! Each trial forks a parent of its own, because a process that has opened a device cannot undo that.

mod device;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    time::Duration,
};

use libtest_mimic::{Arguments, Failed};
use mscclpp_gpu::{Error, Gpu, KernelArgs, KernelSource, LaunchConfig, Module, Platform, Result};
use mscclpp_test_support::{in_fork, trials, until};

/// The longest time of a child: more than any trial takes, and short enough to wait for one that hangs.
const LIMIT: Duration = Duration::from_secs(15);

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // The trials run on this thread.
    arguments.test_threads = Some(1);
    let trials = trials![by of:
        every_use_in_a_child_names_the_fork,
        a_child_leaves_its_parents_devices_alone,
        a_child_that_touches_shared_memory_ends_and_says_why,
        a_child_does_not_wait_for_a_compiler_of_its_parent,
        a_child_may_be_the_first_to_open_a_device,
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Runs a test in a parent of its own.
fn of(test: impl FnOnce()) -> std::result::Result<(), Failed> {
    in_fork(3 * LIMIT, || {
        test();
        String::new()
    });
    Ok(())
}

const ADD: KernelSource<'_> =
    KernelSource::new("forks.cu", "extern \"C\" __global__ void add_one(int* p) { *p += 1; }\n");

fn every_use_in_a_child_names_the_fork() {
    let gpu = device::gpu();
    let parent = std::process::id();
    let (stream, buffer) = (gpu.stream().unwrap(), gpu.allocate(64).unwrap());
    let (pinned, event) = (gpu.allocate_pinned(64).unwrap(), gpu.event(true).unwrap());
    let module = Module::load(&gpu, &ADD).unwrap();
    let kernel = module.kernel("add_one").unwrap();
    let (args, one) = (KernelArgs::new().with(&buffer), LaunchConfig::linear(1, 1));
    stream.begin_capture().unwrap();
    // SAFETY: the kernel's argument, which the launch keeps.
    unsafe { kernel.launch(&stream, one, &args).unwrap() };
    let graph = stream.end_capture().unwrap();
    stream.record(&event).unwrap();
    gpu.default_stream().unwrap().synchronize().unwrap();
    stream.synchronize().unwrap();
    let (platform, ptr) = (gpu.platform(), buffer.ptr());

    let said = in_fork(LIMIT, || {
        let mut first = [0; 4];
        // SAFETY: the same as above; nothing is submitted.
        let uses: [(&str, Result<()>); 27] = unsafe {
            [
                ("Platform::device_count", platform.device_count().map(drop)),
                ("Platform::gpu", platform.gpu(0).map(drop)),
                ("Platform::current_gpu", platform.current_gpu().map(drop)),
                ("Platform::detect_or_sim", Platform::detect_or_sim().map(drop)),
                ("Platform::owner_of", platform.owner_of(ptr).map(drop)),
                ("Gpu::allocate", gpu.allocate(64).map(drop)),
                ("Gpu::allocate_pinned", gpu.allocate_pinned(64).map(drop)),
                ("Gpu::stream", gpu.stream().map(drop)),
                ("Gpu::default_stream", gpu.default_stream().map(drop)),
                ("Gpu::event", gpu.event(false).map(drop)),
                ("Gpu::synchronize", gpu.synchronize()),
                ("Gpu::memory_info", gpu.memory_info().map(drop)),
                ("Gpu::export", gpu.export(ptr, 64).map(drop)),
                ("Module::load", Module::load(&gpu, &ADD).map(drop)),
                ("Module::kernel", module.kernel("add_one").map(drop)),
                ("Kernel::launch", kernel.launch(&stream, one, &args)),
                ("Kernel::max_resident_blocks", kernel.max_resident_blocks(1, 0).map(drop)),
                ("Graph::launch", graph.launch(&stream)),
                ("Stream::copy", stream.copy(ptr, ptr.add(8), 8)),
                ("Stream::record", stream.record(&event)),
                ("Stream::query", stream.query().map(drop)),
                ("Stream::synchronize", stream.synchronize()),
                ("Stream::synchronize_timeout", stream.synchronize_timeout(LIMIT)),
                ("Event::query", event.query().map(drop)),
                ("DeviceBuffer::write", buffer.write(0, &[1; 4])),
                ("DeviceBuffer::read", buffer.read(0, &mut first)),
                ("PinnedBuffer::word", pinned.word(0).map(drop)),
            ]
        };
        let named = |error: &Error| {
            let text = error.to_string();
            matches!(error, Error::Forked { parent: of, child } if *of == parent && *child == std::process::id())
                && text.contains("fork of process")
                && text.contains("spawn")
        };
        uses.iter()
            .filter(|(_, result)| !result.as_ref().is_err_and(named))
            .map(|(what, result)| format!("{what} gives {result:?}; "))
            .collect()
    });
    assert_eq!(said, "", "in a forked child");
    let mut first = [0; 4];
    buffer.read(0, &mut first).unwrap();
    assert_eq!(first, [0; 4], "the child wrote into the parent's memory");
}

fn add_one_to(gpu: &Gpu) -> i32 {
    let (stream, word) = (gpu.stream().unwrap(), gpu.allocate(4).unwrap());
    let kernel = Module::load(gpu, &ADD).unwrap().kernel("add_one").unwrap();
    let args = KernelArgs::new().with(&word);
    // SAFETY: the kernel's argument, which the launch keeps.
    unsafe { kernel.launch(&stream, LaunchConfig::linear(1, 1), &args).unwrap() };
    stream.synchronize_timeout(LIMIT).unwrap();
    let mut value = [0];
    word.read_params(0, &mut value).unwrap();
    value[0]
}

fn a_child_leaves_its_parents_devices_alone() {
    let gpu = device::gpu();
    let (stream, buffer) = (gpu.stream().unwrap(), gpu.allocate(4).unwrap());
    let (event, module) = (gpu.event(false).unwrap(), Module::load(&gpu, &ADD).unwrap());
    let (kernel, pinned) = (module.kernel("add_one").unwrap(), gpu.allocate_pinned(64).unwrap());
    let args = KernelArgs::new().with(&buffer).keeping(stream.clone());
    // SAFETY: the kernel's argument, which the launch keeps.
    let launch = || unsafe { kernel.launch(&stream, LaunchConfig::linear(1, 1), &args).unwrap() };
    launch();
    stream.record(&event).unwrap();
    stream.synchronize_timeout(LIMIT).unwrap();
    let all =
        (args.clone(), event, pinned, buffer.clone(), stream.clone(), kernel.clone(), module, gpu.clone());
    let mut all = Some(all);
    in_fork(LIMIT, || {
        // As far as the child knows, these are the last owners.
        drop(all.take());
        String::new()
    });
    launch();
    stream.synchronize_timeout(LIMIT).unwrap();
    let mut value = [0];
    buffer.read_params(0, &mut value).unwrap();
    assert_eq!((value[0], add_one_to(&gpu)), (2, 1));
}

/// This is for simulated devices, whose memory is the host's, too.
fn a_child_that_touches_shared_memory_ends_and_says_why() {
    let buffer = Platform::Sim.gpu(0).unwrap().allocate(4).unwrap();
    let own = Platform::Sim.gpu(0).unwrap().allocate_pinned(8).unwrap();
    let said = tempfile::NamedTempFile::new().unwrap();
    let touch = |address: *mut u32| {
        in_fork(LIMIT, || {
            rustix::stdio::dup2_stderr(said.as_file()).unwrap();
            // SAFETY: memory of the parent's; that a child has none of it is the test.
            unsafe { address.write_volatile(7) };
            String::new()
        })
    };
    touch(own.ptr().as_mut_ptr());
    let ended = catch_unwind(AssertUnwindSafe(|| touch(buffer.ptr().as_mut_ptr()))).unwrap_err();
    let ended = ended.downcast::<String>().unwrap();
    assert!(ended.contains("signaled: true"), "{ended}");
    let said = std::fs::read_to_string(said.path()).unwrap();
    assert!(said.contains("this process is a fork") && said.contains("spawn"), "{said}");
    let mut value = [0];
    buffer.read_params(0, &mut value).unwrap();
    assert_eq!(value, [0], "the child wrote into its parent's memory");
}

/// A thread that loads a module holds a lock while the compiler runs; here until a file is gone.
fn a_child_does_not_wait_for_a_compiler_of_its_parent() {
    let folder = tempfile::tempdir().unwrap();
    let [compiler, runs] = ["c++", "runs"].map(|name| folder.path().join(name));
    let script =
        format!("#!/bin/sh\n: > {0}\nwhile [ -e {0} ]; do sleep 0.05; done\nexit 1\n", runs.display());
    fs::write(&compiler, script).unwrap();
    fs::set_permissions(&compiler, fs::Permissions::from_mode(0o700)).unwrap();
    // SAFETY: this process has no other thread yet.
    unsafe { std::env::set_var("MSCCLPP_CXX", &compiler) };
    let gpu = Platform::Sim.gpu(0).unwrap();
    let load = || Module::load_once(&gpu, &KernelSource::new("waits.cu", "never compiled")).unwrap_err();
    std::thread::scope(|scope| {
        let loads = scope.spawn(load);
        until("the compiler", || runs.exists());
        let said = in_fork(LIMIT, || load().to_string());
        fs::remove_file(&runs).unwrap();
        assert!(said.contains("fork of process"), "{said}");
        assert!(matches!(loads.join().unwrap(), Error::NoCompiler { .. }));
    });
}

fn a_child_may_be_the_first_to_open_a_device() {
    // Calls that only look at devices open none.
    let platform = if device::platform() == Platform::Sim { Platform::Sim } else { return };
    platform.device_count().unwrap();
    for _ in 0..2 {
        in_fork(LIMIT, || {
            assert_eq!(add_one_to(&platform.gpu(0).unwrap()), 1);
            String::new()
        });
    }
}
