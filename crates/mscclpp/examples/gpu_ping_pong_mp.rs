//! Two processes, one per device, find each other, connect, and a kernel of each signals the other's in turns.
//!
//! With two GPUs, each process has one. With one GPU, both share it. Without a GPU, they run on simulated devices.

mod devices;
mod ping_pong;
mod ranks;

use std::{error::Error, process::ExitCode, sync::Arc};

use mscclpp::prelude::*;
use ping_pong::{Player, Role};
use ranks::{BadArguments, Program, Rank};

const PROGRAM: Program = Program {
    usage: "\
usage: gpu_ping_pong_mp [ADDRESS]             run both ranks, each in a process of its own
       gpu_ping_pong_mp ADDRESS RANK GPU      run one of them; start the other in another terminal
ADDRESS is ip:port or interface:ip:port [default: lo:127.0.0.1:15505], RANK is 0 or 1, GPU a device number",
    devices: |count| (0..N_RANKS).map(|rank| rank % count).collect(),
    more: |_| Vec::new(),
    run,
};

const N_RANKS: usize = 2;

fn main() -> ExitCode {
    PROGRAM.main()
}

fn run(this: &Rank) -> Result<(), Box<dyn Error>> {
    let (rank, gpu) = (this.rank, this.gpu);
    if rank >= N_RANKS || !this.more.is_empty() {
        return Err(BadArguments.into());
    }
    let peer = 1 - rank;

    let bootstrap = Arc::new(this.bootstrap(N_RANKS)?);
    // ANCHOR: communicator
    let communicator = Communicator::with_context(bootstrap.clone(), Context::on(this.platform));

    println!("GPU {gpu}: Creating a connection ...");
    let config = EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(gpu));
    let connection = communicator.connect(config, peer, 0)?.wait()?;

    println!("GPU {gpu}: Creating a semaphore ...");
    let semaphore = communicator.build_semaphore(&connection)?.wait()?;
    // ANCHOR_END: communicator

    println!("GPU {gpu}: Creating a channel ...");
    let channel = BaseMemoryChannel::new(&semaphore)?;
    let role = if rank == 0 { Role::Spinning } else { Role::Plain };
    let player = Player::new(role, &communicator.context().gpu(gpu)?)?;

    // Both sides are loaded before either waits.
    bootstrap.barrier()?;
    println!("GPU {gpu}: Launching a GPU kernel ...");
    player.launch(&channel)?;
    let ms_per_round = player.finish(&channel)?;

    // Neither rank frees its token while the other may still signal it.
    bootstrap.barrier()?;
    if rank == 1 { ping_pong::report(ms_per_round) } else { Ok(()) }
}
