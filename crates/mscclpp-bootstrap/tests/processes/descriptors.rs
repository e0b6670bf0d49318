//! Tests of a rank 0 that may open few descriptors. It is a process that runs this program again.

use std::io::Read;
use std::net::TcpStream;
use std::process::ExitCode;
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use mscclpp_bootstrap::{Bootstrap, Env, Forming, TcpBootstrap, UniqueId};
use mscclpp_test_support::{Child, child};
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::ranks::{PATIENCE, connect, in_threads};

/// The most descriptors of rank 0, which leave room for a dozen ranks.
const DESCRIPTORS: u64 = 24;
/// The time that rank 0 waits for ranks that it has no room for.
const ROOT_WAITS: Duration = Duration::from_secs(2);

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        Trial::test("all_ranks_say_that_rank_0_has_no_descriptor_left", all_say_so),
        Trial::test("a_job_forms_though_silent_strangers_take_all_descriptors", a_job_forms),
    ]
}

/// Runs rank 0, which prints its address, its log, and how it ended.
pub(crate) fn be_rank(role: &[String]) -> ExitCode {
    let [n, patience] = role else { return ExitCode::from(2) };
    let (Ok(n), Ok(patience)) = (n.parse(), patience.parse()) else { return ExitCode::from(2) };
    tracing_subscriber::fmt()
        .with_env_filter("mscclpp=warn")
        .with_writer(std::io::stdout)
        .with_ansi(false)
        .init();
    let id = TcpBootstrap::create_unique_id_in(&Env::default()).unwrap();
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(DESCRIPTORS);
    setrlimit(Resource::Nofile, limit).unwrap();
    let rank = TcpBootstrap::builder(0, n).env(Env::default()).timeout(Duration::from_secs(patience));
    let started = rank.start(id);
    // Others come when rank 0 has taken its listener over: before that, they would be the directory's.
    child::say(&id.to_hex());
    match started.and_then(Forming::wait).and_then(|job| job.barrier()) {
        Ok(()) => child::say("outcome: met"),
        Err(error) => child::say(&format!("outcome: {error}")),
    }
    ExitCode::SUCCESS
}

fn start(n: usize, patience: Duration) -> (Child, UniqueId) {
    let child = Child::start(&["descriptors", &n.to_string(), &patience.as_secs().to_string()]);
    let id = child.next_line().parse().unwrap();
    (child, id)
}

/// Reads the log of rank 0, and how it ended.
fn outcome(child: &Child) -> (Vec<String>, String) {
    let mut log = Vec::new();
    loop {
        let line = child.next_line();
        if let Some(outcome) = line.strip_prefix("outcome: ") {
            return (log, outcome.to_owned());
        }
        log.push(line);
    }
}

fn all_say_so() -> Result<(), Failed> {
    const RANKS: usize = 40;
    let why =
        &format!("rank 0 accepts no more connections: {DESCRIPTORS} descriptors are open, see ulimit -n");
    let (child, id) = start(RANKS, ROOT_WAITS);
    // The ranks that rank 0 turns away run out of time after it has ended, when nobody listens any more.
    let errors = in_threads(0..RANKS - 1, |i| {
        let error = connect(i + 1, RANKS, id, 2 * ROOT_WAITS).map(drop).unwrap_err();
        error.to_string()
    });
    let (log, root) = outcome(&child);
    assert!(root.contains(why) && root.contains("timed out") && root.contains("missing: rank"), "{root}");
    assert!(errors.iter().all(|error| error.contains(why)), "{errors:#?}");
    let (joined, turned_away): (Vec<_>, Vec<_>) =
        errors.iter().partition(|error| error.contains("initialising the bootstrap"));
    assert!(joined.len() > 8 && turned_away.len() > RANKS / 2, "{errors:#?}");
    let lines: Vec<_> = log.iter().filter(|line| line.contains("connection")).collect();
    assert!((2..6).contains(&lines.len()), "lines are counted and not repeated: {log:#?}");
    assert!(lines[0].contains(why) && lines[1].contains("(repeated "), "{log:#?}");
    Ok(())
}

fn a_job_forms() -> Result<(), Failed> {
    let (child, id) = start(2, PATIENCE);
    let port = id.addresses()[0].port();
    let strangers: Vec<_> =
        (0..DESCRIPTORS).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
    // All strangers that are accepted get a challenge.
    for mut stranger in &strangers {
        stranger.set_read_timeout(Some(PATIENCE))?;
        stranger.read_exact(&mut [0; 8])?;
    }
    connect(1, 2, id, PATIENCE)?.barrier()?;
    assert_eq!(outcome(&child).1, "met");
    Ok(())
}
