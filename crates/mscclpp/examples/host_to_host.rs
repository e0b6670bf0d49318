//! Two processes without any GPU: each writes numbers into the other's memory and signals, over TCP, on one node or on
//! two.

#[path = "ranks/processes.rs"]
mod processes;

use std::{
    error::Error,
    process::{Command, ExitCode},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use mscclpp::{
    bootstrap::TcpBootstrapBuilder, channels::HostToHostSemaphore, errors::BootstrapError, prelude::*,
};
use processes::{BAD_ARGUMENTS, FAILED, is_about_the_address, stop, wait_for};

const USAGE: &str = "\
usage: host_to_host [ADDRESS]        run both ranks, each in a process of its own
       host_to_host ADDRESS RANK     run one of them; start the other in another terminal, or on another machine
ADDRESS is ip:port or interface:ip:port of rank 0 [default: lo:127.0.0.1:15505], RANK is 0 or 1.
Started without arguments by mpirun, srun, torchrun or an indexed job of Kubernetes, it is the rank that these say.";

const DEFAULT_ADDRESS: &str = "lo:127.0.0.1:15505";
const N_RANKS: usize = 2;
/// The longest time that the ranks may take to find each other.
const INIT: Duration = Duration::from_secs(30);
/// The longest time that the peer may take to receive the data that was written.
const FLUSH: Duration = Duration::from_secs(30);

const ROUNDS: u64 = 1000;
const NUMBERS: usize = 1024;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => run_launched(),
        ["-h" | "--help"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        [option] if option.starts_with('-') => return usage(),
        [address] => run_both(address),
        [address, rank] => match rank.parse() {
            Ok(rank) if rank < N_RANKS => run_given(address, rank),
            _ => return usage(),
        },
        _ => return usage(),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            let rank = arguments.get(1).map_or(String::new(), |rank| format!("Rank {rank}: "));
            eprintln!("{rank}Failed: {}", mscclpp::Report(&*error));
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

fn run_given(address: &str, rank: usize) -> Result<u8, Box<dyn Error>> {
    mscclpp::log::init()?;
    run_rank(TcpBootstrap::builder(rank, N_RANKS), address).map(|()| 0)
}

/// Runs as the rank that the launcher (mpirun, srun, torchrun, Kubernetes) says, or starts both ranks if there is none.
fn run_launched() -> Result<u8, Box<dyn Error>> {
    mscclpp::log::init()?;
    match Rendezvous::from_env() {
        Err(BootstrapError::NotLaunched) => run_both(DEFAULT_ADDRESS),
        Ok(launched) if launched.n_ranks == N_RANKS => {
            run_rank(launched.builder(), &launched.address).map(|()| 0)
        }
        Ok(launched) => Err(format!("{} ranks were launched; this program has 2", launched.n_ranks).into()),
        Err(error) => Err(error.into()),
    }
}

/// Starts this program once per rank and returns the exit code of the first that fails, or 0.
fn run_both(address: &str) -> Result<u8, Box<dyn Error>> {
    let program = std::env::current_exe()?;
    let mut ranks = Vec::new();
    for rank in 0..N_RANKS {
        match Command::new(&program).args([address, &rank.to_string()]).spawn() {
            Ok(child) => ranks.push(child),
            Err(error) => {
                stop(&mut ranks);
                return Err(error.into());
            }
        }
    }
    let code = wait_for(ranks)?;
    if code == 0 {
        println!("Succeed!");
    }
    Ok(code)
}

/// The numbers that a peer writes while this process reads them.
type Numbers = Arc<[AtomicU64]>;

fn numbers() -> Numbers {
    (0..NUMBERS).map(|_| AtomicU64::new(0)).collect()
}

fn run_rank(bootstrap: TcpBootstrapBuilder, address: &str) -> Result<(), Box<dyn Error>> {
    println!("Initializing a bootstrap ...");
    let bootstrap = Arc::new(bootstrap.timeout(INIT).connect(address).map_err(mscclpp::Error::from)?);
    let rank = bootstrap.rank();
    let peer = 1 - rank;
    // ANCHOR: connect
    let communicator = Communicator::with_context(bootstrap.clone(), Context::new());

    println!("Rank {rank}: Creating a connection and a semaphore ...");
    let config = EndpointConfig::new(Transport::ETHERNET, Device::CPU);
    let connection = communicator.connect(config, peer, 0)?.wait()?;
    let semaphore = HostToHostSemaphore::new(&communicator.build_semaphore(&connection)?.wait()?)?;
    // ANCHOR_END: connect

    let (outgoing, incoming) = (numbers(), numbers());
    let register = |numbers: &Numbers| {
        // SAFETY: the memory is of this process, lives longer than the communicator and all objects that were made with
        // it, and is only accessed with atomics.
        unsafe {
            communicator.register_memory(
                DevicePtr::from_ptr(numbers.as_ptr()),
                size_of_val(&**numbers) as u64,
                Transport::ETHERNET,
            )
        }
    };
    let (source, target) = (register(&outgoing)?, register(&incoming)?);
    communicator.send_memory(&target, peer, 0)?;
    let there = communicator.recv_memory(peer, 0)?.wait()?;

    let start = Instant::now();
    // ANCHOR: rounds
    for round in 1..=ROUNDS {
        for (index, number) in outgoing.iter().enumerate() {
            number.store(expected(rank, round, index), Ordering::Relaxed);
        }
        connection.write(&there, 0, &source, 0, source.size())?;
        semaphore.signal()?;
        semaphore.wait(-1)?; // the peer's numbers are there
        for (index, number) in incoming.iter().enumerate() {
            let (got, due) = (number.load(Ordering::Relaxed), expected(peer, round, index));
            if got != due {
                return Err(format!("round {round}: number {index} is {got}, not {due}").into());
            }
        }
        connection.flush(FLUSH)?; // the numbers may be overwritten
        semaphore.signal()?; // the peer may overwrite ours
        semaphore.wait(-1)?;
    }
    // ANCHOR_END: rounds
    let took = start.elapsed();

    // Neither rank frees its memory while the other may still write to it.
    bootstrap.barrier()?;
    println!(
        "Rank {rank}: {ROUNDS} rounds of {NUMBERS} numbers each way, all as they should be, {:.1} us a round",
        { 1e6 * took.as_secs_f64() / ROUNDS as f64 }
    );
    Ok(())
}

/// The number that `rank` writes in a round at `index`.
fn expected(rank: usize, round: u64, index: usize) -> u64 {
    (rank as u64 + 1) << 48 | round << 16 | index as u64
}
