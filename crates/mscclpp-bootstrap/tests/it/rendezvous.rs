//! Tests of how ranks find each other, and of the errors if they do not.

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use crate::ranks::{
    PATIENCE, brief, builder, challenged, connect, free_port, in_threads, prove, with_enough_time,
};
use mscclpp_bootstrap::fuzzing::RawRank;
use mscclpp_bootstrap::job::Limits;
use mscclpp_bootstrap::protocol::hello::PROTOCOL_VERSION;
use mscclpp_bootstrap::{Bootstrap, Env, Error, TcpBootstrap, TcpBootstrapBuilder, UniqueId};
use mscclpp_test_support::Random;

/// Joins as all ranks at one address, each with settings of its own. Returns every outcome.
fn join_all(
    n: usize,
    at: &str,
    settings: impl Fn(usize, TcpBootstrapBuilder) -> TcpBootstrapBuilder + Sync,
) -> Vec<Result<TcpBootstrap, Error>> {
    in_threads(0..n, |rank| settings(rank, builder(rank, n)).connect(at))
}

fn forms(n: usize, at: &str) {
    in_threads(0..n, |rank| connect(rank, n, at, PATIENCE).unwrap().barrier().unwrap());
}

#[test]
fn addresses_in_all_forms() {
    for at in ["127.0.0.1:", "lo:127.0.0.1:", "localhost:", "lo:localhost:", "0.0.0.0:"] {
        forms(3, &format!("{at}{}", free_port()));
    }
}

#[test]
fn a_port_can_be_used_again_at_once() {
    let at = format!("127.0.0.1:{}", free_port());
    for _ in 0..5 {
        forms(3, &at);
    }
}

#[test]
fn many_ids_in_one_process() {
    let ids: Vec<UniqueId> =
        (0..4).map(|_| TcpBootstrap::create_unique_id_in(&Env::default()).unwrap()).collect();
    in_threads(0..8, |i| {
        let (job, rank) = (i / 2, i % 2);
        let bootstrap = connect(rank, 2, ids[job], PATIENCE).unwrap();
        assert_eq!(bootstrap.all_gather(&[job as u8]).unwrap(), [[job as u8], [job as u8]]);
    });
}

#[test]
fn an_id_survives_the_environment_and_serves_once() {
    let id = TcpBootstrap::create_unique_id_in(&Env::default()).unwrap();
    let id: UniqueId = id.to_hex().parse().unwrap();
    let id = UniqueId::from_bytes(&id.to_bytes()).unwrap();
    in_threads(0..2, |rank| connect(rank, 2, id, PATIENCE).unwrap().barrier().unwrap());
    for rank in 0..2 {
        assert!(matches!(connect(rank, 2, id, PATIENCE), Err(Error::NobodyListens { .. })));
    }
    assert!(!format!("{id:?} {id}").contains(&id.to_hex()[48..80]), "the key is hidden");
}

#[test]
fn an_unused_id_is_listened_for_until_its_time_is_up() {
    // The time of the id begins after this.
    let started = Instant::now();
    let id = TcpBootstrap::create_unique_id_for(&Env::default(), Duration::from_millis(200)).unwrap();
    assert!(matches!(connect(1, 2, id, PATIENCE), Err(Error::NobodyListens { .. })));
    let after = started.elapsed();
    assert!(after > Duration::from_millis(150) && after < PATIENCE, "{after:?}");
    assert!(!TcpBootstrap::forget_unique_id(&id));
}

#[test]
fn one_rank_needs_no_network() {
    // Another process has the port, which does not matter.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let job = connect(0, 1, taken.local_addr().unwrap().to_string(), PATIENCE).unwrap();
    job.barrier().unwrap();
    assert_eq!(job.all_gather(b"x").unwrap(), [b"x"]);
    job.send(b"y", 0, 1).unwrap();
    assert_eq!(job.recv(0, 1).unwrap(), b"y");
    job.group_barrier(&[0]).unwrap();
    job.abort("over");
    assert!(matches!(job.recv(0, 1), Err(Error::Aborted { rank: 0, .. })));
}

#[test]
fn hosts_and_domains_are_counted() {
    let at = format!("127.0.0.1:{}", free_port());
    let job = join_all(5, &at, |rank, builder| {
        let builder = builder.host_id(if rank < 3 { "a" } else { "b" });
        if rank == 4 { builder } else { builder.ipc_domain("rack") }
    });
    let counts: Vec<_> = job
        .iter()
        .map(|rank| rank.as_ref().unwrap())
        .map(|rank| (rank.n_ranks_per_node(), rank.n_ranks_per_ipc_domain()))
        .collect();
    assert_eq!(counts, [(3, 4), (3, 4), (3, 4), (2, 4), (2, 1)]);
}

#[test]
fn numbers_that_make_no_sense() {
    for (rank, n) in [(0, 0), (2, 2), (usize::MAX, 3)] {
        assert!(matches!(connect(rank, n, "127.0.0.1:1", PATIENCE), Err(Error::InvalidArgument(_))));
    }
    assert!(matches!(connect(0, 2, "127.0.0.1", PATIENCE), Err(Error::BadAddress { .. })));
    assert!(matches!(connect(0, 2, "192.0.2.77:50505", PATIENCE), Err(Error::BadAddress { .. })));
}

#[test]
fn a_port_in_use_is_named_at_once() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let started = Instant::now();
    // The process that has the port never answers.
    let limits = Limits { second_root: Duration::from_millis(200), ..Limits::default() };
    match builder(0, 2).limits(limits).connect(address.to_string()) {
        Err(Error::AddressInUse { address: named }) => assert_eq!(named, address),
        other => panic!("{other:?}"),
    }
    assert!(started.elapsed() < PATIENCE / 2);
}

#[test]
fn an_unknown_interface_lists_the_known() {
    for (rank, env) in [(0, Env::default()), (1, Env { interface: Some("eth99".into()), ..Env::default() })] {
        let at = if env.interface.is_some() { "127.0.0.1:1" } else { "eth99:127.0.0.1:1" };
        match TcpBootstrap::builder(rank, 2).env(env).connect(at) {
            Err(Error::NoSuchInterface { name, variable, available }) => {
                assert_eq!(name, "eth99");
                assert_eq!(variable, (rank == 1).then_some("MSCCLPP_SOCKET_IFNAME"));
                assert!(available.iter().any(|name| name == "lo"), "{available:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    let env = Env { interface: Some("eth99".into()), ..Env::default() };
    assert!(matches!(TcpBootstrap::create_unique_id_in(&env), Err(Error::NoSuchInterface { .. })));
}

#[test]
fn a_time_out_lists_who_is_missing() {
    with_enough_time(|timeout| {
        let at = format!("127.0.0.1:{}", free_port());
        let outcomes = in_threads(0..3, |i| {
            // Ranks 2 and 4 never come. The time of the others runs out first, after all that came have been told who is
            // missing.
            let (rank, times) = [(0, 3), (1, 2), (3, 2)][i];
            connect(rank, 5, at.as_str(), timeout * times).map(drop)
        });
        for outcome in outcomes {
            match outcome {
                Err(Error::Timeout { missing, .. }) => assert_eq!(missing, [2, 4]),
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn a_time_out_says_which_address_failed_how() {
    let at: SocketAddr = format!("127.0.0.1:{}", free_port()).parse().unwrap();
    with_enough_time(|timeout| match connect(1, 2, at.to_string(), timeout) {
        Err(Error::Timeout { missing, attempts, .. }) => {
            assert_eq!(missing, [0], "it is rank 0 that it did not reach");
            assert_eq!(attempts.len(), 1);
            assert_eq!(attempts[0].address, at);
            assert!(attempts[0].outcome.contains("nobody listens"), "{attempts:?}");
        }
        other => panic!("{other:?}"),
    });
}

#[test]
fn rank_0_may_come_last() {
    let at = format!("127.0.0.1:{}", free_port());
    let nobody = TcpListener::bind(&at).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| connect(1, 2, at.as_str(), PATIENCE).unwrap().barrier().unwrap());
        // Rank 1 looks for rank 0 and does not find it.
        drop(nobody.accept().unwrap());
        // A child that another test starts may have a copy for a moment.
        rustix::net::shutdown(&nobody, rustix::net::Shutdown::Both).unwrap();
        drop(nobody);
        connect(0, 2, at.as_str(), PATIENCE).unwrap().barrier().unwrap();
    });
}

#[test]
fn a_shared_secret_lets_in() {
    let at = format!("127.0.0.1:{}", free_port());
    let job = join_all(3, &at, |_, builder| builder.secret("swordfish"));
    assert!(job.iter().all(Result::is_ok), "{job:?}");
}

#[test]
fn a_wrong_secret_is_told_and_does_not_disturb() {
    for wrong in [Some("octopus"), None] {
        let at = &format!("127.0.0.1:{}", free_port());
        let (job, outcome) = std::thread::scope(|scope| {
            let join = |rank| scope.spawn(move || builder(rank, 3).secret("swordfish").connect(at));
            let zero = join(0);
            // The stranger comes, and gives up, while the job forms.
            let started = Instant::now();
            let stranger = match wrong {
                // A rank without a key fails at once, because the answer to it need not be proved.
                None => builder(1, 3),
                // A rank with a wrong key cannot know who refuses it, and asks until its time is up.
                Some(wrong) => builder(1, 3).secret(wrong).timeout(Duration::from_secs(4)),
            };
            let outcome = stranger.connect(at);
            assert!(started.elapsed() < PATIENCE / 2, "{outcome:?}");
            let job = [zero, join(1), join(2)].map(|rank| rank.join().unwrap());
            (job, outcome)
        });
        assert!(job.iter().all(Result::is_ok), "{job:?}");
        match &outcome {
            Err(Error::Unauthenticated { address, reason }) => {
                assert_eq!(address, at);
                assert_eq!(reason.contains("stranger"), wrong.is_some(), "{reason}");
                assert!(reason.contains("the same MSCCLPP_BOOTSTRAP_SECRET"), "{reason}");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Returns whether a text names an address, and this process with its host.
fn is_this_process(named: &str) -> bool {
    let Some((address, process)) = named.split_once(" (process ") else { return false };
    let pid = process.strip_suffix(')').and_then(|process| process.split_once(" on host "));
    address.parse::<SocketAddr>().is_ok()
        && pid.is_some_and(|(pid, host)| pid == std::process::id().to_string() && !host.is_empty())
}

/// Another process would belong to another job, and both would fail; see `two_jobs`.
#[test]
fn a_process_that_comes_again_to_a_job_that_it_has_not_dropped_does_not_disturb_it() {
    let at = format!("127.0.0.1:{}", free_port());
    let job = join_all(2, &at, |_, builder| builder);
    for rank in 0..2 {
        match brief(rank, 2).connect(at.as_str()) {
            Err(error @ Error::JobComplete { .. }) => {
                assert!(error.to_string().contains("not been dropped yet"));
            }
            other => panic!("{other:?}"),
        }
    }
    in_threads(0..2, |rank| job[rank].as_ref().unwrap().barrier().unwrap());
}

#[test]
fn the_same_rank_twice_names_both() {
    let id = TcpBootstrap::create_unique_id_in(&Env::default()).unwrap();
    let outcomes = in_threads(0..3, |i| brief([0, 1, 1][i], 3).connect(id).map(drop));
    for outcome in outcomes {
        match outcome {
            Err(Error::DuplicateRank { rank: 1, first, second, .. }) => {
                assert_ne!(first, second);
                for named in [first, second] {
                    assert!(is_this_process(&named), "{named}");
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

/// The second rank 0 cannot listen where the first does, and reports to the first, which would wait for the rank that
/// it should have been.
#[test]
fn two_ranks_0_hear_of_each_other_at_once() {
    let started = Instant::now();
    let at = format!("127.0.0.1:{}", free_port());
    for outcome in in_threads(0..2, |_| brief(0, 2).connect(at.as_str()).map(drop)) {
        let error = outcome.unwrap_err();
        assert!(error.to_string().contains(&at), "{error}");
        let Error::DuplicateRank { rank: 0, first, second, .. } = error else { panic!("{error}") };
        assert!(is_this_process(&first) && is_this_process(&second), "{first}; {second}");
    }
    // This also holds under a unique id, although the second process could never be rank 0.
    let id = TcpBootstrap::create_unique_id_in(&Env::default()).unwrap();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| brief(0, 2).connect(id).map(drop));
        // The first rank 0 has taken the id's listener when it answers.
        let mut raw = RawRank::of_id(&id, 2, 1);
        let _challenged = challenged(&mut raw, &id.addresses()[0].to_string());
        let second = brief(0, 2).connect(id).map(drop).unwrap_err();
        assert!(matches!(second, Error::DuplicateRank { rank: 0, .. }), "{second}");
        let first = first.join().unwrap().unwrap_err();
        assert!(matches!(first, Error::DuplicateRank { rank: 0, .. }), "{first}");
    });
    assert!(started.elapsed() < PATIENCE);
}

#[test]
fn differing_numbers_of_ranks_name_both() {
    let id = TcpBootstrap::create_unique_id_in(&Env::default()).unwrap();
    let outcomes = in_threads(0..2, |rank| brief(rank, [3, 4][rank]).connect(id).map(drop));
    for outcome in outcomes {
        let error = outcome.unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        let message = error.to_string();
        for part in ["n_ranks", "has 3", "has 4", "rank 0", "rank 1"] {
            assert!(message.contains(part), "{message}");
        }
    }
}

#[test]
fn another_protocol_version_is_named_on_both_sides() {
    let at = format!("127.0.0.1:{}", free_port());
    let (root, answer) = std::thread::scope(|scope| {
        let root = scope.spawn(|| brief(0, 2).connect(at.as_str()).map(drop));
        let newer = RawRank::without_key(2, 1).of_version(PROTOCOL_VERSION + 1);
        let (_stream, answer) = prove(newer, &at);
        (root.join().unwrap(), answer)
    });
    assert!(answer.contains("Mismatch") && answer.contains("version"), "{answer}");
    let message = root.unwrap_err().to_string();
    let [ours, newer] = [0, 1].map(|more| format!("has {}", PROTOCOL_VERSION + more));
    for part in [ours, newer, "version".to_owned()] {
        assert!(message.contains(&part), "{message}");
    }
}

#[test]
fn the_next_job_can_have_the_address_of_the_last_one() {
    let at = format!("127.0.0.1:{}", free_port());
    std::thread::scope(|scope| {
        for rank in 0..4 {
            let at = at.as_str();
            scope.spawn(move || {
                for round in 0..3 {
                    let bootstrap = connect(rank, 4, at, PATIENCE).unwrap();
                    bootstrap.barrier().unwrap();
                    // The others come back while rank 0 still has the previous job. It has no connection to rank 3.
                    if rank == 0 {
                        std::thread::sleep(Duration::from_millis(100 * round));
                    }
                }
            });
        }
    });
}

#[test]
fn the_next_job_of_the_same_processes_may_have_fewer_ranks() {
    let at = format!("127.0.0.1:{}", free_port());
    in_threads(0..3, |rank| {
        let job = connect(rank, 3, at.as_str(), PATIENCE).unwrap();
        job.barrier().unwrap();
        // The others come back while rank 0 still has the previous job, and rank 2 is rank 1 now.
        match rank {
            0 => std::thread::sleep(Duration::from_millis(300)),
            1 => return,
            _ => {}
        }
        drop(job);
        connect(rank / 2, 2, at.as_str(), PATIENCE).unwrap().barrier().unwrap();
    });
}

#[test]
fn a_time_out_that_never_comes_is_none() {
    let at = format!("127.0.0.1:{}", free_port());
    in_threads(0..5, |rank| {
        let job = connect(rank, 5, at.as_str(), Duration::MAX).unwrap();
        // These ranks are no neighbours in the tree, so one opens a connection to the other.
        match rank {
            2 => job.send(b"far", 4, 0).unwrap(),
            4 => assert_eq!(job.recv(2, 0).unwrap(), b"far"),
            _ => {}
        }
        job.barrier().unwrap();
    });
}

#[test]
fn malformed_ids_are_errors() {
    let good = TcpBootstrap::create_unique_id_in(&Env::default()).unwrap();
    let mut random = Random::with_seed(1);
    for round in 0..10_000 {
        let mut bytes = good.to_bytes().to_vec();
        match round % 4 {
            0 => {
                let bit = random.below(8 * bytes.len());
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            1 => bytes.truncate(random.below(bytes.len())),
            2 => bytes = random.bytes(bytes.len()),
            _ => bytes.extend(std::iter::repeat_n(0, 1 + random.below(300))),
        }
        let error = UniqueId::from_bytes(&bytes).unwrap_err();
        assert!(matches!(error, Error::BadUniqueId { .. }));
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.parse::<UniqueId>().is_err());
    }
    assert!(UniqueId::from_bytes(&good.to_bytes()).is_ok());
}
