//! Tests of two jobs that were given one address. Each rank is a process that runs this program again.
//!
//! With ids of their jobs in the environment they are told apart. Without ids, all ranks of both learn of the clash,
//! in whatever order they come.

use std::net::TcpStream;
use std::process::ExitCode;

use crate::ranks::{PATIENCE, free_port};
use libtest_mimic::{Failed, Trial};
use mscclpp_bootstrap::{Bootstrap, TcpBootstrap};
use mscclpp_test_support::{Child, child, until};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for order in ["a0 a1 b0 b1", "a0 b1 a1 b0", "b1 a0 b0 a1", "b1 a1 a0 b0"] {
        trials.push(Trial::test(format!("ids_tell_jobs_apart: {order}"), move || {
            are_told_apart(
                order,
                |job| vec![("MSCCLPP_JOB_ID", format!("job {job}"))],
                |job| format!("job {job}"),
            )
        }));
    }
    trials.push(Trial::test("ids_of_a_launcher_tell_jobs_apart", || {
        let step = |job| if job == 'a' { "0" } else { "1" }.to_owned();
        let slurm = |job| {
            vec![
                ("SLURM_PROCID", "0".to_owned()),
                ("SLURM_JOB_ID", "7".to_owned()),
                ("SLURM_STEP_ID", step(job)),
            ]
        };
        are_told_apart("a0 b1 a1 b0", slurm, |job| format!("Slurm job 7 step {}", step(job)))
    }));
    // These are all orders of four ranks, and a complete job to which one more rank comes, also one that rank 0 has
    // no connection to.
    for order in ["0011", "0101", "0110", "1001", "1010", "1100", "010", "011", "01233", "01230"] {
        trials.push(Trial::test(format!("without_ids_all_are_told: {order}"), move || {
            all_are_told(order, "hold")
        }));
    }
    for order in ["0110", "1010"] {
        let name = format!("without_ids_all_are_told_when_the_first_have_ended: {order}");
        trials.push(Trial::test(name, move || all_are_told(order, "drop")));
    }
    trials
}

// ---- The rank --------------------------------------------------------------------------------------------------------

pub(crate) fn be_rank(role: &[String]) -> ExitCode {
    let [rank, n, at, then] = role else { return ExitCode::from(2) };
    let (Ok(rank), Ok(n)) = (rank.parse(), n.parse()) else { return ExitCode::from(2) };
    assert_eq!(child::hear(), "join");
    match TcpBootstrap::new(rank, n, at.as_str(), PATIENCE) {
        Err(error) => child::say(&error.to_string()),
        Ok(job) => {
            child::say("joined");
            let met = if then == "drop" {
                // The peer sends nothing, so the call fails when the job does.
                job.recv((rank + 1) % n, 0).map(drop)
            } else {
                assert_eq!(child::hear(), "meet");
                job.barrier()
            };
            child::say(&met.map_or_else(|error| error.to_string(), |()| "met".to_owned()));
        }
    }
    ExitCode::SUCCESS
}

/// Starts a rank, which joins on command. It keeps its job until it is told to meet, or drops it when it fails.
fn start(rank: usize, n: usize, at: &str, environment: &[(&str, String)], then: &str) -> Child {
    let mut command = child::this_program();
    // The test itself may have been started by a launcher.
    command.env_clear().envs(environment.iter().map(|(name, value)| (name, value)));
    Child::start_by(command, &["two_jobs", &rank.to_string(), &n.to_string(), at, then])
}

// ---- The tests -------------------------------------------------------------------------------------------------------

/// Runs two jobs of two ranks with ids. The job whose rank 0 comes first forms, and goes on; the ranks of the other
/// are refused.
fn are_told_apart(
    order: &str,
    environment: impl Fn(char) -> Vec<(&'static str, String)>,
    id: impl Fn(char) -> String,
) -> Result<(), Failed> {
    let at = &format!("127.0.0.1:{}", free_port());
    let mut ranks: Vec<(char, usize, Child)> = Vec::new();
    for name in order.split(' ') {
        let (job, rank) = (name.chars().next().unwrap(), name[1..].parse().unwrap());
        ranks.push((job, rank, start(rank, 2, at, &environment(job), "hold")));
    }
    let first = ranks.iter().find(|(_, rank, _)| *rank == 0).map(|(job, ..)| *job).unwrap();
    for (_, rank, child) in &mut ranks {
        child.tell("join");
        if *rank == 0 {
            until("rank 0 listens", || listens(at));
        }
    }
    for (job, _, child) in &mut ranks {
        let said = child.next_line();
        if *job == first {
            assert_eq!(said, "joined");
            continue;
        }
        let both = format!("of another job ({}), and this rank of {}", id(first), id(*job));
        assert!(said.contains(at) && said.contains(&both) && said.contains("another port"), "{said}");
    }
    ranks.retain(|(job, ..)| *job == first);
    ranks.iter_mut().for_each(|(_, _, child)| child.tell("meet"));
    ranks.iter().for_each(|(_, _, child)| child.expect("met"));
    Ok(())
}

/// Runs ranks of two jobs without ids, in this order. Whichever of them met, all must be told of the clash.
fn all_are_told(order: &str, then: &str) -> Result<(), Failed> {
    let at = &format!("127.0.0.1:{}", free_port());
    let order: Vec<usize> = order.bytes().map(|digit| usize::from(digit - b'0')).collect();
    let n = 1 + order.iter().max().unwrap();
    // All ranks are started before the first joins, so that they come quickly one after the other.
    let mut ranks: Vec<Child> = order.iter().map(|&rank| start(rank, n, at, &[], then)).collect();
    let mut said = vec![None; ranks.len()];
    for (i, child) in ranks.iter_mut().enumerate() {
        // The next rank joins once this one has an effect: it listens, has joined, looks for a rank 0, or has failed.
        let alone = !listens(at);
        child.tell("join");
        match (order[i], alone) {
            (0, true) => until("rank 0 listens", || listens(at)),
            (_, false) if i + 1 >= n => said[i] = Some(child.next_line()),
            _ => {}
        }
    }
    for (child, said) in ranks.iter().zip(&mut said) {
        said.get_or_insert_with(|| child.next_line());
    }
    for (child, said) in ranks.iter_mut().zip(&mut said).filter(|(_, said)| said.as_deref() == Some("joined"))
    {
        if then == "hold" {
            child.tell("meet");
        }
        *said = None;
    }
    for (child, said) in ranks.iter().zip(said) {
        let said = said.unwrap_or_else(|| child.next_line());
        let told = said.contains("came twice to the job") || said.contains("ranks already");
        assert!(
            told && said.contains(at) && said.contains("two jobs share") | said.contains("another job"),
            "{said}"
        );
    }
    Ok(())
}

fn listens(at: &str) -> bool {
    TcpStream::connect(at).is_ok()
}
