//! Two processes, one per device, whose kernels move data to each other at once: by puts, by gets, and by packets.
//!
//! With two GPUs, one for each process; with one, both on it; with none, on simulated devices and with less data.

mod bidir;
mod devices;
mod ranks;

use std::{
    cell::Cell,
    error::Error,
    process::ExitCode,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use bidir::{N_RANKS, Side, sizes};
use mscclpp::{
    LL16Packet, MemoryChannelHandle, Packet,
    host::{DeviceSyncer, HostBlock, HostKernel, HostSymbol},
    kernels,
    prelude::*,
};
use ranks::{BadArguments, Program, Rank};

const PROGRAM: Program = Program {
    usage: "\
usage: bidir_memory_channel [ADDRESS]             run both ranks, each in a process of its own
       bidir_memory_channel ADDRESS RANK GPU      run one of them; start the other in another terminal
ADDRESS is ip:port or interface:ip:port [default: lo:127.0.0.1:50505], RANK is 0 or 1, GPU a device number",
    devices: |count| (0..N_RANKS).map(|rank| rank % count).collect(),
    more: |_| Vec::new(),
    run,
};

fn main() -> ExitCode {
    PROGRAM.main()
}

fn run(this: &Rank) -> Result<(), Box<dyn Error>> {
    if this.rank >= N_RANKS || !this.more.is_empty() {
        return Err(BadArguments.into());
    }
    let (rank, peer) = (this.rank, 1 - this.rank);
    let bootstrap = Arc::new(this.bootstrap(N_RANKS)?);
    let communicator = Communicator::with_context(bootstrap.clone(), Context::on(this.platform));
    let gpu = communicator.context().gpu(this.gpu)?;

    println!("GPU {}: Preparing for tests ...", this.gpu);
    let sizes = sizes(&*bootstrap, &gpu)?;
    let largest = sizes.iter().map(|(bytes, _)| *bytes).max().unwrap_or(0);
    let side = Side::new(&*bootstrap, &gpu, largest)?;

    let config = EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(this.gpu));
    let connection = communicator.connect(config, peer, 0)?.wait()?;
    let semaphore = communicator.build_semaphore(&connection, peer, 0)?.wait()?;
    // ANCHOR: memories
    let packet_buffer = gpu.allocate(LL16Packet::buffer_size(largest))?;
    let share = |buffer| -> mscclpp::Result<[RegisteredMemory; 2]> {
        let ours = communicator.register_buffer(buffer, Transport::CUDA_IPC)?;
        communicator.send_memory(&ours, peer, 0)?;
        Ok([ours, communicator.recv_memory(peer, 0)?.wait()?])
    };
    let [ours, theirs] = share(&side.buffer)?;
    let [our_packets, their_packets] = share(&packet_buffer)?;
    // ANCHOR_END: memories
    // ANCHOR: channels
    let channel = MemoryChannel::new(&semaphore, &theirs, &ours, None)?;
    let packet_channel = MemoryChannel::new(&semaphore, &their_packets, &ours, Some(&our_packets))?;
    // ANCHOR_END: channels

    let source = ModuleSource {
        ptx: kernels::BIDIR_MEMORY_CHANNEL,
        host_kernels: HOST_TWINS,
        host_symbols: HOST_SYMBOLS,
    };
    let module = Module::load(&gpu, &source)?;
    let [put, get, put_packets] =
        ["bidir_put", "bidir_get", "bidir_put_packets"].map(|name| module.kernel(name));
    let (put, get, put_packets) = (put?, get?, put_packets?);
    let grid = match this.platform {
        Platform::Host => LaunchConfig::linear(2, 32),
        _ => LaunchConfig::linear(32, 1024),
    };
    let args = |channel: &MemoryChannel, bytes: u64| {
        KernelArgs::new().with(channel.device_handle()).with(bytes).with(rank as u32)
    };

    // Both sides are loaded before either waits.
    bootstrap.barrier()?;
    for size in sizes {
        for (name, kernel) in [("Bidir Put", &put), ("Bidir Get", &get)] {
            let args = args(&channel, size.0).with(side.failed.ptr());
            // SAFETY: these are the kernels' arguments, and `side`, `channel` and what they work on are kept.
            let launch = || unsafe { kernel.launch(&side.stream, grid, &args) };
            side.measure(name, size, &semaphore, launch)?;
        }
        // The rounds of a size write the same packets: a flag must differ from that of the round before.
        // ANCHOR: flags
        let flag = Cell::new(0u32);
        let launch = || {
            flag.set(flag.get() + 1);
            let args = args(&packet_channel, size.0).with(flag.get()).with(side.failed.ptr());
            // SAFETY: as above.
            unsafe { put_packets.launch(&side.stream, grid, &args) }
        };
        // ANCHOR_END: flags
        side.measure("Bidir Put Packets", size, &semaphore, launch)?;
    }

    // Nobody takes its memory away while the other may still use it.
    bootstrap.barrier()?;
    if rank == 0 {
        println!("Succeed!");
    }
    Ok(())
}

const HOST_TWINS: &[HostKernel] = &[
    HostKernel { name: "bidir_put", run: bidir_put },
    HostKernel { name: "bidir_get", run: bidir_get },
    HostKernel { name: "bidir_put_packets", run: bidir_put_packets },
];

const HOST_SYMBOLS: &[HostSymbol] = &[HostSymbol { name: "syncer", size: 8 }];

/// What a block of a twin knows.
struct Round<'a> {
    block: &'a HostBlock<'a>,
    channel: MemoryChannelHandle,
    bytes: u64,
    rank: u64,
}

impl<'a> Round<'a> {
    /// # Safety
    /// The arguments that `run` pushes.
    unsafe fn of(block: &'a HostBlock<'a>) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            Self { block, channel: block.arg(0), bytes: block.arg(1), rank: u64::from(block.arg::<u32>(2)) }
        }
    }

    fn is_first(&self) -> bool {
        self.block.block_idx()[0] == 0
    }

    /// The barrier of all blocks.
    fn sync(&self) -> bool {
        // SAFETY: the module's variable, zeroed, and a word of a live channel.
        unsafe {
            let syncer = DeviceSyncer::at(self.block.symbol("syncer"));
            let status = NonNull::new(self.channel.status);
            status.is_some_and(|status| syncer.sync_or_abort(self.block.grid_dim()[0], -1, status))
        }
    }

    fn meet(&self) -> bool {
        let mut good = true;
        if self.is_first() {
            // SAFETY: a live channel.
            unsafe {
                self.channel.relaxed_signal();
                good = self.channel.relaxed_wait(-1);
            }
        }
        self.sync() && good
    }

    /// The numbers of the block's threads in the grid.
    fn threads(&self) -> impl Iterator<Item = u32> {
        let first = self.block.block_idx()[0] * self.block.block_dim()[0];
        self.block.threads().map(move |thread| first + thread)
    }

    fn n_threads(&self) -> u32 {
        self.block.grid_dim()[0] * self.block.block_dim()[0]
    }

    fn theirs(&self) -> u64 {
        (1 - self.rank) * self.bytes
    }

    /// Says whether the round was good. `failed` is the kernel's last argument.
    fn end(&self, good: bool, failed: usize) {
        if !good {
            // SAFETY: a word of device memory, on which the blocks use atomics.
            unsafe { AtomicU32::from_ptr(self.block.arg::<DevicePtr>(failed).as_mut_ptr()) }
                .store(1, Ordering::Relaxed);
        }
    }
}

// ANCHOR: twin
/// The twin of `bidir_put`.
///
/// # Safety
/// As for the kernel; so for all functions below.
unsafe fn bidir_put(block: &HostBlock<'_>) {
    // SAFETY: the arguments that `run` pushes.
    let round = unsafe { Round::of(block) };
    let mut good = round.meet();
    for thread in round.threads() {
        let offset = round.rank * round.bytes;
        // SAFETY: a live channel, and ranges inside its memories.
        unsafe { round.channel.put(offset, offset, round.bytes, thread, round.n_threads()) };
    }
    good &= round.sync();
    if round.is_first() {
        // SAFETY: a live channel.
        unsafe {
            round.channel.signal();
            good &= round.channel.wait(-1);
        }
    }
    round.end(good, 3);
}
// ANCHOR_END: twin

/// The twin of `bidir_get`.
unsafe fn bidir_get(block: &HostBlock<'_>) {
    // SAFETY: the arguments that `run` pushes.
    let round = unsafe { Round::of(block) };
    let good = round.meet();
    for thread in round.threads() {
        let offset = round.theirs();
        // SAFETY: a live channel, and ranges inside its memories.
        unsafe { round.channel.get(offset, offset, round.bytes, thread, round.n_threads()) };
    }
    round.end(good, 3);
}

/// The twin of `bidir_put_packets`.
unsafe fn bidir_put_packets(block: &HostBlock<'_>) {
    // SAFETY: the arguments that `run` pushes.
    let (round, flag) = unsafe { (Round::of(block), block.arg::<u32>(3)) };
    let (channel, bytes, n_threads) = (&round.channel, round.bytes, round.n_threads());
    let mut good = round.meet();
    // Two phases: what a thread takes may come from any thread of the peer.
    for thread in round.threads() {
        // SAFETY: a live channel, and ranges inside its memories.
        good &= unsafe {
            channel.put_packets::<LL16Packet>(0, round.rank * bytes, bytes, thread, n_threads, flag)
        };
    }
    for thread in round.threads() {
        // SAFETY: as above.
        good &= unsafe {
            channel.unpack_packets::<LL16Packet>(0, round.theirs(), bytes, thread, n_threads, flag, -1)
        };
    }
    round.end(good, 4);
}
