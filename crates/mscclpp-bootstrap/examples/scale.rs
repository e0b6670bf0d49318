//! Measures initialisation, all_gather and barrier, and the resources of a rank, with all ranks as threads of this
//! process.
//!
//! ```text
//! cargo run --release --example scale -- 64 1024
//! ```

use std::fs;
use std::process::ExitCode;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use mscclpp_bootstrap::{Bootstrap, Error, TcpBootstrap};

const ROUNDS: u32 = 10;
/// The most ranks. Each has a thread of its own beside that of its bootstrap.
const MOST_RANKS: usize = 16_384;
/// The number of bytes that each rank contributes to `all_gather`.
const BYTES: usize = 256;

fn main() -> ExitCode {
    let sizes: Result<Vec<usize>, _> = std::env::args().skip(1).map(|arg| arg.parse()).collect();
    let sizes = match sizes {
        Ok(sizes) if !sizes.is_empty() && sizes.iter().all(|n| (1..=MOST_RANKS).contains(n)) => sizes,
        _ => {
            eprintln!("usage: scale <number of ranks, 1 to {MOST_RANKS}>...");
            return ExitCode::from(2);
        }
    };
    println!(
        "| ranks | initialise | all_gather {BYTES} B | barrier | threads/rank | descriptors/rank | RSS/rank |"
    );
    println!("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for n in sizes {
        if let Err(error) = measure(n) {
            eprintln!("{n} ranks: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// The resources of the process: threads, descriptors, resident kilobytes.
#[derive(Clone, Copy)]
struct Resources {
    threads: usize,
    descriptors: usize,
    resident: usize,
}

impl Resources {
    fn now() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
        };
        Self {
            threads: field("Threads:"),
            descriptors: fs::read_dir("/proc/self/fd").map_or(0, Iterator::count),
            resident: field("VmRSS:"),
        }
    }
}

#[derive(Default)]
struct Times {
    initialise: Duration,
    all_gather: Duration,
    barrier: Duration,
}

fn measure(n: usize) -> Result<(), Error> {
    let before = Resources::now();
    let id = TcpBootstrap::create_unique_id()?;
    // The barrier is for the measured threads and this one, which reads the resources while the others are idle.
    let quiet = Barrier::new(n + 1);
    let started = Instant::now();
    let (times, during) = std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..n)
            .map(|rank| {
                let quiet = &quiet;
                let run = move || -> Result<Times, Error> {
                    let job = TcpBootstrap::new(rank, n, id, Duration::from_secs(60));
                    let initialise = started.elapsed();
                    quiet.wait();
                    quiet.wait();
                    let job = job?;
                    let mine = vec![rank as u8; BYTES];
                    job.barrier()?;
                    let at = Instant::now();
                    for _ in 0..ROUNDS {
                        job.all_gather(&mine)?;
                    }
                    let all_gather = at.elapsed() / ROUNDS;
                    job.barrier()?;
                    let at = Instant::now();
                    for _ in 0..ROUNDS {
                        job.barrier()?;
                    }
                    Ok(Times { initialise, all_gather, barrier: at.elapsed() / ROUNDS })
                };
                std::thread::Builder::new().stack_size(256 * 1024).spawn_scoped(scope, run)
            })
            .collect();
        quiet.wait();
        let during = Resources::now();
        quiet.wait();
        let times: Vec<Result<Times, Error>> = ranks
            .into_iter()
            .map(|rank| rank.expect("a thread can be started").join().expect("a rank does not panic"))
            .collect();
        (times, during)
    });
    let mut worst = Times::default();
    for time in times {
        let time = time?;
        worst.initialise = worst.initialise.max(time.initialise);
        worst.all_gather = worst.all_gather.max(time.all_gather);
        worst.barrier = worst.barrier.max(time.barrier);
    }
    let per_rank = |after: usize, before: usize| (after.saturating_sub(before)) as f64 / n as f64;
    println!(
        "| {n} | {:.1?} | {:.1?} | {:.1?} | {:.1} | {:.1} | {:.0} KiB |",
        worst.initialise,
        worst.all_gather,
        worst.barrier,
        // The rank's own measuring thread is not part of the bootstrap.
        per_rank(during.threads, before.threads) - 1.0,
        per_rank(during.descriptors, before.descriptors),
        per_rank(during.resident, before.resident),
    );
    Ok(())
}
