//! Tests of unique ids that were made by a process in which rank 0 is not.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::ranks::{PATIENCE, connect, in_threads};
use libtest_mimic::{Failed, Trial};
use mscclpp_bootstrap::{Bootstrap, Env, Error, TcpBootstrap, UniqueId};
use mscclpp_test_support::{Child, child, in_fork};

/// The time-out of a rank that is to be told much earlier that it cannot join.
const LONG: Duration = Duration::from_secs(600);

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        Trial::test("ids_of_one_process", ids_of_one_process),
        Trial::test("many_jobs_meet_through_one_process", many_jobs_meet_through_one_process),
        Trial::test("who_comes_for_the_id_of_a_killed_process_is_told", || the_process_is_killed(false)),
        Trial::test("who_waits_for_rank_0_is_told_when_the_process_is_killed", || {
            the_process_is_killed(true)
        }),
        Trial::test("the_process_of_an_id_forks_rank_0", || {
            Child::start(&["ids", "fork"]).expect_success();
            Ok(())
        }),
        Trial::test("two_processes_that_are_rank_0_are_both_named", two_processes_are_rank_0),
    ]
}

/// Starts a process that makes ids and is no rank.
fn maker(ids: usize) -> (Child, Vec<UniqueId>) {
    let child = Child::start(&["ids", &ids.to_string()]);
    let ids = (0..ids).map(|_| child.next_line().parse().expect("an id")).collect();
    (child, ids)
}

pub(crate) fn be_rank(role: &[String]) -> ExitCode {
    if role[0] == "fork" {
        let id = TcpBootstrap::create_unique_id_in(&Env::default()).expect("an id");
        let join = |rank| connect(rank, 2, id, PATIENCE).and_then(|job| job.barrier());
        let child = || in_fork(PATIENCE, || format!("{:?}", join(0)));
        std::thread::scope(|scope| {
            let child = scope.spawn(child);
            join(1).expect("a job with the child");
            assert_eq!(child.join().expect("the child"), "Ok(())");
        });
        return ExitCode::SUCCESS;
    }
    for _ in 0..role[0].parse().expect("a number of ids") {
        child::say(&TcpBootstrap::create_unique_id_in(&Env::default()).expect("an id").to_hex());
    }
    child::await_end();
    ExitCode::SUCCESS
}

fn forms(id: UniqueId, late: usize) {
    in_threads(0..5, |rank| {
        if rank == late {
            std::thread::sleep(Duration::from_millis(300));
        }
        let job = connect(rank, 5, id, PATIENCE).unwrap();
        assert_eq!(job.all_gather(&[rank as u8]).unwrap(), [[0], [1], [2], [3], [4]]);
    });
}

/// Ranks that come before rank 0 wait for it, and those that come later find it.
fn ids_of_one_process() -> Result<(), Failed> {
    let (_child, ids) = maker(3);
    forms(ids[0], 0);
    forms(ids[1], 4);
    connect(0, 1, ids[2], PATIENCE)?.barrier()?;
    Ok(())
}

fn many_jobs_meet_through_one_process() -> Result<(), Failed> {
    let (_child, ids) = maker(1);
    in_threads(0..6, |i| {
        let (job, rank) = (i / 2, i % 2);
        let ranks = connect(rank, 2, ids[0].derive(&[job as u8]), PATIENCE).unwrap();
        assert_eq!(ranks.all_gather(&[job as u8]).unwrap(), [[job as u8], [job as u8]]);
    });
    // An id of this process, too, is good for other jobs than its own.
    let own = TcpBootstrap::create_unique_id_in(&Env::default())?;
    forms(own.derive(b"another"), 0);
    forms(own, 0);
    Ok(())
}

fn the_process_is_killed(while_ranks_wait: bool) -> Result<(), Failed> {
    let (mut child, ids) = maker(1);
    let started = Instant::now();
    let join = |rank| TcpBootstrap::builder(rank, 3).env(Env::default()).timeout(LONG).start(ids[0]);
    let waits = if while_ranks_wait { Some(join(1)?) } else { None };
    if while_ranks_wait {
        std::thread::sleep(Duration::from_millis(300));
    }
    child.kill();
    for rank in waits.into_iter().map(Ok).chain([join(0), join(2)]) {
        let error = rank?.wait().expect_err("nobody listens");
        assert!(matches!(error, Error::NobodyListens { .. }), "{error}");
        let address = ids[0].addresses()[0].to_string();
        assert!(error.to_string().contains(&address), "{error}");
    }
    assert!(started.elapsed() < LONG / 2);
    Ok(())
}

fn two_processes_are_rank_0() -> Result<(), Failed> {
    let (_child, ids) = maker(1);
    for outcome in in_threads(0..2, |_| connect(0, 2, ids[0], LONG).map(drop)) {
        let error = outcome.unwrap_err();
        assert!(matches!(error, Error::DuplicateRank { rank: 0, .. }), "{error}");
    }
    Ok(())
}
