//! Four ranks work together. One is killed; a new process takes its place, the job forms again, and the work goes on.
//!
//! The program starts the ranks as processes of its own. On a cluster a scheduler would start the new process.

use std::{
    env,
    error::Error,
    io::{BufRead, BufReader},
    process::{Child, Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use mscclpp::{bootstrap::Job, errors::BootstrapError, prelude::*};

const N_RANKS: usize = 4;
const VICTIM: usize = 2;
/// The longest time that ranks may take to join, for each generation of the job.
const PATIENCE: Duration = Duration::from_secs(30);
const STEPS: u64 = 40;

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let outcome = match args.as_slice() {
        [] => supervise("127.0.0.1:15505"),
        [address] => supervise(address),
        [address, rank] => rank.parse().map_err(Into::into).and_then(|rank| work(rank, address)),
        _ => Err("usage: replace_a_rank [ADDRESS [RANK]]".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs as a rank: it works, and when a rank is lost it forms the job again and continues at the step that all can
/// continue at.
fn work(rank: usize, address: &str) -> Result<(), Box<dyn Error>> {
    // ANCHOR: generations
    let mut job = Job::new(TcpBootstrap::builder(rank, N_RANKS).timeout(PATIENCE), address);
    let mut done = 0; // a new process has done nothing
    loop {
        let since = Instant::now();
        let ranks = match job.next_generation() {
            Ok(ranks) => ranks,
            // Another rank was lost before all had joined.
            Err(BootstrapError::PeerLost { .. } | BootstrapError::PeerClosed { .. }) => continue,
            Err(other) => return Err(other.into()),
        };
        println!("rank {rank}: generation {} after {:.0?}", ranks.generation(), since.elapsed());
        match steps(&ranks, &mut done) {
            Ok(()) => break,
            Err(BootstrapError::PeerLost { rank: gone, .. }) => {
                println!("rank {rank}: rank {gone} is gone after step {done}");
            }
            Err(other) => return Err(other.into()),
        }
    }
    // ANCHOR_END: generations
    println!("rank {rank}: all {STEPS} steps are done");
    Ok(())
}

/// Works until the end, or until a rank is lost. A real program would make a communicator, connections and channels here,
/// and load its last checkpoint.
fn steps(ranks: &TcpBootstrap, done: &mut u64) -> Result<(), BootstrapError> {
    // The last step that any rank has done: the other ranks know it, the new one does not.
    let all = ranks.all_gather(&done.to_le_bytes())?;
    *done = all
        .iter()
        .filter_map(|word| word.as_slice().try_into().ok())
        .map(u64::from_le_bytes)
        .max()
        .unwrap_or(0);
    while *done < STEPS {
        thread::sleep(Duration::from_millis(50));
        ranks.barrier()?;
        *done += 1;
    }
    // No rank leaves before all are done.
    ranks.barrier()
}

/// Starts the ranks, kills one of them, and starts it again.
fn supervise(address: &str) -> Result<(), Box<dyn Error>> {
    let start = |rank: usize, output: Stdio| {
        Command::new(env::current_exe()?).args([address, &rank.to_string()]).stdout(output).spawn()
    };
    let mut ranks = (0..N_RANKS)
        .map(|rank| start(rank, if rank == VICTIM { Stdio::piped() } else { Stdio::inherit() }))
        .collect::<Result<Vec<Child>, _>>()?;
    // The first line of the victim says that the job has formed.
    let mut said = BufReader::new(ranks[VICTIM].stdout.take().ok_or("the victim has no output")?);
    let mut line = String::new();
    said.read_line(&mut line)?;
    print!("{line}");
    thread::sleep(Duration::from_millis(200));
    println!("Killing rank {VICTIM} ...");
    ranks[VICTIM].kill()?;
    ranks[VICTIM].wait()?;
    ranks[VICTIM] = start(VICTIM, Stdio::inherit())?;
    let mut failed = Vec::new();
    for (rank, process) in ranks.iter_mut().enumerate() {
        if !process.wait()?.success() {
            failed.push(rank);
        }
    }
    if !failed.is_empty() {
        return Err(format!("ranks {failed:?} failed").into());
    }
    println!("Succeed!");
    Ok(())
}
