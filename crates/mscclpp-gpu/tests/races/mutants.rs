//! Kernels with one change each that makes them wrong.

use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use mscclpp_gpu::{Error, Gpu, KernelArgs, KernelSource, LaunchConfig, Module, Platform};

use crate::words::place;

/// The time limit of all launches of a run: a mutant may poll for long.
const LIMIT: Duration = Duration::from_secs(600);

/// The most runs of a mutant in which it may stay unnoticed.
const RUNS: usize = 400;

pub(crate) const EXCHANGE: &str = include_str!("exchange.cu");
pub(crate) const FLAGS: &str = include_str!("flags.cu");
pub(crate) const GRID: &str = include_str!("grid.cu");
const BULK: &str = include_str!("bulk.cu");
const PACKETS: &str = include_str!("packets.cu");

pub(crate) struct Mutant {
    pub(crate) name: &'static str,
    source: &'static str,
    pub(crate) kernel: &'static str,
    /// A text that the source has once, and its replacement in the mutant.
    change: [&'static str; 2],
    /// Marks of the lines of the two accesses, as in `// @write`. The first is empty for a read of bytes that nobody has
    /// written.
    lines: [&'static str; 2],
    /// A part of the hint.
    hint: &'static str,
}

#[rustfmt::skip]
pub(crate) const MUTANTS: &[Mutant] = &[
    Mutant { name: "a_signal_is_relaxed", source: EXCHANGE, kernel: "exchange",
        change: ["semaphore.signal()", "semaphore.relaxedSignal()"], lines: ["write", "read"], hint: "releases nothing" },
    Mutant { name: "a_wait_is_relaxed", source: EXCHANGE, kernel: "exchange",
        change: ["semaphore.wait()", "semaphore.relaxedWait()"], lines: ["write", "read"], hint: "acquires nothing" },
    Mutant { name: "no_barrier_stands_in_front_of_the_signal", source: EXCHANGE, kernel: "exchange",
        change: ["__syncthreads();  // @before", "// @before"], lines: ["write", "read"], hint: "signal()" },
    Mutant { name: "no_barrier_stands_behind_the_wait", source: EXCHANGE, kernel: "exchange",
        change: ["__syncthreads();  // @behind", "// @behind"], lines: ["write", "read"], hint: "signal()" },
    Mutant { name: "scratch_is_not_doubled", source: EXCHANGE, kernel: "exchange",
        change: ["round % 2 * Threads", "0"], lines: ["write", "read"], hint: "signals back behind the read" },
    Mutant { name: "a_flag_is_stored_relaxed", source: FLAGS, kernel: "flags",
        change: ["memoryOrderRelease);  // @set", "memoryOrderRelaxed);  // @set"],
        lines: ["write", "read"], hint: "releases nothing" },
    Mutant { name: "a_flag_is_loaded_relaxed", source: FLAGS, kernel: "flags",
        change: ["memoryOrderAcquire) < value)", "memoryOrderRelaxed) < value)"], lines: ["write", "read"], hint: "acquires nothing" },
    Mutant { name: "a_flag_is_used_again", source: FLAGS, kernel: "flags",
        change: ["waitFor(mine, round + 1)", "waitFor(mine, 1)"], lines: ["write", "read"], hint: "signal()" },
    Mutant { name: "the_epoch_is_not_advanced", source: FLAGS, kernel: "epochs",
        change: ["mine[Launches] = epoch + 1;", ""], lines: ["writeOfEpoch", "readOfEpoch"], hint: "signal()" },
    Mutant { name: "the_fence_in_front_is_missing", source: FLAGS, kernel: "fences",
        change: ["__threadfence_system();  // first", ""], lines: ["writeOfFences", "readOfFences"], hint: "releases nothing" },
    Mutant { name: "the_fence_behind_is_missing", source: FLAGS, kernel: "fences",
        change: ["__threadfence_system();  // second", ""], lines: ["writeOfFences", "readOfFences"], hint: "acquires nothing" },
    Mutant { name: "blocks_do_not_meet", source: GRID, kernel: "blocks",
        change: ["reinterpret_cast<DeviceSyncer*>(memory)->sync(gridDim.x);", ""], lines: ["write", "read"], hint: "DeviceSyncer" },
    Mutant { name: "a_count_releases_nothing", source: GRID, kernel: "last",
        change: ["__threadfence();  // release", ""], lines: ["writeOfEach", "readOfLast"], hint: "" },
    Mutant { name: "a_count_acquires_nothing", source: GRID, kernel: "last",
        change: ["__threadfence();  // acquire", ""], lines: ["writeOfEach", "readOfLast"], hint: "acquires nothing" },
    Mutant { name: "a_lock_is_not_taken", source: GRID, kernel: "locked",
        change: ["turns->acquire();", ""], lines: ["add", "add"], hint: "blocks of one launch" },
    Mutant { name: "threads_do_not_meet", source: GRID, kernel: "threads",
        change: ["__syncthreads();  // of threads", ""], lines: ["writeShared", "readShared"], hint: "__syncthreads()" },
    Mutant { name: "half_of_it_is_not_written", source: GRID, kernel: "unwritten",
        change: ["threadIdx.x < 64", "threadIdx.x < 32"], lines: ["", "readUnwritten"], hint: "write it first" },
    Mutant { name: "one_of_two_neighbours_is_not_written", source: GRID, kernel: "unwritten",
        change: ["threadIdx.x < 64", "threadIdx.x % 2 == 0"], lines: ["", "readUnwritten"], hint: "write it first" },
    Mutant { name: "a_bulk_fence_is_missing", source: BULK, kernel: "store",
        change: ["bulkFence();", ""], lines: ["prepare", "store"], hint: "bulkFence" },
    Mutant { name: "a_bulk_store_is_not_waited_for", source: BULK, kernel: "store",
        change: ["bulkStoreWait();", ""], lines: ["store", "readStored"], hint: "bulkStoreWait" },
    Mutant { name: "only_the_source_is_waited_for", source: BULK, kernel: "store",
        change: ["bulkStoreWait();", "bulkStoreWaitSource();"], lines: ["store", "readStored"], hint: "bulkStoreWait" },
    Mutant { name: "a_bulk_store_is_not_committed", source: BULK, kernel: "store",
        change: ["bulkStoreCommit();", ""], lines: ["store", "again"], hint: "bulkStoreCommit" },
    Mutant { name: "a_bulk_load_is_not_waited_for", source: BULK, kernel: "load",
        change: ["barrier.wait(phase);", ""], lines: ["load", "useLoaded"], hint: "BulkBarrier" },
    Mutant { name: "a_bulk_barrier_is_used_before_it_is_ready", source: BULK, kernel: "load",
        change: ["__syncthreads();  // of the barrier", ""], lines: ["ready", "use"], hint: "__syncthreads()" },
    Mutant { name: "a_bulk_fence_is_of_shared_memory_alone", source: BULK, kernel: "load",
        change: ["detail::bulkFenceAll();", "bulkFence();"], lines: ["writeGlobal", "load"], hint: "bulkFence" },
    Mutant { name: "packets_have_one_place", source: PACKETS, kernel: "packets",
        change: ["round % 2 * 64 + threadIdx.x", "threadIdx.x"], lines: ["put", "put"], hint: "overwritten before it was read" },
    // Today's GPUs run these correctly in practice: a word of 8 bytes is stored at once, lanes go in step, and a fence of
    // the device or block may do the work of a system fence. PTX promises none of it.
    Mutant { name: "the_scope_of_a_store_is_the_device", source: FLAGS, kernel: "flags",
        change: ["scopeSystem>(flag, value", "scopeDevice>(flag, value"], lines: ["set", "wait"], hint: "scope" },
    Mutant { name: "the_scope_of_a_load_is_the_device", source: FLAGS, kernel: "flags",
        change: ["scopeSystem>(flag, memoryOrder", "scopeDevice>(flag, memoryOrder"], lines: ["write", "read"], hint: "scope" },
    Mutant { name: "a_flag_is_no_atomic", source: FLAGS, kernel: "flags",
        change: ["atomicStore<uint64_t, scopeSystem>(flag, value, memoryOrderRelease);", "*flag = value;"],
        lines: ["set", "wait"], hint: "atomic" },
    Mutant { name: "a_published_flag_is_read_plainly", source: FLAGS, kernel: "flags",
        change: ["waitFor(mine, round + 1);", "while (*mine < round + 1) detail::betweenPolls();"],
        lines: ["set", "poll"], hint: "atomic" },
    Mutant { name: "a_fence_reaches_the_device_alone", source: FLAGS, kernel: "fences",
        change: ["__threadfence_system();  // first", "__threadfence();"], lines: ["writeOfFences", "readOfFences"], hint: "" },
    Mutant { name: "a_fence_reaches_the_block_alone", source: GRID, kernel: "last",
        change: ["__threadfence();  // release", "__threadfence_block();"], lines: ["writeOfEach", "readOfLast"], hint: "" },
    Mutant { name: "lanes_do_not_meet", source: GRID, kernel: "warps",
        change: ["__syncwarp();  // of lanes", ""], lines: ["writeOfLane", "readOfLane"], hint: "__syncwarp()" },
];

pub(crate) fn trials() -> Vec<Trial> {
    let clean = [
        ("exchange.cu", EXCHANGE, &["exchange"][..]),
        ("flags.cu", FLAGS, &["flags", "fences", "epochs"]),
        ("grid.cu", GRID, &["blocks", "last", "locked", "threads", "warps", "unwritten"]),
        ("bulk.cu", BULK, &["store", "load"]),
        ("packets.cu", PACKETS, &["packets"]),
    ];
    let clean = clean.into_iter().map(|(name, source, kernels)| {
        Trial::test(format!("nothing_is_found_in_{name}"), move || {
            for kernel in kernels {
                let (said, _) = run(&KernelSource::new(name, source), kernel, 2);
                if !said.is_empty() {
                    return Err(format!("{kernel}: {}", said.join("\n")).into());
                }
            }
            Ok(())
        })
    });
    clean.chain(MUTANTS.iter().map(|mutant| Trial::test(mutant.name, || found(mutant)))).collect()
}

/// Returns the source of the mutant.
pub(crate) fn mutated(mutant: &Mutant) -> String {
    let [from, to] = mutant.change;
    assert_eq!(mutant.source.matches(from).count(), 1, "{from:?} stands once in the source");
    mutant.source.replace(from, to)
}

/// Checks that the mutant fails, and that the text has both lines and the hint.
fn found(mutant: &Mutant) -> Result<(), Failed> {
    let text = mutated(mutant);
    let name = format!("{}.cu", mutant.name);
    // A stream that has failed starts no more launches, so the peer's second launch would wait for ever, or long.
    let launches = if matches!(mutant.kernel, "exchange" | "flags" | "fences" | "packets") { 1 } else { 2 };
    // A run finds the races in the order in which its threads happened to run.
    let source = KernelSource::new(&name, &text);
    let Some(said) = (0..RUNS).find_map(|_| {
        let (said, _) = run(&source, mutant.kernel, launches);
        (!said.is_empty()).then(|| said.join("\n"))
    }) else {
        return Err(format!("nothing was found in {RUNS} runs").into());
    };
    let marks = mutant.lines.iter().filter(|mark| !mark.is_empty());
    let places: Vec<String> = marks.map(|mark| place(&text, &name, mark)).collect();
    expect_race(&said, &places, mutant.hint)
}

/// Checks that one of the races in a text is between these places, and has the hint.
pub(crate) fn expect_race(said: &str, places: &[String], hint: &str) -> Result<(), Failed> {
    let fits = |report: &str| {
        let mut rest = report.to_owned();
        // Each place is looked for by itself, also where both are one.
        let has_all = places.iter().all(|place| {
            let found = rest.find(&format!("{place} ")).or_else(|| rest.find(&format!("{place}\n")));
            found.inspect(|at| rest.replace_range(at..&(at + place.len()), "")).is_some()
        });
        has_all && report.contains(hint)
    };
    match said.split("race in ").any(fits) {
        true => Ok(()),
        false => Err(format!("no race of {places:?} with {hint:?}, but: {said}").into()),
    }
}

/// Runs a kernel on two devices at once, `launches` times, each with its memory and that of the other. Returns the
/// reports, and the results of each device.
pub(crate) fn run(source: &KernelSource<'_>, kernel: &str, launches: usize) -> (Vec<String>, [Vec<u64>; 2]) {
    let gpus: [Gpu; 2] = [0, 1].map(|id| Platform::Sim.gpu(id).unwrap());
    let [memories, results] = [(); 2].map(|()| [0, 1].map(|id: usize| gpus[id].allocate(8192).unwrap()));
    let streams = [0, 1].map(|id: usize| gpus[id].stream().unwrap());
    let modules = [0, 1].map(|id: usize| Module::load(&gpus[id], source).unwrap());
    let mut said = Vec::new();
    for launch in 0..launches {
        for id in 0..2 {
            let args = KernelArgs::new()
                .with(memories[id].ptr())
                .with(memories[1 - id].ptr())
                .with(results[id].ptr())
                .with(16 * launch as i32);
            let grid = if matches!(kernel, "blocks" | "last" | "locked") { 3 } else { 1 };
            let threads = if matches!(kernel, "flags" | "fences" | "epochs") { 1 } else { 64 };
            let config = LaunchConfig::linear(grid, threads);
            // SAFETY: the kernel's arguments; the memory outlives the work, which is waited for.
            let launched = unsafe { modules[id].kernel(kernel).unwrap().launch(&streams[id], config, &args) };
            // The first one may have failed by now.
            said.extend(message(launched));
        }
    }
    said.extend(streams.iter().filter_map(|stream| message(stream.synchronize_timeout(LIMIT))));
    let results = results.map(|results| {
        let mut words = vec![0; 1024];
        results.read_params(0, &mut words).unwrap();
        words
    });
    (said, results)
}

/// Returns the message of a failed kernel.
pub(crate) fn message(result: Result<(), Error>) -> Option<String> {
    match result {
        Ok(()) => None,
        Err(Error::KernelFailed { message, .. } | Error::Race { message, .. }) => Some(message),
        Err(other) => panic!("{other}"),
    }
}
