//! Two processes, one per device, whose kernels move data to each other at once: by puts, by gets, and by packets.
//!
//! With two GPUs, each process has one. With one GPU, both share it. Without a GPU, they run on simulated devices, and
//! with less data.

mod bidir;
mod devices;
mod ranks;

use std::{cell::Cell, error::Error, process::ExitCode};

use bidir::{N_RANKS, Side};
use mscclpp::{
    channels::{LL16Packet, Packet},
    kernels,
    prelude::*,
};
use ranks::{BadArguments, Program, Rank};

const PROGRAM: Program = Program {
    usage: "\
usage: bidir_memory_channel [ADDRESS]             run both ranks, each in a process of its own
       bidir_memory_channel ADDRESS RANK GPU      run one of them; start the other in another terminal
ADDRESS is ip:port or interface:ip:port [default: lo:127.0.0.1:15505], RANK is 0 or 1, GPU a device number",
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
    let side = Side::join(this)?;
    let (communicator, gpu) = (&side.communicator, side.gpu.clone());

    let semaphore = side.semaphore(Transport::CUDA_IPC)?;
    let largest = side.buffer.len() / 2;
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

    let module = Module::load(&gpu, &kernels::BIDIR_MEMORY_CHANNEL)?;
    let [put, get, put_packets] =
        ["bidir_put", "bidir_get", "bidir_put_packets"].map(|name| module.kernel(name));
    let (put, get, put_packets) = (put?, get?, put_packets?);
    let grid = match this.platform {
        Platform::Sim => LaunchConfig::linear(2, 32),
        _ => LaunchConfig::linear(32, 1024),
    };
    let args = |channel: &MemoryChannel, bytes: u64| {
        KernelArgs::new().with(channel.device_handle()).with(bytes).with(rank as u32)
    };

    // Both sides are loaded before either waits.
    side.barrier()?;
    for size in side.sizes {
        for (name, kernel) in [("Bidir Put", &put), ("Bidir Get", &get)] {
            let args = args(&channel, size.0).with(side.failed.ptr());
            // SAFETY: these are the kernels' arguments, and `side`, `channel` and what they work on are kept.
            let launch = || unsafe { kernel.launch(&side.stream, grid, &args) };
            side.measure(name, size, &semaphore, launch)?;
        }
        // The rounds of a size write to the same packets, so each round needs a flag that differs from the one before.
        // ANCHOR: flags
        let flag = Cell::new(0u32);
        let launch = || {
            flag.set(flag.get() + 1);
            let args = args(&packet_channel, size.0).with(flag.get()).with(side.failed.ptr());
            // SAFETY: the same as for the other kernels.
            unsafe { put_packets.launch(&side.stream, grid, &args) }
        };
        // ANCHOR_END: flags
        side.measure("Bidir Put Packets", size, &semaphore, launch)?;
    }

    // Neither rank frees its memory while the other may still use it.
    side.barrier()?;
    if rank == 0 {
        println!("Succeed!");
    }
    Ok(())
}
