//! Tests of ranks that are gone and replaced, so that the job forms again. In tests that kill a rank, each rank is a
//! process that runs this program again.

use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::ranks::{PATIENCE, free_port, in_threads};
use libtest_mimic::{Failed, Trial};
use mscclpp_bootstrap::job::Limits;
use mscclpp_bootstrap::{Bootstrap, Env, Error, Job, TcpBootstrap};
use mscclpp_test_support::{Child, child, until};

const RANKS: usize = 5;
/// The time for which a rank asks again if its job cannot form again.
const EARLIER_JOB: Duration = Duration::from_millis(50);

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    // The victims are the root of the tree, a rank in its middle, and one of its leaves.
    for victim in [0, 1, 4] {
        trials.push(Trial::test(format!("a_killed_rank_is_replaced: {victim}"), move || {
            killed_ranks_are_replaced(&[victim])
        }));
    }
    trials.push(Trial::test("several_generations_follow_each_other", || {
        killed_ranks_are_replaced(&[3, 0, 0, 1])
    }));
    trials.push(Trial::test(
        "a_replacement_may_come_before_the_loss_is_known",
        a_replacement_may_come_before_the_loss_is_known,
    ));
    trials.push(Trial::test(
        "a_generation_that_does_not_form_can_be_tried_again",
        a_generation_that_does_not_form_can_be_tried_again,
    ));
    trials.push(Trial::test("nothing_of_an_earlier_generation_arrives", || {
        nothing_of_an_earlier_generation_arrives()
    }));
    trials.push(Trial::test("a_rank_alone_counts_generations_too", || {
        let mut job = job_of(0, 1, &address());
        for generation in 1..4 {
            assert_eq!(job.next_generation()?.generation(), generation);
        }
        Ok(())
    }));
    trials.push(Trial::test("sixty_four_ranks_form_again", sixty_four_ranks_form_again));
    trials
}

fn address() -> String {
    format!("127.0.0.1:{}", free_port())
}

fn job_of(rank: usize, n: usize, at: &str) -> Job {
    let rank = TcpBootstrap::builder(rank, n).env(Env::default()).timeout(PATIENCE);
    Job::new(rank.limits(Limits { earlier_job: EARLIER_JOB, ..Limits::default() }), at)
}

// ---- The rank ---------------------------------------------------------------------------------------------------------

/// Runs a rank: it prints its generation, and waits until rank 0 is told to end, or a rank is gone.
pub(crate) fn be_rank(role: &[String]) -> ExitCode {
    let [rank, at] = role else { return ExitCode::from(2) };
    let Ok(rank) = rank.parse() else { return ExitCode::from(2) };
    let mut job = job_of(rank, RANKS, at);
    let (words, heard) = mpsc::channel();
    if rank == 0 {
        std::thread::spawn(move || words.send(child::hear()));
    }
    loop {
        let ranks = match job.next_generation() {
            Ok(ranks) => ranks,
            Err(error @ (Error::PeerLost { .. } | Error::PeerClosed { .. })) => {
                child::say(&format!("not formed: {error}"));
                continue;
            }
            Err(error) => {
                child::say(&format!("failed: {error}"));
                return ExitCode::FAILURE;
            }
        };
        child::say(&format!("generation {}", ranks.generation()));
        let all = ranks.all_gather(&[rank as u8]).and_then(|all| {
            while rank == 0 && heard.recv_timeout(Duration::from_millis(5)).is_err() {
                ranks.failure().map_or(Ok(()), Err)?;
            }
            ranks.barrier().map(|()| all)
        });
        match all {
            Ok(all) => {
                assert!((0..RANKS).all(|rank| all[rank] == [rank as u8]), "{all:?}");
                child::say("done");
                return ExitCode::SUCCESS;
            }
            Err(Error::PeerLost { rank, .. }) => child::say(&format!("lost {rank}")),
            Err(error) => {
                child::say(&format!("failed: {error}"));
                return ExitCode::FAILURE;
            }
        }
    }
}

// ---- The tests --------------------------------------------------------------------------------------------------------

fn start(rank: usize, at: &str) -> Child {
    Child::start(&["generations", &rank.to_string(), at])
}

fn expect_of_others(ranks: &[Child], victim: usize) {
    let lost = format!("lost {victim}");
    ranks.iter().enumerate().filter(|(rank, _)| *rank != victim).for_each(|(_, rank)| rank.expect(&lost));
}

fn end(ranks: &mut [Child]) {
    ranks[0].tell("end");
    for rank in ranks {
        rank.expect("done");
        rank.expect_success();
    }
}

fn killed_ranks_are_replaced(victims: &[usize]) -> Result<(), Failed> {
    let at = address();
    let mut ranks: Vec<Child> = (0..RANKS).map(|rank| start(rank, &at)).collect();
    for (generation, &victim) in (1..).zip(victims) {
        ranks.iter().for_each(|rank| rank.expect(&format!("generation {generation}")));
        ranks[victim].kill();
        expect_of_others(&ranks, victim);
        ranks[victim] = start(victim, &at);
    }
    ranks.iter().for_each(|rank| rank.expect(&format!("generation {}", victims.len() + 1)));
    end(&mut ranks);
    Ok(())
}

/// The new process asks while the job is complete, and is admitted when that job has ended.
fn a_replacement_may_come_before_the_loss_is_known() -> Result<(), Failed> {
    let at = address();
    let mut ranks: Vec<Child> = (0..RANKS).map(|rank| start(rank, &at)).collect();
    ranks.iter().for_each(|rank| rank.expect("generation 1"));
    let early = start(2, &at);
    // The new process is given time to start.
    std::thread::sleep(10 * EARLIER_JOB);
    ranks[2].kill();
    expect_of_others(&ranks, 2);
    ranks[2] = early;
    ranks.iter().for_each(|rank| rank.expect("generation 2"));
    end(&mut ranks);
    Ok(())
}

fn a_generation_that_does_not_form_can_be_tried_again() -> Result<(), Failed> {
    let at = address();
    let mut ranks: Vec<Child> = (0..RANKS).map(|rank| start(rank, &at)).collect();
    ranks.iter().for_each(|rank| rank.expect("generation 1"));
    ranks[3].kill();
    expect_of_others(&ranks, 3);
    // The ranks form the job again, and wait for rank 3. Another of them is lost meanwhile, perhaps before rank 0
    // knew it.
    ranks[1].kill();
    ranks[3] = start(3, &at);
    ranks[1] = start(1, &at);
    for rank in &ranks {
        loop {
            let line = rank.next_line();
            if line == "generation 2" {
                break;
            }
            assert!(line.starts_with("not formed: rank 1 was lost"), "{line}");
        }
    }
    end(&mut ranks);
    Ok(())
}

/// Runs ranks as threads. One sends a message that is not received, and all go on to the next generation.
fn nothing_of_an_earlier_generation_arrives() -> Result<(), Failed> {
    let at = address();
    in_threads(0..2, |rank| {
        let mut job = job_of(rank, 2, &at);
        let first = job.next_generation().unwrap();
        if rank == 1 {
            first.send(b"old", 0, 7).unwrap();
        }
        first.barrier().unwrap();
        // The first generation's bootstrap still exists, but its calls fail.
        let second = job.next_generation().unwrap();
        assert_eq!((first.generation(), second.generation(), job.generation()), (1, 2, 2));
        let error = first.barrier().unwrap_err().to_string();
        assert!(error.contains("the next generation of the job"), "{error}");
        if rank == 1 {
            second.send(b"new", 0, 7).unwrap();
        } else {
            assert_eq!(second.recv(1, 7).unwrap(), b"new");
        }
        second.barrier().unwrap();
    });
    Ok(())
}

fn sixty_four_ranks_form_again() -> Result<(), Failed> {
    const MANY: usize = 64;
    const GONE: usize = 17;
    let at = address();
    let all_know = std::sync::Barrier::new(MANY);
    let times = in_threads(0..MANY, |rank| {
        let mut job = job_of(rank, MANY, &at);
        let first = job.next_generation().unwrap();
        first.barrier().unwrap();
        if rank == GONE {
            drop((first, job));
            job = job_of(rank, MANY, &at);
        } else {
            // A rank that needs it hears that it has left.
            let error = first.recv(GONE, 0).unwrap_err();
            assert!(matches!(error, Error::PeerClosed { rank: GONE }), "{error}");
        }
        all_know.wait();
        let begun = Instant::now();
        let second = job.next_generation().unwrap();
        assert_eq!(second.generation(), 2);
        let took = begun.elapsed();
        second.barrier().unwrap();
        took
    });
    println!("64 ranks formed again in {:.3?}", times.iter().max().unwrap());
    until("the port is free again", || std::net::TcpListener::bind(&at).is_ok());
    Ok(())
}
