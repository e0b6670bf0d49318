//! Tests of ranks that are processes, and of what the others see when one of them is killed, stopped, or ends.
//!
//! The program starts itself again, once for each rank; see `Scenario`.

use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::ranks::{PATIENCE, free_port, prove};
use libtest_mimic::{Failed, Trial};
use mscclpp_bootstrap::fuzzing::RawRank;
use mscclpp_bootstrap::{Bootstrap, Env, Error, TcpBootstrap};
use mscclpp_test_support::{Child, child, in_fork};
use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};

/// The time within which all other ranks must know of a loss, on their own clocks. It takes milliseconds, and up to
/// two seconds for rank 0 of a job that forms; the rest is for busy machines.
pub(crate) const LIMIT: Duration = Duration::from_secs(25);
const RANKS: usize = 5;
/// The line that a rank prints when its call has failed, before the time in microseconds.
const KNOWN_AT: &str = "known at";

/// The task of the ranks in a test. The victim usually does nothing once the job has formed.
#[derive(Clone, Copy, PartialEq)]
enum Scenario {
    /// The last rank never comes; the victim is killed while the others wait for it.
    Forming,
    /// The victim is killed after it has proved who it is, and before it has said more.
    Proved,
    Barrier,
    Recv,
    AllGather,
    GroupBarrier,
    /// All ranks, the victim too, exchange messages of all kinds, so that the victim is killed in the middle of some.
    Busy,
    /// The victim ends its process without dropping its bootstrap.
    Exit,
    /// The victim forks a child, which lives on when the victim is killed.
    Forked,
    /// The victim aborts, and ends its process at once.
    Abort,
    /// Rank 1 leaves; after that the victim, below it, is killed.
    LeftBefore,
    /// Rank 1 is stopped for a while; the others send it more than fits in the buffers.
    Stopped,
}

const SCENARIOS: [(&str, Scenario); 12] = [
    ("forming", Scenario::Forming),
    ("proved", Scenario::Proved),
    ("barrier", Scenario::Barrier),
    ("recv", Scenario::Recv),
    ("all_gather", Scenario::AllGather),
    ("group_barrier", Scenario::GroupBarrier),
    ("busy", Scenario::Busy),
    ("exit", Scenario::Exit),
    ("killed_with_workers", Scenario::Forked),
    ("abort", Scenario::Abort),
    ("left_before", Scenario::LeftBefore),
    ("stopped", Scenario::Stopped),
];

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (name, scenario) in SCENARIOS {
        // The victims are the root of the tree, a rank in its middle, and one of its leaves.
        let victims: &[usize] = match scenario {
            Scenario::LeftBefore => &[3],
            Scenario::Stopped => &[1],
            Scenario::Forming => &[0, 1, 3],
            Scenario::Forked => &[0, 4],
            Scenario::Proved => &[1, 4],
            _ => &[0, 1, 4],
        };
        for &victim in victims {
            trials.push(Trial::test(format!("{name}::rank_{victim}"), move || match scenario {
                Scenario::Stopped => a_stopped_rank_is_not_a_dead_one(),
                _ => a_lost_rank_is_named(name, scenario, victim),
            }));
        }
    }
    trials
}

// ---- The rank ---------------------------------------------------------------------------------------------------------

pub(crate) fn be_rank(role: &[String]) -> ExitCode {
    let [scenario, rank, victim, at] = role else { return ExitCode::from(2) };
    let Some(&(_, scenario)) = SCENARIOS.iter().find(|(name, _)| name == scenario) else {
        return ExitCode::from(2);
    };
    let (Ok(rank), Ok(victim)) = (rank.parse(), victim.parse()) else { return ExitCode::from(2) };
    tracing_subscriber::fmt()
        .with_env_filter("mscclpp=debug")
        .with_writer(std::io::stdout)
        .with_ansi(false)
        .init();
    match run_rank(scenario, rank, victim, at) {
        Ok(()) => println!("outcome: fine"),
        Err(Error::PeerLost { rank, detail }) => println!("outcome: lost {rank} ({detail})"),
        Err(Error::Aborted { rank, reason }) => println!("outcome: aborted {rank} ({reason})"),
        Err(error) => println!("outcome: {error:?}"),
    }
    ExitCode::SUCCESS
}

/// Returns the time on a clock that all processes share.
pub(crate) fn clock() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn say_when_known() {
    println!("{KNOWN_AT} {}", clock().as_micros());
}

fn run_rank(scenario: Scenario, rank: usize, victim: usize, at: &str) -> Result<(), Error> {
    if scenario == Scenario::Proved && rank == victim {
        let (_stream, answer) = prove(RawRank::without_key(RANKS as u32, rank as u32), at);
        println!("proved: {answer}");
        std::thread::sleep(PATIENCE);
        return Ok(());
    }
    let job = TcpBootstrap::builder(rank, RANKS)
        .env(Env::default())
        .timeout(PATIENCE)
        .connect(at)
        .inspect_err(|_| say_when_known())?;
    let started = Instant::now();
    if scenario == Scenario::LeftBefore && rank == 1 {
        println!("formed");
        return Ok(());
    }
    if scenario == Scenario::Stopped {
        return run_with_a_stopped_rank(&job, victim);
    }
    if scenario == Scenario::Forked && rank == victim {
        // The child lives as long as the test program, so that it has no part in the end of the job.
        let program = format!("/proc/{}", std::os::unix::process::parent_id());
        std::thread::spawn(move || {
            in_fork(3 * PATIENCE, || {
                let end = Instant::now() + 2 * PATIENCE;
                while Path::new(&program).exists() && Instant::now() < end {
                    std::thread::sleep(Duration::from_millis(50));
                }
                String::new()
            })
        });
        std::thread::sleep(Duration::from_millis(300));
    }
    println!("formed");
    if scenario == Scenario::Busy {
        return keep_busy(&job).inspect_err(|_| say_when_known());
    }
    if rank == victim {
        match scenario {
            Scenario::Exit => {
                child::await_end();
                std::process::exit(0);
            }
            Scenario::Abort => {
                child::await_end();
                job.abort("no more");
                std::process::exit(0);
            }
            // The victim waits to be killed.
            _ => std::thread::sleep(PATIENCE),
        }
        return Ok(());
    }
    let survivors: Vec<usize> = (0..RANKS).filter(|&r| r != victim).collect();
    let next = survivors[(survivors.iter().position(|&r| r == rank).unwrap_or(0) + 1) % survivors.len()];
    let outcome = match scenario {
        // The rank waits for one that is alive, and sends nothing.
        Scenario::Recv => job.recv(next, 0).map(drop),
        // Rank 0 waits for a rank on the other side of the one that left.
        Scenario::LeftBefore => job.recv(if rank == 0 { 2 } else { 0 }, 0).map(drop),
        Scenario::AllGather => job.all_gather(&[0; 100]).map(drop),
        Scenario::GroupBarrier => job.group_barrier(&survivors).and_then(|()| job.recv(next, 0).map(drop)),
        _ => job.barrier(),
    };
    say_when_known();
    assert!(started.elapsed() < PATIENCE, "only the victim ends the wait");
    assert_eq!(outcome.is_err(), job.barrier().is_err(), "later calls fail too");
    outcome
}

fn keep_busy(job: &TcpBootstrap) -> Result<(), Error> {
    let rank = job.rank();
    let big = vec![rank as u8; 100_000];
    loop {
        job.all_gather(&big)?;
        job.send(&big, (rank + 2) % RANKS, 1)?;
        job.recv((rank + 3) % RANKS, 1)?;
        job.group_barrier(&[0, 1, 2, 3, 4])?;
    }
}

fn run_with_a_stopped_rank(job: &TcpBootstrap, victim: usize) -> Result<(), Error> {
    let big = vec![7; 2 << 20];
    job.barrier()?;
    println!("formed");
    // The victim is stopped here, and continues when the test lets it; the others continue once it is stopped.
    child::await_end();
    if job.rank() == victim {
        for peer in (0..RANKS).filter(|&peer| peer != victim) {
            assert_eq!(job.recv(peer, 0)?, big);
        }
    } else {
        job.send(&big, victim, 0)?;
    }
    job.barrier()
}

// ---- The test ---------------------------------------------------------------------------------------------------------

/// The process of a rank.
struct Rank {
    rank: usize,
    child: Child,
}

type Line = (usize, String);

fn start(name: &str, victim: usize, ranks: &[usize]) -> (Vec<Rank>, mpsc::Receiver<Line>) {
    let at = format!("127.0.0.1:{}", free_port());
    let (lines, received) = mpsc::channel();
    let start = |&rank: &usize| {
        let role = ["lost", name, &rank.to_string(), &victim.to_string(), &at];
        let lines = lines.clone();
        let child = Child::start_heard_by(&role, move |line| {
            // The test may have ended, and then nobody reads the line.
            let _ = lines.send((rank, line));
        });
        Rank { rank, child }
    };
    (ranks.iter().map(start).collect(), received)
}

/// Reads lines until `n` of them contain one of these texts.
fn await_lines(lines: &mpsc::Receiver<Line>, texts: &[&str], n: usize) -> Result<Vec<Line>, Failed> {
    let mut found = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    while found.len() < n {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) if texts.iter().any(|text| line.1.contains(text)) => found.push(line),
            // The other ranks wait for this rank in vain.
            Ok((rank, line)) if line.contains("outcome:") && !line.contains("outcome: fine") => {
                return Err(format!("rank {rank}, early: {line}").into());
            }
            Ok(_) => {}
            Err(_) => {
                return Err(format!("only {} of {n} ranks said {texts:?}: {found:?}", found.len()).into());
            }
        }
    }
    Ok(found)
}

fn a_lost_rank_is_named(name: &str, scenario: Scenario, victim: usize) -> Result<(), Failed> {
    let absent = usize::from(scenario == Scenario::Forming);
    let started: Vec<usize> = (0..RANKS - absent).collect();
    let (mut children, lines) = start(name, victim, &started);
    match scenario {
        Scenario::Forming => await_lines(&lines, &["a rank has joined"], RANKS - 2)?,
        Scenario::Proved => await_lines(&lines, &["a rank has joined", "proved: Accepted"], RANKS - 1)?,
        _ => await_lines(&lines, &["formed"], 2 * RANKS)?,
    };
    // The ranks begin to wait; in the last scenario, they connect around the rank that left.
    let settle = if scenario == Scenario::LeftBefore { 1500 } else { 300 };
    std::thread::sleep(Duration::from_millis(settle));
    let lost_at = clock();
    let mut survivors = started.len() - 1;
    let lost = children.iter_mut().find(|rank| rank.rank == victim).ok_or("no victim")?;
    match scenario {
        Scenario::Exit | Scenario::Abort => lost.child.close_input(),
        _ => lost.child.kill(),
    }
    let expected = match scenario {
        Scenario::Abort => format!("outcome: aborted {victim} "),
        _ => format!("outcome: lost {victim} "),
    };
    if scenario == Scenario::LeftBefore {
        survivors -= 1;
    }
    let (mut done, mut known_at) = (0, Vec::new());
    let deadline = Instant::now() + PATIENCE;
    while done < survivors {
        let Ok((rank, line)) = lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) else {
            return Err(format!("{done} of {survivors} ranks have ended with an error: {known_at:?}").into());
        };
        if let Some(micros) = line.strip_prefix(KNOWN_AT) {
            known_at.push((rank, Duration::from_micros(micros.trim().parse()?)));
        } else if line.contains(&expected) {
            done += 1;
        } else if line.contains("outcome:") && !line.contains("outcome: fine") {
            return Err(format!("rank {rank}: {line}").into());
        }
    }
    let after: Vec<_> = known_at.iter().map(|&(rank, at)| (rank, at.saturating_sub(lost_at))).collect();
    match after.len() == survivors && after.iter().all(|&(_, after)| after < LIMIT) {
        true => Ok(()),
        false => Err(format!("ranks that know of the loss, and after how long: {after:?}").into()),
    }
}

fn a_stopped_rank_is_not_a_dead_one() -> Result<(), Failed> {
    let ranks: Vec<usize> = (0..RANKS).collect();
    let victim = 1;
    let (mut children, lines) = start("stopped", victim, &ranks);
    // The word is in a log line of each rank and in a line that each prints.
    await_lines(&lines, &["formed"], 2 * RANKS)?;
    let signal = |children: &[Rank], signal| {
        children.iter().filter(|rank| rank.rank == victim).for_each(|rank| rank.child.signal(signal));
    };
    signal(&children, Signal::STOP);
    children.iter_mut().filter(|rank| rank.rank != victim).for_each(|rank| rank.child.close_input());
    // The pause is longer than a vanished node is given.
    std::thread::sleep(Duration::from_millis(6500));
    signal(&children, Signal::CONT);
    children.iter_mut().for_each(|rank| rank.child.close_input());
    for (rank, line) in await_lines(&lines, &["outcome:"], RANKS)? {
        if !line.contains("outcome: fine") {
            return Err(format!("rank {rank}: {line}").into());
        }
    }
    Ok(())
}
