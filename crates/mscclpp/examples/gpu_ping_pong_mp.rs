//! Two processes, one per device, find each other, connect, and a kernel of each signals the other's in turns.
//!
//! With two GPUs, one for each process; with one, both on it; with none, on simulated devices.

mod ping_pong;

use std::{
    error::Error,
    process::{Child, Command, ExitCode},
    sync::Arc,
    time::{Duration, Instant},
};

use mscclpp::{ErrorKind, prelude::*};
use ping_pong::{Player, Role};

const USAGE: &str = "\
usage: gpu_ping_pong_mp [ADDRESS]             run both ranks, each in a process of its own
       gpu_ping_pong_mp ADDRESS RANK GPU      run one of them; start the other in another terminal
ADDRESS is ip:port or interface:ip:port [default: lo:127.0.0.1:50505], RANK is 0 or 1, GPU a device number";

const DEFAULT_ADDRESS: &str = "lo:127.0.0.1:50505";
const N_RANKS: usize = 2;
const FAILED: u8 = 1;
const BAD_ARGUMENTS: u8 = 2;
/// How long the ranks may take to find each other.
const INIT: Duration = Duration::from_secs(30);
/// How long one rank may run after the other has failed; it notices by itself within seconds.
const GRACE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => run_both(DEFAULT_ADDRESS),
        [option] if option.starts_with('-') => return usage(),
        [address] => run_both(address),
        [address, rank, gpu] => match (rank.parse(), gpu.parse()) {
            (Ok(rank), Ok(gpu)) if rank < N_RANKS => run_rank(address, rank, gpu).map(|()| 0),
            _ => return usage(),
        },
        _ => return usage(),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("Failed: {error}");
            match error.downcast_ref::<mscclpp::Error>().is_some_and(is_about_the_address) {
                true => usage(),
                false => ExitCode::from(FAILED),
            }
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(BAD_ARGUMENTS)
}

fn is_about_the_address(error: &mscclpp::Error) -> bool {
    matches!(error, mscclpp::Error::Bootstrap(_)) && error.kind() == ErrorKind::InvalidUsage
}

/// Starts this program once per rank and returns the exit code of the first that fails, or 0.
fn run_both(address: &str) -> Result<u8, Box<dyn Error>> {
    let platform = Platform::detect_or_host()?;
    let count = platform.device_count()?.max(1);
    let ids: Vec<usize> = (0..N_RANKS).map(|rank| rank % count).collect();
    ping_pong::print_devices(platform, &ids)?;

    let program = std::env::current_exe()?;
    let mut ranks: Vec<Child> = Vec::new();
    for (rank, id) in ids.iter().enumerate() {
        let arguments = [address, &rank.to_string(), &id.to_string()];
        match Command::new(&program).args(arguments).env("MSCCLPP_PLATFORM", platform.to_string()).spawn() {
            Ok(child) => ranks.push(child),
            Err(error) => {
                stop(&mut ranks);
                return Err(error.into());
            }
        }
    }
    let mut failed: Option<(u8, Instant)> = None;
    while !ranks.is_empty() {
        let mut running = Vec::new();
        for mut rank in ranks {
            match rank.try_wait()? {
                None => running.push(rank),
                Some(status) if status.success() => {}
                Some(status) => {
                    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED);
                    failed.get_or_insert((code, Instant::now()));
                }
            }
        }
        ranks = running;
        if failed.is_some_and(|(_, when)| when.elapsed() > GRACE) {
            stop(&mut ranks);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(failed.map_or(0, |(code, _)| code))
}

fn stop(ranks: &mut Vec<Child>) {
    for mut rank in ranks.drain(..) {
        // Neither fails for a child that has not been waited for.
        let _ = rank.kill();
        let _ = rank.wait();
    }
}

fn run_rank(address: &str, rank: usize, gpu: usize) -> Result<(), Box<dyn Error>> {
    mscclpp::log::init()?;
    let peer = 1 - rank;
    let platform = Platform::detect_or_host()?;
    if rank == 0 {
        println!("Running on platform {platform}");
    }

    println!("GPU {gpu}: Initializing a bootstrap ...");
    // ANCHOR: bootstrap
    let bootstrap = Arc::new(TcpBootstrap::new(rank, N_RANKS, address, INIT).map_err(mscclpp::Error::from)?);
    // ANCHOR_END: bootstrap
    // ANCHOR: communicator
    let communicator = Communicator::with_context(bootstrap.clone(), Context::on(platform));

    println!("GPU {gpu}: Creating a connection ...");
    let config = EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(gpu));
    let connection = communicator.connect(config, peer, 0)?.wait()?;

    println!("GPU {gpu}: Creating a semaphore ...");
    let semaphore = communicator.build_semaphore(&connection, peer, 0)?.wait()?;
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

    // Nobody takes its token away while the other may still signal it.
    bootstrap.barrier()?;
    if rank == 1 { ping_pong::report(ms_per_round) } else { Ok(()) }
}
