//! Tests that not every machine allows: IPv6, and nodes that vanish. The nodes are network namespaces with a link
//! between them, which is cut; their ranks run this program again. The tests are ignored, with the reason, if the
//! machine has no IPv6, or `ip` may not make namespaces.

use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use crate::lost::{LIMIT, clock};
use crate::ranks::{PATIENCE, connect, free_port, in_threads};
use libtest_mimic::{Failed, Trial};
use mscclpp_bootstrap::{Bootstrap, Env, Error, Family, TcpBootstrap};
use mscclpp_test_support::{Child, child, namespaces::Namespaces, trial_if};

pub(crate) fn trials() -> Vec<Trial> {
    let v6 = TcpListener::bind((Ipv6Addr::LOCALHOST, 0));
    let v6 = v6.map(drop).map_err(|error| format!("needs IPv6: binding ::1: {error}"));
    let namespaces = Namespaces::new().map(drop);
    let unshared = Command::new("unshare").args(["-n", "true"]).output();
    let unshared = match unshared {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("unshare -n: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("unshare: {error}")),
    };
    vec![
        trial_if("no_network", &unshared, no_network),
        trial_if("a_job_forms_at_an_ipv6_address", &v6, by_address),
        trial_if("a_job_forms_by_an_id_over_ipv6_alone", &v6, by_id),
        trial_if("a_vanished_node_is_known_to_ranks_that_wait", &namespaces, || vanishes("wait")),
        trial_if("a_vanished_node_is_known_to_ranks_that_talk", &namespaces, || vanishes("talk")),
    ]
}

fn by_address() -> Result<(), Failed> {
    for at in ["[::1]:", "lo:[::1]:"] {
        let at = format!("{at}{}", free_port());
        in_threads(0..3, |rank| connect(rank, 3, at.as_str(), PATIENCE).unwrap().barrier().unwrap());
    }
    Ok(())
}

/// In a new network namespace, all interfaces are down. A rank alone needs none.
fn no_network() -> Result<(), Failed> {
    let mut command = Command::new("unshare");
    command.arg("-n").arg(child::this_program().get_program());
    Child::start_by(command, &["network", "none"]).expect_success();
    Ok(())
}

fn needs_a_network() {
    let at = "127.0.0.1:50505";
    let id = TcpBootstrap::create_unique_id_in(&Env::default());
    for error in [id.map(drop), connect(0, 2, at, PATIENCE).map(drop), connect(1, 2, at, PATIENCE).map(drop)]
    {
        let error = error.expect_err("no network");
        assert!(matches!(error, Error::NoNetwork), "{error}");
        assert!(error.to_string().contains("ip link set lo up"), "{error}");
    }
    connect(0, 1, at, PATIENCE).expect("a rank alone").barrier().expect("a barrier");
}

fn by_id() -> Result<(), Failed> {
    let id = TcpBootstrap::create_unique_id_in(&Env { family: Some(Family::V6), ..Env::default() })?;
    assert!(id.addresses().iter().all(SocketAddr::is_ipv6));
    in_threads(0..3, |rank| connect(rank, 3, id, PATIENCE).unwrap().barrier().unwrap());
    Ok(())
}

// ---- Nodes that vanish
// ------------------------------------------------------------------------------------------------

/// The address of rank 0, on the first node.
const AT: &str = "10.77.0.1:50505";
/// The rank that is on a node of its own.
const ALONE: usize = 1;

fn start(nodes: &Namespaces, rank: usize, what: &str) -> Child {
    let command = nodes.command(usize::from(rank == ALONE), child::this_program().get_program());
    Child::start_by(command, &["network", &rank.to_string(), what])
}

fn vanishes(what: &str) -> Result<(), Failed> {
    let nodes = Namespaces::new()?;
    let job: Vec<Child> = (0..3).map(|rank| start(&nodes, rank, what)).collect();
    job.iter().for_each(|rank| rank.expect("ready"));
    nodes.ip(1, &["link", "set", "wire", "down"]);
    // The time is taken after the cut, because starting `ip` takes time on a busy machine.
    let cut_at = clock();
    for (rank, expected) in [ALONE; 3].into_iter().enumerate() {
        // For the rank that is alone, the others vanished: it is connected with rank 0.
        let expected = if rank == ALONE { 0 } else { expected };
        let line = job[rank].next_line();
        let Some((lost, at)) = line.split_once(" lost at ") else {
            return Err(format!("rank {rank}: {line}").into());
        };
        let after = Duration::from_micros(at.parse()?).saturating_sub(cut_at);
        if lost != expected.to_string() || after >= LIMIT {
            return Err(format!("rank {rank} says that {lost} is lost, after {after:?}").into());
        }
    }
    Ok(())
}

pub(crate) fn be_rank(role: &[String]) -> ExitCode {
    if role == ["none"] {
        needs_a_network();
        return ExitCode::SUCCESS;
    }
    let [rank, what] = role else { panic!("no role: {role:?}") };
    let job = connect(rank.parse().expect("a rank"), 3, AT, PATIENCE).expect("a job");
    job.barrier().expect("a barrier");
    println!("ready");
    let error = if what == "talk" { talk(&job) } else { wait(&job) };
    let at = clock();
    match error {
        Error::PeerLost { rank, .. } => println!("{rank} lost at {}", at.as_micros()),
        other => println!("{other:?}"),
    }
    ExitCode::SUCCESS
}

/// Waits for a message that nobody sends.
fn wait(job: &TcpBootstrap) -> Error {
    job.recv_timeout((job.rank() + 1) % 3, 0, PATIENCE).expect_err("nobody sends")
}

/// Sends and receives until an error comes.
fn talk(job: &TcpBootstrap) -> Error {
    let bytes = vec![7; 100_000];
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        if let Err(error) = job.all_gather(&bytes) {
            return error;
        }
    }
    Error::InvalidArgument("nobody was lost".to_owned())
}
