//! The orders of the device API, on simulated devices: under schedules that seeds make, stores come late, and every access may
//! be the last before another thread's. Nothing arrives before what it announces, and the race detector finds nothing. Copies of
//! the headers with one order or fence less fail: `ci/run.sh races_all` runs these. A process has one seed, so this program
//! starts itself again for each.

use std::{
    env,
    process::{Command, ExitCode},
    time::Duration,
};

use libtest_mimic::{Failed, Trial};
use mscclpp_gpu::{DeviceBuffer, Gpu, KernelArgs, KernelSource, LaunchConfig, Module, Platform, Stream};
use mscclpp_kernels::HEADERS;
use mscclpp_test_support::layout::with_compiler;

const ORDERS: KernelSource<'static> =
    KernelSource::new("device_api.cu", include_str!("../seeds/device_api.cu"));
const CONCURRENCY: KernelSource<'static> =
    KernelSource::new("concurrency.cu", include_str!("../../kernels/concurrency.cu"));

/// The seeds, each a trial.
const SEEDS: u64 = 4;

/// The time limit of a launch, which takes less than a second on an idle machine.
const LIMIT: Duration = Duration::from_secs(120);

/// The argument of a process that runs cases with the seed in its environment: all of them, or that of the mutant that follows.
const CASES_OF: &str = "--cases-of";

type Case = fn(&Device, u64);

const CASES: [(&str, Case); 5] = [
    ("grid_barrier", grid_barrier),
    ("grid_arrive", grid_arrive),
    ("turns", turns),
    ("ordered_pushes", ordered_pushes),
    ("ordered_puts", ordered_puts),
];

/// A mistake in a header.
struct Mutant {
    name: &'static str,
    header: &'static str,
    /// A text that the header has once, and its replacement in the copy.
    change: [&'static str; 2],
    /// The case that fails with it.
    case: &'static str,
}

const MUTANTS: [Mutant; 5] = [
    Mutant {
        name: "blocks_meet_without_order",
        header: "mscclpp/concurrency_device.hpp",
        change: ["detail::fetchAdd<MemoryOrder::AcquireRelease,", "detail::fetchAdd<MemoryOrder::Relaxed,"],
        case: "grid_barrier",
    },
    Mutant {
        name: "a_turn_is_given_back_without_release",
        header: "mscclpp/concurrency_device.hpp",
        change: [
            "detail::reduceAdd<MemoryOrder::Release, MemoryScope::Device, MemorySpace::Any>(&count_",
            "detail::reduceAdd<MemoryOrder::Relaxed, MemoryScope::Device, MemorySpace::Any>(&count_",
        ],
        case: "turns",
    },
    Mutant {
        name: "a_trigger_releases_nothing",
        header: "mscclpp/fifo_device.hpp",
        change: ["if (free) releaseWhole(slot, words);", "if (free) storePair(slot, words);"],
        case: "ordered_pushes",
    },
    Mutant {
        name: "a_direct_signal_releases_nothing",
        header: "mscclpp/port_channel_device.hpp",
        change: [
            "detail::reduceAdd<MemoryOrder::Release, MemoryScope::System>(directToken_",
            "detail::reduceAdd<MemoryOrder::Relaxed, MemoryScope::System>(directToken_",
        ],
        case: "ordered_puts",
    },
    Mutant {
        name: "a_signal_does_not_ask_what_is_pending",
        header: "mscclpp/port_channel_device.hpp",
        change: [
            "if (directToken_ != nullptr && nothingPending(detail::LooksBeforePush)) {",
            "if (directToken_ != nullptr) {",
        ],
        case: "ordered_puts",
    },
];

/// Runs the cases that a process was started for. None if this is no such process.
pub(crate) fn cases() -> Option<ExitCode> {
    let mut arguments = env::args().skip(1).skip_while(|argument| argument != CASES_OF).skip(1);
    let name = arguments.next()?;
    Some(run_cases(MUTANTS.iter().find(|mutant| mutant.name == name)))
}

/// The trials, by name.
pub(crate) fn trials() -> Vec<Trial> {
    let seeds = (1..=SEEDS)
        .map(|seed| with_compiler(format!("seeds::seed_{seed}"), move |_| Ok(start("all", seed)?)));
    let mutants = MUTANTS.iter().map(|Mutant { name, .. }| {
        with_compiler(format!("seeds::{name}"), |_| is_found(name)).with_ignored_flag(true)
    });
    seeds.chain(mutants).collect()
}

/// Runs all cases, or that of a mutant with its header, with the seed in the environment.
fn run_cases(mutant: Option<&Mutant>) -> ExitCode {
    let seed = env::var("MSCCLPP_SIM_SCHEDULE").expect("a seed").parse().expect("a number");
    let header = mutant.map(Mutant::header).unwrap_or_default();
    for (name, case) in CASES.iter().filter(|(name, _)| mutant.is_none_or(|mutant| mutant.case == *name)) {
        println!("{name}");
        case(&Device::open(header.clone()), seed);
    }
    ExitCode::SUCCESS
}

/// Runs cases with a seed, in a process of their own. The error is what that process said.
fn start(cases: &str, seed: u64) -> Result<(), String> {
    let mut this = Command::new(env::current_exe().expect("this program"));
    this.args([CASES_OF, cases]).env("MSCCLPP_SIM_RACES", "1").env("MSCCLPP_SIM_SCHEDULE", seed.to_string());
    let output = this.output().expect("this program starts");
    if output.status.success() {
        return Ok(());
    }
    let [said, errors] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    Err(format!("{}, behind: {said}\n{errors}", output.status))
}

/// Checks that one of the seeds fails the mutant's case: by a race, or by a wrong value.
fn is_found(name: &str) -> Result<(), Failed> {
    let found = (1..=SEEDS).filter_map(|seed| start(name, seed).err()).next().ok_or("no seed finds it")?;
    let is_failure =
        found.contains("race in") || found.contains("wrong values") || found.contains("mismatches");
    if is_failure { Ok(()) } else { Err(found.into()) }
}

impl Mutant {
    /// Returns the text of the changed header.
    fn header(&self) -> String {
        let (_, text) = HEADERS.iter().find(|(name, _)| *name == self.header).expect("the header");
        let [from, to] = self.change;
        assert_eq!(text.matches(from).count(), 1, "{from:?} in {}", self.header);
        text.replace(from, to)
    }
}

/// A simulated device, and a stream of it.
struct Device {
    gpu: Gpu,
    stream: Stream,
    /// A text in front of each source: a header that the source includes, with a mistake.
    header: String,
}

impl Device {
    fn open(header: String) -> Self {
        let gpu = Platform::Sim.gpu(0).expect("a device");
        Self { stream: gpu.stream().expect("a stream"), gpu, header }
    }

    fn zeros(&self, bytes: u64) -> DeviceBuffer {
        self.gpu.allocate(bytes).expect("memory")
    }

    /// Runs a kernel to its end.
    fn run(&self, source: &KernelSource<'_>, kernel: &str, config: LaunchConfig, args: &KernelArgs) {
        let text = [&self.header, source.cuda()].concat();
        let source = KernelSource::new(source.name(), &text);
        let module = Module::load(&self.gpu, &source).unwrap_or_else(|error| panic!("{error}"));
        let kernel = module.kernel(kernel).expect("a kernel");
        // SAFETY: the arguments are the kernel's, and the memory outlives the launch, which is waited for.
        unsafe { kernel.launch(&self.stream, config, args) }.expect("a launch");
        self.stream.synchronize_timeout(LIMIT).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Returns the word at index `at` of the buffer.
fn word(buffer: &DeviceBuffer, at: u64) -> u64 {
    let mut bytes = [0; 8];
    buffer.read(at * 8, &mut bytes).expect("reading");
    u64::from_ne_bytes(bytes)
}

/// No block leaves a round before all have come to it, and all leave. One barrier serves all launches, so that the number of
/// blocks changes, and the rounds that are folded wrap around.
fn grid_barrier(device: &Device, _: u64) {
    let (syncer, cells, counts) = (device.zeros(8), device.zeros(64), device.zeros(16));
    syncer.write(0, &(0xffff_fff0_u64 << 32).to_ne_bytes()).expect("a write");
    let mut base = 1u64;
    for blocks in [1, 4, 2, 5, 3] {
        let args = KernelArgs::new()
            .with(syncer.ptr())
            .with(cells.ptr())
            .with(base)
            .with(8i32)
            .with(-1i64)
            .with(counts.ptr())
            .with(counts.ptr().add(8));
        device.run(&CONCURRENCY, "grid_barrier", LaunchConfig::linear(blocks, 3), &args);
        base += 8;
        assert_eq!(word(&syncer, 0) as u32, 0, "all rounds are folded");
    }
    assert_eq!((word(&counts, 0), word(&counts, 1)), (0, 0), "mismatches, and a sync that failed");
}

/// One block is the last, and then all have come.
fn grid_arrive(device: &Device, _: u64) {
    let (syncer, cells, counts) = (device.zeros(8), device.zeros(64), device.zeros(16));
    for launch in 1..=5 {
        let args = KernelArgs::new()
            .with(syncer.ptr())
            .with(cells.ptr())
            .with(counts.ptr())
            .with(counts.ptr().add(8));
        device.run(&CONCURRENCY, "grid_arrive", LaunchConfig::linear(4, 2), &args);
        assert_eq!((word(&counts, 0), word(&counts, 1)), (4 * launch, launch), "the last sum, and the lasts");
        assert_eq!(word(&syncer, 0) as u32, 0, "all arrivals are folded");
    }
}

/// At most as many blocks hold the semaphore as there are turns, none waits for ever, all turns are given back, and who has the
/// only turn sees what the one before did.
fn turns(device: &Device, _: u64) {
    for most in 1..=3u32 {
        let (semaphore, counts) = (device.zeros(256), device.zeros(256));
        semaphore.write(0, &most.to_ne_bytes()).expect("a write");
        let args = KernelArgs::new()
            .with(semaphore.ptr())
            .with(semaphore.ptr().add(128))
            .with(counts.ptr().add(128))
            .with(counts.ptr())
            .with(most)
            .with(8u32);
        device.run(&ORDERS, "turns", LaunchConfig::linear(4, 1), &args);
        assert_eq!((word(&counts, 0), word(&counts, 1)), (0, 0), "wrong values, and calls that failed");
        assert_eq!(
            (word(&semaphore, 0), word(&counts, 16)),
            (u64::from(most), if most == 1 { 32 } else { 0 })
        );
    }
}

/// The memory of a run of `device_api.cu`.
struct World(DeviceBuffer);

impl World {
    /// More than the kernels' `World` needs.
    const BYTES: u64 = 128 << 10;

    fn new(device: &Device, fifo_size: u32, bytes: u64, bulk_put_max: u32) -> Self {
        let memory = device.zeros(Self::BYTES);
        let args =
            KernelArgs::new().with(memory.ptr()).with(fifo_size).with(bytes).with(64u32).with(bulk_put_max);
        device.run(&ORDERS, "set_up", LaunchConfig::linear(1, 1), &args);
        Self(memory)
    }

    /// Runs a kernel, which gets the world and `numbers`, and checks what it has counted.
    fn run(&self, device: &Device, kernel: &str, blocks: u32, numbers: &[u64]) {
        let results = device.zeros(16);
        let args = numbers
            .iter()
            .fold(KernelArgs::new().with(self.0.ptr()).with(results.ptr()), |args, n| args.with(*n));
        device.run(&ORDERS, kernel, LaunchConfig::linear(blocks, 1), &args);
        assert_eq!((word(&results, 0), word(&results, 1)), (0, 0), "wrong values, and calls that failed");
    }
}

/// Triggers come once and in order, over several laps of a small FIFO, with the data before them.
fn ordered_pushes(device: &Device, _: u64) {
    for (pushers, each, size) in [(1, 12, 2), (3, 9, 2), (4, 9, 4), (2, 12, 8)] {
        World::new(device, size, 0, 0).run(device, "ordered_pushes", pushers + 1, &[each]);
    }
}

/// No signal comes before its data, whichever way each takes. One of the worlds has puts by bulk copies.
fn ordered_puts(device: &Device, seed: u64) {
    for (senders, slot, bulk) in [(1, 128, 0), (2, 128, 0), (3, 128, 0), (2, 3072, 2560)] {
        let world = World::new(device, 4, 10 * slot, bulk);
        world.run(device, "ordered_puts", senders + 2, &[seed * 31 + u64::from(senders), 10, slot]);
    }
}
