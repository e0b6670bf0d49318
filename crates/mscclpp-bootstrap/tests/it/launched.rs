//! Tests of jobs that a launcher has started, and of other jobs at the same address.

use std::net::TcpStream;

use crate::ranks::{PATIENCE, brief, builder, connect, free_port, in_threads, with_enough_time};
use mscclpp_bootstrap::{Bootstrap, Env, Error, Rendezvous, TcpBootstrap, TcpBootstrapBuilder};

/// Joins as both ranks of a job at one address, each with settings of its own. Returns every outcome.
fn join_both(
    at: &str,
    settings: impl Fn(usize, TcpBootstrapBuilder) -> TcpBootstrapBuilder + Sync,
) -> Vec<Result<TcpBootstrap, Error>> {
    in_threads(0..2, |rank| settings(rank, brief(rank, 2)).connect(at))
}

#[test]
fn ranks_of_another_launched_job_are_refused_and_disturb_nobody() {
    let at = format!("127.0.0.1:{}", free_port());
    let of_job = |id: &'static str| move |_, builder: TcpBootstrapBuilder| builder.job_id(id);
    let join = |rank, n, id: Option<&str>| {
        let builder = builder(rank, n);
        id.into_iter().fold(builder, TcpBootstrapBuilder::job_id).connect(&at).unwrap_err()
    };
    let others = || {
        // The other jobs also have another number of ranks, and a rank that the first job does not have.
        for (rank, n) in [(0, 2), (1, 2), (1, 3), (2, 3), (7, 8)] {
            let error = join(rank, n, Some("Slurm job 8 step 0"));
            assert!(matches!(error, Error::OtherJob { .. }), "{error}");
            let message = error.to_string();
            for part in [&at, "(Slurm job 7 step 0)", "this rank of Slurm job 8 step 0", "another port"] {
                assert!(message.contains(part), "{message}");
            }
        }
        let error = join(1, 2, None);
        let message = error.to_string();
        assert!(message.contains("this rank of a job without an id: if this is one job"), "{message}");
        assert!(message.contains("the same MSCCLPP_JOB_ID"), "{message}");
    };
    let member = |rank| builder(rank, 2).job_id("Slurm job 7 step 0").connect(&at).unwrap();
    std::thread::scope(|scope| {
        // The ranks of other jobs come while the first job forms,
        let root = scope.spawn(|| member(0));
        while TcpStream::connect(&at).is_err() {
            std::thread::yield_now();
        }
        others();
        let member = member(1);
        let root = root.join().unwrap();
        // and when it has formed.
        others();
        scope.spawn(move || member.barrier().unwrap());
        root.barrier().unwrap();
        assert!(root.failure().is_none());
    });
    let formed = join_both(&at, of_job("the same"));
    assert!(formed.iter().all(Result::is_ok), "{formed:?}");
}

/// A job with an id meets one without an id at its address. This may be a mistake, so both fail, like two jobs
/// without ids.
#[test]
fn a_launched_job_at_the_address_of_one_without_an_id_is_named_to_both() {
    let at = format!("127.0.0.1:{}", free_port());
    let outcomes = join_both(&at, |rank, builder| match rank {
        0 => builder,
        _ => builder.job_id("Slurm job 8 step 0"),
    });
    for outcome in outcomes {
        let message = outcome.unwrap_err().to_string();
        assert!(message.contains("ids of the job differ") && message.contains(&at), "{message}");
        assert!(message.contains("rank 0") && message.contains("rank 1"), "{message}");
        assert!(message.contains("the same MSCCLPP_JOB_ID"), "{message}");
    }
    for secret in [String::new(), "x".repeat(1025)] {
        let wrong = TcpBootstrap::builder(0, 1).secret(secret).connect(&at).unwrap_err();
        assert!(wrong.to_string().contains("allowed: 1 to 1024"), "{wrong}");
    }
    let too_long = TcpBootstrap::builder(0, 1).job_id("x".repeat(513)).connect(&at).unwrap_err();
    assert!(matches!(too_long, Error::InvalidArgument(_)), "{too_long}");
}

/// Rank 0 waits for a rank that came without the id of the job.
#[test]
fn a_time_out_names_the_rank_that_was_refused() {
    with_enough_time(|timeout| {
        let at = format!("127.0.0.1:{}", free_port());
        let outcomes = join_both(&at, |rank, builder| match rank {
            0 => builder.job_id("red").timeout(timeout),
            _ => builder,
        });
        let [root, other] = outcomes.try_into().unwrap();
        let (root, other) = (root.unwrap_err().to_string(), other.unwrap_err().to_string());
        assert!(root.contains("missing: rank 1"), "{root}");
        let refused =
            "was refused: it is rank 1 of a job without an id; if it is of this one, give all ranks the same";
        assert!(root.contains(refused), "{root}");
        assert!(other.contains("another job (red)"), "{other}");
    });
}

#[test]
fn a_rank_joins_as_its_launcher_says() {
    let at = format!("127.0.0.1:{}", free_port());
    let jobs = in_threads(0..2, |rank| {
        let rank = rank.to_string();
        let launched = Rendezvous::from_lookup(|name| match name {
            "PMI_RANK" => Some(rank.as_str().into()),
            "PMI_SIZE" => Some("2".into()),
            "PMI_JOBID" => Some("77".into()),
            "MSCCLPP_ADDRESS" => Some(at.as_str().into()),
            _ => None,
        });
        launched.unwrap().builder().env(Env::default()).timeout(PATIENCE).connect(&at).unwrap()
    });
    let stranger = connect(1, 2, at.as_str(), PATIENCE).unwrap_err();
    assert!(stranger.to_string().contains("another job (PMI job 77)"), "{stranger}");
    std::thread::scope(|scope| jobs.iter().for_each(|job| drop(scope.spawn(|| job.barrier().unwrap()))));
}
