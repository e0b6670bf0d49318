//! What the blocks of a grid wait for each other with, on GPUs and on simulated devices.

mod support;

use mscclpp::{Stream, prelude::*};
use support::{LIMIT, kernels::CONCURRENCY, platform, turn};

/// A device's kernels, and memory for what they count.
struct Grid {
    stream: Stream,
    module: Module,
    memory: DeviceBuffer,
}

/// Where in `memory` things are.
const SYNCER: u64 = 0;
const SEMAPHORE: u64 = 64;
const SUM: u64 = 128;
const LASTS: u64 = 192;
const FAILED: u64 = 256;
const CELLS: u64 = 512;

impl Grid {
    fn new() -> Self {
        let gpu = platform().gpu(0).unwrap();
        let grid = Self {
            stream: gpu.stream().unwrap(),
            module: Module::load(&gpu, &CONCURRENCY).unwrap(),
            memory: gpu.allocate(4096).unwrap(),
        };
        grid.memory.fill(0, 4096, 0).unwrap();
        grid
    }

    fn at(&self, offset: u64) -> DevicePtr {
        self.memory.ptr().add(offset)
    }

    fn run(&self, kernel: &str, blocks: u32, args: &KernelArgs) {
        let kernel = self.module.kernel(kernel).unwrap();
        // SAFETY: callers give the arguments of the kernel; the memory outlives it, and so few blocks fit on any device.
        unsafe { kernel.launch(&self.stream, LaunchConfig::linear(blocks, 64), args).unwrap() };
        self.stream.synchronize_timeout(LIMIT).unwrap();
    }

    fn word(&self, offset: u64) -> u64 {
        let mut word = [0; 8];
        self.memory.read(offset, &mut word).unwrap();
        u64::from_ne_bytes(word)
    }
}

#[test]
fn blocks_see_behind_the_barrier_what_was_before_it() {
    let _turn = turn();
    let grid = Grid::new();
    let rounds: i32 = if platform() == Platform::Host { 100 } else { 10_000 };
    let mut base = 1u64;
    // The number of blocks changes between launches, the barrier stays as it was left.
    for blocks in [1, 2, 7, 16, 3] {
        let args = KernelArgs::new().with(grid.at(SYNCER)).with(grid.at(CELLS)).with(base).with(rounds);
        let args = args.with(-1i64).with(grid.at(SUM)).with(grid.at(FAILED));
        grid.run("grid_barrier", blocks, &args);
        assert_eq!((grid.word(SUM), grid.word(FAILED)), (0, 0), "{blocks} blocks");
        base += u64::from(rounds.unsigned_abs());
    }
}

#[test]
fn the_last_block_to_arrive_sees_what_all_did() {
    let _turn = turn();
    let grid = Grid::new();
    let (blocks, launches) = (12, 100);
    for launch in 1..=launches {
        let args = KernelArgs::new().with(grid.at(SYNCER)).with(grid.at(CELLS));
        grid.run("grid_arrive", blocks, &args.with(grid.at(SUM)).with(grid.at(LASTS)));
        assert_eq!((grid.word(SUM), grid.word(LASTS)), (launch * u64::from(blocks), launch));
    }
}

#[test]
fn turns_of_a_semaphore_exclude_each_other() {
    let _turn = turn();
    let grid = Grid::new();
    let (blocks, times) = (8, 200i32);
    let turns = |max_spin: i64| {
        let args = KernelArgs::new().with(grid.at(SEMAPHORE)).with(times).with(max_spin);
        grid.run("semaphore_turns", blocks, &args.with(grid.at(SUM)).with(grid.at(FAILED)));
    };
    turns(300);
    assert_eq!((grid.word(SUM), grid.word(FAILED)), (0, 1), "there is no turn yet");
    grid.memory.fill(FAILED, 8, 0).unwrap();
    grid.run("semaphore_set", 1, &KernelArgs::new().with(grid.at(SEMAPHORE)).with(1u32));
    turns(-1);
    assert_eq!((grid.word(SUM), grid.word(FAILED)), (u64::from(blocks) * u64::from(times.unsigned_abs()), 0));
}
