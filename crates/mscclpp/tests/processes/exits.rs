//! Programs that end while a kernel waits: the process ends at once, with its own exit code, and no signal kills it.
//!
//! The programs are this test program again. After they have dropped their objects and before they return from `main`,
//! they wait until their kernel has used all its memory again: a kernel whose memory is gone would not get that far.

use std::{
    process::ExitCode,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use libtest_mimic::{Failed, Trial};
use mscclpp::{memory::PinnedBuffer, prelude::*};
use mscclpp_test_support::{
    child::{as_child, output_within},
    until,
};

use crate::support::{
    LIMIT, kernels,
    waiting::{KERNELS, Objects, alone},
};

const SHORT: Duration = Duration::from_millis(50);
const ONE: LaunchConfig = LaunchConfig::linear(1, 1);

/// The word in which kernels count how often they have used their memory. It is a static so that it outlives all other
/// objects.
static BEAT: OnceLock<PinnedBuffer> = OnceLock::new();

/// The `main` of a program.
pub(crate) fn main(name: &str) -> mscclpp::Result<ExitCode> {
    let result = program(name);
    if let Some(beat) = BEAT.get() {
        let beat: &AtomicU64 = beat.word(0)?;
        let before = beat.load(Ordering::Relaxed);
        until("two more beats of the kernel", || beat.load(Ordering::Relaxed) >= before + 2);
    }
    result.map(|()| ExitCode::SUCCESS)
}

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = vec![
        trial("obvious", 1),
        trial("synchronize_or_abort", 1),
        trial("nothing_is_dropped", 1),
        trial("many_blocks", 1),
        trial("another_thread_waits", 1),
        trial("exit", 3),
        trial("panic", 101),
        trial("graph", 1),
    ];
    trials.extend((0..KERNELS.len()).map(|kernel| trial(&format!("kernel_{kernel}"), 1)));
    for turn in 0..9 {
        trials.push(trial(&format!("dropped_from_{turn}"), 1));
        trials.push(trial(&format!("dropped_backwards_from_{turn}"), 1));
    }
    trials
}

fn trial(program: &str, code: i32) -> Trial {
    let program = program.to_owned();
    Trial::test(program.clone(), move || ends(&program, code))
}

fn ends(program: &str, code: i32) -> Result<(), Failed> {
    let output = output_within(LIMIT, &mut as_child(&["exits", program]));
    let said = String::from_utf8_lossy(&output.stderr);
    let says_why = program == "exit" || said.contains("did not finish within 50ms");
    match output.status.code() {
        Some(ended) if ended == code && says_why => Ok(()),
        _ => Err(format!("{program} ended with {} where {code} was due:\n{said}", output.status).into()),
    }
}

/// Makes the beat for the kernels of this program.
fn beat(gpu: &Gpu) -> mscclpp::Result<&'static PinnedBuffer> {
    let beat = gpu.allocate_pinned(8)?;
    Ok(BEAT.get_or_init(|| beat))
}

/// Runs a program without a clean-up: nobody signals, so `synchronize_timeout` fails, and `?` drops everything and
/// returns.
fn program(name: &str) -> mscclpp::Result<()> {
    match name {
        "obvious" => return obvious(),
        "graph" => return replayed(),
        "synchronize_or_abort" => return given_up(),
        _ => {}
    }
    let comm = alone();
    let objects = Objects::new(&comm)?;
    let stream = objects.gpu.stream()?;
    let (kernel, shape) = match name.strip_prefix("kernel_") {
        Some(number) => (number.parse().expect("a number"), ONE),
        None if name == "many_blocks" => (1, LaunchConfig::linear(64, 32)),
        None => (1, ONE),
    };
    objects.start(&stream, kernel, shape, Some(beat(&objects.gpu)?))?;
    if name == "another_thread_waits" {
        let stream = stream.clone();
        thread::spawn(move || stream.synchronize());
    }
    let result = stream.synchronize_timeout(SHORT);
    match name {
        "exit" => std::process::exit(3),
        "panic" => result.clone().expect("a signal"),
        "nothing_is_dropped" => std::mem::forget((comm, objects, stream)),
        _ => {
            if let Some((how, turn)) = name.strip_prefix("dropped_").and_then(|name| name.split_once("from_"))
            {
                let mut parts = objects.into_parts();
                parts.push(Box::new((comm, stream)));
                parts.rotate_left(turn.parse().expect("a number"));
                if how == "backwards_" {
                    parts.reverse();
                }
                parts.into_iter().for_each(drop);
            }
        }
    }
    Ok(result?)
}

/// All objects are local variables, as most programs would write it.
fn obvious() -> mscclpp::Result<()> {
    let comm = alone();
    let gpu = comm.context().gpu(0)?;
    let connection = comm.connect(EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(0)), 0, 0)?.wait()?;
    let buffer = gpu.allocate(1 << 20)?;
    let memory = comm.register_buffer(&buffer, Transport::CUDA_IPC)?;
    comm.send_memory(&memory, 0, 0)?;
    let theirs = comm.recv_memory(0, 0)?.wait()?;
    let channel = MemoryChannel::from_connection(&comm, &connection, &theirs, &memory, None)?;
    let ended = gpu.allocate(8)?;
    let module = Module::load(&gpu, &kernels::LIFETIMES)?;
    let kernel = module.kernel("wait_memory")?;
    let stream = gpu.stream()?;
    let args = KernelArgs::new().with(&channel).with(buffer.len() / 8).with(beat(&gpu)?).with(&ended);
    // SAFETY: the kernel's arguments.
    unsafe { kernel.launch(&stream, LaunchConfig::linear(1, 32), &args)? };
    stream.synchronize_timeout(SHORT)?;
    Ok(())
}

/// A graph captured the kernel with objects that are dropped, and then the graph is dropped.
fn replayed() -> mscclpp::Result<()> {
    let comm = alone();
    let gpu = comm.context().gpu(0)?;
    let stream = gpu.stream()?;
    let graph = {
        let objects = Objects::new(&comm)?;
        stream.begin_capture()?;
        objects.start(&stream, 1, ONE, Some(beat(&gpu)?))?;
        stream.end_capture()?
    };
    // SAFETY: the graph keeps all objects that it needs.
    unsafe { graph.launch(&stream)? };
    drop(graph);
    stream.synchronize_timeout(SHORT)?;
    Ok(())
}

/// The kernel's wait is given up, and the kernel ends.
fn given_up() -> mscclpp::Result<()> {
    let comm = alone();
    let objects = Objects::new(&comm)?;
    let stream = objects.gpu.stream()?;
    objects.start(&stream, 1, ONE, None)?;
    Ok(stream.synchronize_or_abort(SHORT, &objects.channel)?)
}
