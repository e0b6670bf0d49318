//! Unchanged programs that use NCCL, run on this library. Trials that need GPUs or a Python package are ignored where these are
//! missing.

#[path = "../support/mod.rs"]
mod support;

use std::{
    env, fs,
    path::Path,
    process::{Command, ExitCode},
    sync::Arc,
    time::Duration,
};

use cudarc::{
    driver::CudaContext,
    nccl::safe::{Comm, Id, ReduceOp, group_end, group_start},
};
use libtest_mimic::{Arguments, Failed, Trial};
use mscclpp::Platform;
use mscclpp_test_support::{LIMIT, child};
use support::nccl::path;

/// How long a script that imports torch may take.
const TORCH: Duration = Duration::from_secs(550);

fn main() -> ExitCode {
    if child::role().is_some() {
        by_cudarc();
        return ExitCode::SUCCESS;
    }
    let gpus = Platform::Cuda.device_count().unwrap_or(0);
    let two = |name, run: fn() -> Result<(), Failed>, needs: Option<&str>| {
        let runs = gpus >= 2 && needs.is_none_or(python_has);
        Trial::test(name, run).with_ignored_flag(!runs).with_kind(if runs { "" } else { "two GPUs" })
    };
    let trials = vec![
        Trial::test("ctypes_on_simulated_devices", || {
            let mut command = script("by_ctypes.py");
            command.arg(path()).arg("3").env("MSCCLPP_PLATFORM", "sim");
            succeeds(&mut command, LIMIT).map(drop)
        })
        .with_ignored_flag(!python_has("ctypes")),
        Trial::test("nccl4py_on_simulated_devices", || {
            succeeds(nccl4py("3").env("MSCCLPP_PLATFORM", "sim"), LIMIT).map(drop)
        })
        .with_ignored_flag(!python_has("nccl.core")),
        two(
            "ctypes",
            || {
                let mut command = script("by_ctypes.py");
                succeeds(command.arg(path()).arg("2").env("MSCCLPP_PLATFORM", "cuda"), LIMIT).map(drop)
            },
            Some("ctypes"),
        ),
        two(
            "cudarc",
            || {
                // The folder has the library under the name `libnccl.so`, which cudarc loads.
                let mut command = child::as_child(&["cudarc"]);
                let folder = path().parent().map(Path::to_owned).ok_or("no folder")?;
                succeeds(command.env("LD_LIBRARY_PATH", folder), LIMIT).map(drop)
            },
            None,
        ),
        two("cupy", || succeeds(preloaded(script("by_cupy.py").arg("2")), TORCH).map(drop), Some("cupy")),
        two(
            "nccl4py",
            || succeeds(nccl4py("2").env("MSCCLPP_PLATFORM", "cuda"), LIMIT).map(drop),
            Some("nccl.core"),
        ),
        two("jax", || calls_this(script("by_jax.py").arg("2")), Some("jax")),
        two("jax_by_processes", || calls_this(script("by_jax.py").args(["2", "--processes"])), Some("jax")),
        two("torch_gives_the_losses_that_it_gives_with_nccl", || torch(&[]), Some("torch")),
        two(
            "torch_of_two_nodes_gives_the_losses_that_it_gives_with_nccl",
            || torch(&["--nodes"]),
            Some("torch"),
        ),
    ];
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(1));
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Whether Python is installed and has a module.
fn python_has(module: &str) -> bool {
    let found = Command::new("python3").args(["-c", &format!("import {module}")]).output();
    found.is_ok_and(|output| output.status.success())
}

fn script(name: &str) -> Command {
    // The script is where this test was compiled, or in the working directory of another copy of the repository.
    let folders = [env!("CARGO_MANIFEST_DIR"), "crates/mscclpp-nccl", "."];
    let scripts = folders.map(|folder| Path::new(folder).join("tests/clients").join(name));
    let script = scripts.iter().find(|script| script.exists()).unwrap_or(&scripts[0]);
    let mut command = Command::new("python3");
    command.arg(script);
    command
}

/// Makes a command load this library before NCCL.
fn preloaded(command: &mut Command) -> &mut Command {
    command.env("LD_PRELOAD", path()).env("MSCCLPP_NCCL_DEBUG", "INFO")
}

/// Runs a command, which must succeed within `limit`, and returns what it wrote to standard output and standard error.
fn succeeds(command: &mut Command, limit: Duration) -> Result<String, Failed> {
    let output = child::output_within(limit, command);
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    println!("{stdout}");
    if output.status.success() {
        Ok(stdout + &stderr)
    } else {
        Err(format!("{}: {stderr}", output.status).into())
    }
}

/// A client of nccl4py with so many ranks.
fn nccl4py(ranks: &str) -> Command {
    let mut command = script("by_nccl4py.py");
    command.arg(ranks).env("LD_PRELOAD", path());
    command
}

/// Runs a command, which must succeed, and must have loaded this library.
fn calls_this(command: &mut Command) -> Result<(), Failed> {
    let said = succeeds(preloaded(command), TORCH)?;
    assert!(said.contains("mscclpp-nccl ["), "it has not loaded this library: {said}");
    Ok(())
}

/// Trains with NCCL and with this library, and compares the losses bit by bit: with two ranks both add the same two numbers.
fn torch(options: &[&str]) -> Result<(), Failed> {
    let file =
        |name: &str| env::temp_dir().join(format!("mscclpp-losses-{}-{name}.json", std::process::id()));
    let [ours, theirs] = ["ours", "nccl"].map(file);
    calls_this(script("by_torch.py").arg("2").args(options).arg("--results").arg(&ours))?;
    succeeds(script("by_torch.py").arg("2").args(options).arg("--results").arg(&theirs), TORCH)?;
    let [ours, theirs] = [ours, theirs].map(|path| {
        let results = fs::read_to_string(&path).expect("results");
        fs::remove_file(path).expect("a file of ours");
        results
    });
    assert_eq!(ours, theirs);
    Ok(())
}

/// Uses cudarc's safe communicators, by several threads and by one. This runs in a child process.
fn by_cudarc() {
    let ranks = 2;
    let id = Id::new().expect("an id");
    let contexts: Vec<Arc<CudaContext>> = (0..ranks).map(|i| CudaContext::new(i).expect("a GPU")).collect();
    std::thread::scope(|scope| {
        for (rank, context) in contexts.iter().enumerate() {
            scope.spawn(move || {
                let stream = context.new_stream().expect("a stream");
                let comm = Comm::from_rank(stream.clone(), rank, ranks, id).expect("a communicator");
                assert_eq!((comm.rank(), comm.world_size()), (rank, ranks));
                let send = stream.clone_htod(&vec![rank as f32 + 1.0; 5000]).expect("memory");
                let mut recv = stream.alloc_zeros::<f32>(5000).expect("memory");
                comm.all_reduce(&send, &mut recv, &ReduceOp::Sum).expect("all_reduce");
                assert_eq!(stream.clone_dtoh(&recv).expect("a copy"), vec![3.0; 5000]);
                let mut gathered = stream.alloc_zeros::<f32>(10_000).expect("memory");
                comm.all_gather(&send, &mut gathered).expect("all_gather");
                comm.reduce_scatter(&gathered, &mut recv, &ReduceOp::Avg).expect("reduce_scatter");
                assert_eq!(stream.clone_dtoh(&recv).expect("a copy"), vec![rank as f32 + 1.0; 5000]);
                let peer = 1 - rank as i32;
                group_start().expect("a group");
                comm.send(&send, peer).expect("send");
                comm.recv(&mut recv, peer).expect("recv");
                group_end().expect("the group's end");
                assert_eq!(stream.clone_dtoh(&recv).expect("a copy"), vec![2.0 - rank as f32; 5000]);
                // Dropping a communicator aborts it, so this waits until the other rank has completed the calls above.
                comm.all_reduce_in_place(&mut recv, &ReduceOp::Max).expect("all_reduce_in_place");
                stream.synchronize().expect("the stream's end");
            });
        }
    });
    let streams = contexts.iter().map(|context| context.new_stream().expect("a stream")).collect();
    let comms = Comm::from_devices(streams).expect("communicators");
    group_start().expect("a group");
    let mut numbers = Vec::new();
    for comm in &comms {
        let stream = comm.stream();
        let mut own = stream.clone_htod(&vec![1.0f64; 3000]).expect("memory");
        comm.all_reduce_in_place(&mut own, &ReduceOp::Sum).expect("all_reduce_in_place");
        numbers.push(own);
    }
    group_end().expect("the group's end");
    for (comm, numbers) in comms.iter().zip(&numbers) {
        assert_eq!(comm.stream().clone_dtoh(numbers).expect("a copy"), vec![2.0; 3000]);
    }
}
