//! Two endpoints of one process connect, and a kernel on each signals the other in turns.
//!
//! With two GPUs, each endpoint has one. With one GPU, both share it. Without a GPU, they are on simulated devices.

mod devices;
mod ping_pong;
mod two_devices;

use std::{error::Error, process::ExitCode};

use mscclpp::prelude::*;
use ping_pong::{Player, Role};

fn main() -> ExitCode {
    two_devices::main("gpu_ping_pong", run)
}

fn run(chosen: Option<[usize; 2]>) -> Result<(), Box<dyn Error>> {
    // ANCHOR: platform
    let platform = Platform::detect_or_sim()?;
    // ANCHOR_END: platform
    let [id0, id1] = two_devices::numbers(chosen, platform)?;
    devices::print_devices(platform, &[id0, id1])?;

    println!("Creating endpoints ...");
    // ANCHOR: context
    let context = Context::on(platform);
    // ANCHOR_END: context
    // ANCHOR: endpoints
    let endpoint0 = context.create_endpoint(EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(id0)))?;
    let endpoint1 = context.create_endpoint(EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(id1)))?;
    // ANCHOR_END: endpoints

    // ANCHOR: connections
    // Each side makes its own connection and its own half of the semaphore.
    println!("GPU {id0}: Creating a connection and a semaphore stub ...");
    let connection0 = context.connect(&endpoint0, &endpoint1)?;
    let stub0 = SemaphoreStub::new(&connection0)?;

    println!("GPU {id1}: Creating a connection and a semaphore stub ...");
    let connection1 = context.connect(&endpoint1, &endpoint0)?;
    let stub1 = SemaphoreStub::new(&connection1)?;
    // ANCHOR_END: connections

    // ANCHOR: channels
    println!("GPU {id0}: Creating a semaphore and a memory channel ...");
    let channel0 = BaseMemoryChannel::new(&Semaphore::new(&stub0, &stub1)?)?;
    let player0 = Player::new(Role::Spinning, &context.gpu(id0)?)?;

    println!("GPU {id1}: Creating a semaphore and a memory channel ...");
    let channel1 = BaseMemoryChannel::new(&Semaphore::new(&stub1, &stub0)?)?;
    let player1 = Player::new(Role::Plain, &context.gpu(id1)?)?;
    // ANCHOR_END: channels

    println!("GPU {id0}: Launching ping_pong_spin ...");
    player0.launch(&channel0)?;
    println!("GPU {id1}: Launching ping_pong_plain ...");
    let launched = player1.launch(&channel1);
    let outcome = launched.map_err(Into::into).and_then(|()| player1.finish(&channel1));
    if outcome.is_err() {
        // Nobody signals the other kernel any more. It must have ended before the objects that it uses are dropped.
        channel0.semaphore().abort("the other side failed");
    }
    let other = player0.finish(&channel0);
    let ms_per_round = outcome?;
    other?;
    ping_pong::report(ms_per_round)
}
