//! Two processes, one per device, whose kernels put data to each other at once through port channels.
//!
//! With two GPUs, each process has one. With one GPU, both share it. Without a GPU, they run on simulated devices, and
//! with less data.

mod bidir;
mod devices;
mod ranks;

use std::{error::Error, process::ExitCode};

use bidir::{N_RANKS, Side};
use mscclpp::{kernels, prelude::*};
use ranks::{BadArguments, Program, Rank};

const PROGRAM: Program = Program {
    usage: "\
usage: bidir_port_channel [ADDRESS]                       run both ranks, each in a process of its own, over CudaIpc
       bidir_port_channel ADDRESS RANK GPU TRANSPORT      run one of them; start the other elsewhere
ADDRESS is ip:port or interface:ip:port [default: lo:127.0.0.1:15505], RANK is 0 or 1, GPU a device number,
TRANSPORT is CudaIpc, Ethernet, or IB0 to IB7",
    devices: |count| (0..N_RANKS).map(|rank| rank % count).collect(),
    more: |_| vec![Transport::CUDA_IPC.to_string()],
    run,
};

fn main() -> ExitCode {
    PROGRAM.main()
}

fn run(this: &Rank) -> Result<(), Box<dyn Error>> {
    let transport = match this.more.as_slice() {
        [name] if this.rank < N_RANKS => name.parse().ok(),
        _ => None,
    };
    let transport = transport.ok_or(BadArguments)?;
    let (rank, peer) = (this.rank, 1 - this.rank);
    let side = Side::join(this)?;
    let (communicator, gpu) = (&side.communicator, side.gpu.clone());

    let semaphore = side.semaphore(transport)?;
    let ours = communicator.register_buffer(&side.buffer, transport)?;
    communicator.send_memory(&ours, peer, 0)?;
    let theirs = communicator.recv_memory(peer, 0)?.wait()?;

    // ANCHOR: service
    let service = ProxyService::new(&gpu)?;
    let semaphore_id = service.add_semaphore(&semaphore)?;
    let our_id = service.add_memory(&ours)?;
    let their_id = service.add_memory(&theirs)?;
    // ANCHOR_END: service
    // ANCHOR: channel
    let channel = service.port_channel(semaphore_id, their_id, our_id)?;
    // ANCHOR_END: channel

    let kernel = Module::load(&gpu, &kernels::BIDIR_PORT_CHANNEL)?.kernel("bidir_put_with_signal")?;

    // ANCHOR: start
    service.start_proxy(true)?;
    // ANCHOR_END: start
    // Both sides are loaded before either waits.
    side.barrier()?;
    for size in side.sizes {
        let args = KernelArgs::new()
            .with(channel.device_handle())
            .with(size.0)
            .with(rank as u32)
            .with(side.failed.ptr());
        // SAFETY: these are the kernel's arguments, and `side`, `channel` and what they work on are kept.
        let launch = || unsafe { kernel.launch(&side.stream, LaunchConfig::linear(1, 1), &args) };
        let measured = side.measure("Bidir PutWithSignal", size, &semaphore, launch);
        // If the service has failed, its error is the reason why the kernel failed.
        service.health()?;
        measured?;
    }

    // Neither rank frees its memory while the other may still use it.
    side.barrier()?;
    // ANCHOR: stop
    service.stop_proxy()?;
    // ANCHOR_END: stop
    if rank == 0 {
        println!("Succeed!");
    }
    Ok(())
}
