//! The barriers and semaphores between the blocks of a grid, on GPUs and on simulated devices.

use crate::support::{LIMIT, channel_pair, kernels::CONCURRENCY, platform, turn};
use mscclpp::{Stream, prelude::*};

/// A device's kernels, and memory for their counters.
struct Grid {
    stream: Stream,
    module: Module,
    memory: DeviceBuffer,
}

/// The offset in `memory` of the barrier's state; the other objects follow.
const SYNCER: u64 = 0;
const SEMAPHORE: u64 = 64;
const SUM: u64 = 128;
const LASTS: u64 = 192;
const FAILED: u64 = 256;
const CELLS: u64 = 512;

impl Grid {
    fn new() -> Self {
        Self::on(0)
    }

    fn on(device: usize) -> Self {
        let gpu = platform().gpu(device).unwrap();
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
    let rounds: i32 = if platform() == Platform::Sim { 100 } else { 10_000 };
    let mut base = 1u64;
    // The number of blocks changes between launches, and the barrier keeps its state.
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

/// The ranks of a barrier of devices. Several ranks share a device if there are fewer devices.
struct Ranks {
    grids: Vec<Grid>,
    /// The channels of each rank to all others.
    channels: Vec<Vec<BaseMemoryChannel>>,
    tables: Vec<[DeviceBuffer; 2]>,
}

const RANKS: usize = 3;
const BLOCKS: u32 = 5;

impl Ranks {
    fn new() -> Self {
        let context = Context::on(platform());
        let device = |rank| rank % platform().device_count().unwrap();
        let grids: Vec<_> = (0..RANKS).map(|rank| Grid::on(device(rank))).collect();
        let mut channels: Vec<Vec<_>> = (0..RANKS).map(|_| Vec::new()).collect();
        for (a, b) in (0..RANKS).flat_map(|a| (a + 1..RANKS).map(move |b| (a, b))) {
            let [there, back] = channel_pair(&context, [device(a), device(b)]).expect("channels");
            channels[a].push(there);
            channels[b].push(back);
        }
        // Each rank's handles, and the addresses of the cells of all ranks.
        let tables = (0..RANKS)
            .map(|rank| {
                let gpu = context.gpu(device(rank)).unwrap();
                let handles = gpu.allocate(1024).unwrap();
                let of_rank: Vec<_> = channels[rank].iter().map(BaseMemoryChannel::device_handle).collect();
                handles.write_params(0, &of_rank).unwrap();
                let cells = gpu.allocate(1024).unwrap();
                let addresses = (0..RANKS).map(|peer| {
                    if peer == rank {
                        return grids[rank].at(CELLS);
                    }
                    let memory = context.register_buffer(&grids[peer].memory, Transport::CUDA_IPC).unwrap();
                    let connection = channels[rank][peer - usize::from(peer > rank)].semaphore().connection();
                    connection.peer_ptr(&memory).unwrap().expect("mapped memory").add(CELLS)
                });
                cells.write_params(0, &addresses.collect::<Vec<_>>()).unwrap();
                [handles, cells]
            })
            .collect();
        Self { grids, channels, tables }
    }

    fn start(&self, rank: usize, rounds: i32, max_spin: i64) {
        let (grid, [handles, cells]) = (&self.grids[rank], &self.tables[rank]);
        let kernel = grid.module.kernel("barrier_of_devices").unwrap();
        let args = KernelArgs::new().with(grid.at(SYNCER)).with(handles.ptr()).with(RANKS as i32);
        let args = args.with(grid.at(CELLS)).with(cells.ptr()).with(rounds).with(max_spin);
        let args = args.with(grid.at(SUM)).with(grid.at(FAILED));
        // SAFETY: these are its arguments, which outlive it; so few blocks fit on any device.
        unsafe { kernel.launch(&grid.stream, LaunchConfig::linear(BLOCKS, 64), &args).unwrap() };
    }

    fn finish(&self, rank: usize) -> (u64, u64) {
        let grid = &self.grids[rank];
        grid.stream.synchronize_timeout(LIMIT).unwrap();
        (grid.word(SUM), grid.word(FAILED))
    }
}

#[test]
fn all_blocks_of_all_devices_see_behind_the_barrier_what_was_before_it() {
    let _turn = turn();
    let ranks = Ranks::new();
    let rounds = if platform() == Platform::Sim { 50 } else { 10_000 };
    // The barrier keeps its state between the launches.
    for _ in 0..2 {
        (0..RANKS).for_each(|rank| ranks.start(rank, rounds, -1));
        for rank in 0..RANKS {
            assert_eq!(
                ranks.finish(rank),
                (0, 0),
                "rank {rank}: words that were not the round's, and failures"
            );
        }
    }
}

#[test]
fn a_barrier_without_a_peer_ends_in_all_blocks() {
    let _turn = turn();
    // A wait ends by its bound, or without a bound by an abort.
    for aborts in [false, true] {
        let ranks = Ranks::new();
        ranks.start(0, 1, if aborts { -1 } else { 1000 });
        ranks.start(1, 1, if aborts { -1 } else { 1000 });
        if aborts {
            ranks.channels.iter().flatten().for_each(|channel| channel.semaphore().abort("the test ends"));
        }
        for rank in [0, 1] {
            assert_eq!(ranks.finish(rank), (0, BLOCKS.into()), "rank {rank}, aborts: {aborts}");
        }
    }
}
