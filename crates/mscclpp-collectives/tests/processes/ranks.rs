//! Collectives whose ranks are processes, of which one is killed in the middle of replays.

use std::{
    thread,
    time::{Duration, Instant},
};

use libtest_mimic::{Failed, Trial};
use mscclpp::{Gpu, LaunchConfig, Module, Platform, Transport, gpu::KernelArgs, gpu::KernelSource};
use mscclpp_collectives::{Collectives, DeviceSlice, Error, Protocol, Selection};
use mscclpp_test_support::{
    Random,
    child::{say, this_program},
    job::{Children, Role, all_succeed},
    until,
};

use crate::support::{Told, builder, communicator_of, device_of, platform, three_sums};

const N: usize = 3;
const VICTIM: usize = 1;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        Trial::test("ranks_that_are_processes_reduce", || all_succeed("ranks reduce", N)),
        Trial::test("ranks_that_are_processes_reduce_between_nodes", || all_succeed("ranks nodes", N)),
        Trial::test("ranks_that_are_processes_give_memory_back_for_a_while", || {
            all_succeed("ranks suspended", N)
        }),
        Trial::test("ranks_that_are_processes_publish", || all_succeed("ranks publish", N)),
        Trial::test("a_rank_that_is_killed_while_it_writes_into_published_memory_is_named_by_all", || {
            killed("publish")
        }),
        Trial::test("a_rank_that_is_killed_in_the_middle_of_replays_is_named_by_all", || killed("replays")),
        Trial::test("a_rank_that_is_killed_is_named_by_all_between_nodes", || killed("nodes")),
        // On GPUs, these kernels need no compiler.
        Trial::test("a_rank_that_cannot_compile_its_kernels_is_an_error_on_all", without_compiler)
            .with_ignored_flag(platform() != Platform::Sim),
    ]
}

fn killed(role: &str) -> Result<(), Failed> {
    let mut children = Children::form(&format!("ranks killed-{role}-{VICTIM}"), N);
    (0..N).for_each(|rank| children.expect(rank, "ready"));
    thread::sleep(Duration::from_millis(Random::new().of(0..=300)));
    let at = Instant::now();
    children.kill(VICTIM);
    children.expect_named(&[0, 2], VICTIM, at)
}

fn without_compiler() -> Result<(), Failed> {
    let mut children = Children::start_as("ranks compile", N, |rank| {
        let mut program = this_program();
        if rank == VICTIM {
            program
                .env("PATH", "/nonexistent")
                .env("MSCCLPP_CACHE_DIR", "/nonexistent")
                .env_remove("CXX")
                .env_remove("MSCCLPP_CXX");
        }
        program
    });
    children.go();
    for rank in 0..N {
        let said = children.next_line(rank);
        println!("rank {rank}: {said}");
        let expected = if rank == VICTIM { "none runs here" } else { "loading the kernels of collectives" };
        if !said.contains(expected) {
            return Err(said.into());
        }
        children.expect_success(rank);
    }
    Ok(())
}

pub(crate) fn child(role: &Role) {
    if role.name == "compile" {
        let comm = communicator_of(role).expect("a communicator");
        let gpu = comm.context().gpu(device_of(role.rank)).expect("a device");
        let error = builder(&comm, &gpu).connect().expect_err("rank 1 has no compiler");
        return say(&error.to_string());
    }
    let run = if role.name.contains("publish") { gather_until } else { replay_until };
    if role.was_killed(|role, _, _| run(role, u64::MAX), || assert_usable(device_of(role.rank))) {
        return;
    }
    run(role, 40).expect("collectives");
}

/// Replays a graph whose memory its capture has published, and gathers into memory that this rank has published, by turns.
fn gather_until(role: &Role, rounds: u64) -> Result<(), Error> {
    const SIMPLE: Selection =
        Selection { protocol: Protocol::Simple, two_steps: false, blocks: 2, threads: 64 };
    let comm = communicator_of(role)?;
    let gpu = comm.context().gpu(device_of(role.rank))?;
    let collectives = builder(&comm, &gpu).selector(Told::new(SIMPLE)).connect()?;
    let stream = gpu.stream()?;
    let numbers = |len: u64| DeviceSlice::<u64>::new(&gpu.allocate(8 * len)?);
    let own = numbers(20_000)?;
    let [captured, eager] = [numbers(N as u64 * 20_000)?, numbers(N as u64 * 20_000)?];
    let published = collectives.publish(eager.buffer())?;
    until("nobody maps it", || published.is_ready());
    stream.begin_capture()?;
    let called = collectives.all_gather(&own, &captured, &stream);
    let graph = stream.end_capture()?;
    called?;
    if rounds == u64::MAX {
        say("ready");
    }
    for round in 0..rounds {
        own.write(&vec![round * (1 + role.rank as u64); own.len()])?;
        let all = if round % 2 == 0 { &captured } else { &eager };
        all.write(&vec![u64::MAX; all.len()])?;
        if round % 2 == 0 {
            // SAFETY: the graph keeps what it uses.
            unsafe { graph.launch(&stream)? };
        } else {
            collectives.all_gather(&own, all, &stream)?;
        }
        collectives.synchronize(&stream)?;
        let expected = (0..all.len()).map(|i| round * (1 + (i / own.len()) as u64));
        assert!(all.read()?.into_iter().eq(expected), "round {round}");
    }
    drop(published);
    comm.bootstrap().barrier()?;
    Ok(())
}

/// Replays a graph, with fresh numbers, until it fails or has been done so many times.
fn replay_until(role: &Role, rounds: u64) -> Result<(), Error> {
    let comm = communicator_of(role)?;
    let gpu = comm.context().gpu(device_of(role.rank))?;
    let mut builder = builder(&comm, &gpu);
    if role.name.contains("nodes") {
        builder =
            builder.node(format!("n{}", role.rank)).between_nodes(Transport::ETHERNET).scratch(512 << 10);
    }
    let collectives = builder.connect()?;
    let stream = gpu.stream()?;
    let numbers = DeviceSlice::<u64>::new(&gpu.allocate(40_000)?)?;
    let graph = three_sums(&collectives, &numbers, &stream)?;
    if rounds == u64::MAX {
        say("ready");
    }
    for round in 0..rounds {
        numbers.write(&vec![round * (1 + role.rank as u64); numbers.len()])?;
        // SAFETY: the graph keeps what it uses.
        unsafe { graph.launch(&stream)? };
        collectives.synchronize(&stream)?;
        let sum = round * (N * (N + 1) / 2) as u64 * (N * N) as u64;
        assert!(numbers.read()?.iter().all(|number| *number == sum), "round {round}");
        if role.name == "suspended" && round % 10 == 0 {
            give_back_and_take_again(&collectives)?;
        }
    }
    comm.bootstrap().barrier()?;
    Ok(())
}

fn give_back_and_take_again(collectives: &Collectives) -> Result<(), Error> {
    let (gpu, given_back) = (collectives.gpu(), collectives.suspendable_bytes());
    let before = gpu.memory_info()?.free;
    // SAFETY: the graph is complete, and no call is made until the collectives are resumed.
    unsafe { collectives.suspend()? };
    let after = gpu.memory_info()?.free;
    if gpu.platform() == Platform::Sim {
        assert_eq!(after, before + given_back.next_multiple_of(4096));
    } else {
        // Ranks that share the device may have taken theirs again.
        eprintln!("{before} bytes were free, {given_back} are given back, {after} are free");
    }
    collectives.resume()
}

/// Checks that the device still runs kernels.
fn assert_usable(id: usize) {
    let gpu: Gpu = platform().gpu(id).expect("a device");
    let source = KernelSource::new("one.cu", r#"extern "C" __global__ void one(int* x) { *x = 1; }"#);
    if gpu.platform() == Platform::Sim {
        let kernel = Module::load(&gpu, &source).expect("a module").kernel("one").expect("a kernel");
        let (memory, stream) = (gpu.allocate(4).expect("memory"), gpu.stream().expect("a stream"));
        // SAFETY: its parameter.
        unsafe { kernel.launch(&stream, LaunchConfig::linear(1, 1), &KernelArgs::new().with(&memory)) }
            .expect("a launch");
        stream.synchronize().expect("its end");
    } else {
        gpu.allocate(4096).expect("memory").fill(0, 4096, 1).expect("a fill");
    }
}
