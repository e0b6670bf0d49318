//! Tests that long waits are logged with their reason, and that calls with a time-out name who is missing. Ranks are
//! threads; the first log line of a wait comes after milliseconds here.

use std::thread;
use std::time::{Duration, Instant};

use crate::ranks::{PATIENCE, both_kinds, builder, connect, free_port, in_threads};
use mscclpp_bootstrap::{Bootstrap, Env, Error, LocalBootstrap, TcpBootstrap};
use mscclpp_test_support::{
    Lines,
    child::{output_within, this_program},
    start_waiting, until,
};

/// The variable that is set for the child process which runs `as_a_child`.
const CHILD: &str = "WAITS_AS_A_CHILD";
const SOON: Duration = Duration::from_millis(5);

/// Makes two ranks that log early, of each kind of job.
fn pairs() -> [[Box<dyn Bootstrap>; 2]; 2] {
    let id = TcpBootstrap::create_unique_id_in(&Env::default()).unwrap();
    let tcp = in_threads(0..2, |rank| {
        Box::new(builder(rank, 2).log_waits_after(SOON).connect(id).unwrap()) as Box<dyn Bootstrap>
    });
    let local = LocalBootstrap::group(2).into_iter().map(|rank| Box::new(rank.log_waits_after(SOON)) as _);
    [tcp, local.collect()].map(|ranks| ranks.try_into().unwrap_or_else(|_| panic!("two ranks")))
}

/// Runs `wait` on rank 0, and `end`, which ends it, on rank 1 once rank 0 has logged. Returns what rank 0 logged.
fn logged(
    [waiting, other]: &[Box<dyn Bootstrap>; 2],
    wait: impl FnOnce(&dyn Bootstrap) + Send,
    end: impl FnOnce(&dyn Bootstrap),
) -> String {
    let lines = Lines::default();
    thread::scope(|scope| {
        scope.spawn(|| {
            let writer = lines.clone();
            let subscriber =
                tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).finish();
            tracing::subscriber::with_default(subscriber, || wait(&**waiting));
        });
        until("a line about the wait", || lines.text().contains("waiting for"));
        end(&**other);
    });
    lines.text()
}

#[test]
fn every_call_that_waits_long_says_for_whom_and_what() {
    for pair in pairs() {
        let text =
            logged(&pair, |b| assert_eq!(b.recv(1, 7).unwrap(), b"here"), |b| b.send(b"here", 0, 7).unwrap());
        assert!(text.contains("WARN mscclpp::wait: rank 0: waiting for rank 1: recv, tag 7 (for"), "{text}");

        let limited = |b: &dyn Bootstrap| drop(b.recv_timeout(1, 8, PATIENCE).unwrap());
        let text = logged(&pair, limited, |b| b.send(b"", 0, 8).unwrap());
        assert!(text.contains("rank 0: waiting for rank 1: recv, tag 8"), "{text}");

        let text = logged(&pair, |b| b.barrier().unwrap(), |b| b.barrier().unwrap());
        assert!(text.contains("rank 0: waiting for rank 1: barrier (for"), "{text}");

        let gather = |b: &dyn Bootstrap| drop(b.all_gather(&[1]).unwrap());
        let text = logged(&pair, gather, gather);
        assert!(text.contains("rank 0: waiting for rank 1: all_gather (for"), "{text}");

        let broadcast = |b: &dyn Bootstrap| b.broadcast(&mut vec![1], 1).unwrap();
        let text = logged(&pair, broadcast, broadcast);
        assert!(text.contains("rank 0: waiting for rank 1: broadcast from rank 1"), "{text}");

        let meet = |b: &dyn Bootstrap| b.group_barrier(&[0, 1]).unwrap();
        let text = logged(&pair, meet, meet);
        assert!(text.contains("rank 0: waiting for rank 1: group_barrier of the ranks [0, 1]"), "{text}");
    }
}

#[test]
fn a_wait_is_said_again_ever_later() {
    let [pair, _] = pairs();
    let started = Instant::now();
    // The lines come after 5 milliseconds, then after 15, 45 and 135 more. A line at every check would fill the log.
    let text = logged(&pair, |b| drop(b.recv_timeout(1, 0, Duration::from_secs(2)).unwrap_err()), |_| ());
    let waited = started.elapsed();
    let most = 1 + (waited.as_millis() as f64 / 5.0).log(3.0).ceil() as usize;
    assert!((2..=most).contains(&text.lines().count()), "{waited:?}: {text}");
}

#[test]
fn a_thread_says_that_another_one_of_its_rank_is_in_a_collective_call() {
    let [_, pair] = pairs();
    let text = thread::scope(|scope| {
        start_waiting(scope, || pair[0].barrier().unwrap());
        let text = logged(
            &pair,
            |b| {
                let error = b.all_gather_timeout(&[], Duration::from_millis(50)).unwrap_err();
                assert!(error.to_string().contains("while another thread of this rank"), "{error}");
            },
            |_| (),
        );
        pair[1].barrier().unwrap();
        text
    });
    assert!(text.contains("all_gather: another thread of this rank is in a collective call"), "{text}");
}

#[test]
fn rank_0_says_who_has_not_joined_and_the_others_what_they_tried() {
    // A rank logs its formation on its own thread, where a test has no subscriber. So the child process has one for
    // all threads.
    let mut child = this_program();
    let output =
        output_within(PATIENCE, child.env(CHILD, "1").args(["waits::as_a_child", "--exact", "--nocapture"]));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    let line = "rank 0: waiting for rank 2: initialising the bootstrap, which gives up in";
    assert!(text.contains(line), "{text}");
    let line = "rank 1: waiting for rank 2: initialising the bootstrap, which gives up in";
    assert!(text.contains(line), "{text}");
    assert!(
        text.contains("rank 3: waiting for rank 0: initialising the bootstrap, which gives up in"),
        "{text}"
    );
    let line =
        |line: &&str| line.contains("rank 3: waiting") && line.contains("; nobody listens at 127.0.0.1:");
    let line = text.lines().find(line).expect(&text);
    assert!(line.contains(" yet: rank 0 has not started, or was given another address"), "{line}");
}

/// Begins jobs that cannot form, in a process without a log subscriber, so that its lines go to standard error.
#[test]
fn as_a_child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let (at, nobody) = (format!("127.0.0.1:{}", free_port()), format!("127.0.0.1:{}", free_port()));
    in_threads(0..3, |thread| {
        let (rank, at) = [(0, &at), (1, &at), (3, &nobody)][thread];
        let builder = builder(rank, 3 + rank / 3).log_waits_after(SOON * 30);
        builder.timeout(Duration::from_secs(4)).connect(at).unwrap_err();
    });
}

#[test]
fn a_collective_call_that_timed_out_names_who_is_missing_and_goes_on() {
    for ranks in both_kinds(4) {
        // Rank 3 is late; it is below rank 1, which is below rank 0.
        let limit = Duration::from_secs(1);
        let errors = thread::scope(|scope| {
            let early: Vec<_> = (0..3)
                .map(|r| {
                    scope.spawn({
                        let rank = &ranks[r];
                        move || rank.barrier_timeout(limit).unwrap_err()
                    })
                })
                .collect();
            early.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        let missing = |rank: usize| match &errors[rank] {
            Error::Timeout { missing, after, .. } => (missing.clone(), *after),
            other => panic!("{other}"),
        };
        assert_eq!(missing(1), (vec![3], limit), "a rank below it that has none below itself");
        assert_eq!(missing(0), (vec![], limit), "rank 1 may have come and wait itself");
        assert_eq!(missing(2), (vec![], limit), "it waits for rank 0 alone");
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert!(
            texts[0].contains("barrier, waiting for rank 1, or one behind it (3), timed out after 1"),
            "{texts:?}"
        );
        assert!(
            texts[1].contains("waiting for rank 3, timed out") && texts[1].ends_with("; missing: rank 3"),
            "{texts:?}"
        );
        assert!(texts[2].contains("waiting for rank 0, which waits for others, timed out"), "{texts:?}");

        // Another call now would be out of step with the other ranks.
        let wrong = ranks[0].all_gather(&[]).unwrap_err();
        assert!(wrong.to_string().contains("barrier of this rank timed out"), "{wrong}");
        let wrong = ranks[0].broadcast(&mut Vec::new(), 0).unwrap_err();
        assert!(matches!(wrong, Error::InvalidArgument(_)), "{wrong}");

        // The barrier continues, with a limit or without, and later calls are in step.
        thread::scope(|scope| {
            for (r, rank) in ranks.iter().enumerate() {
                scope.spawn(move || {
                    if r == 1 {
                        rank.barrier_timeout(PATIENCE).unwrap();
                    } else {
                        rank.barrier().unwrap();
                    }
                    let all = rank.all_gather_timeout(&[r as u8], PATIENCE).unwrap();
                    assert_eq!(all, [[0], [1], [2], [3]]);
                });
            }
        });
    }
}

#[test]
fn an_all_gather_goes_on_with_the_bytes_it_was_given_first() {
    for ranks in both_kinds(3) {
        let error = ranks[0].all_gather_timeout(b"first", Duration::from_millis(20)).unwrap_err();
        assert!(matches!(&error, Error::Timeout { missing, .. } if *missing == [1, 2]), "{error}");
        thread::scope(|scope| {
            for (r, rank) in ranks.iter().enumerate() {
                scope.spawn(move || {
                    let bytes: &[u8] = if r == 0 { b"again" } else { b"other" };
                    assert_eq!(rank.all_gather(bytes).unwrap(), [b"first", b"other", b"other"]);
                });
            }
        });
    }
}

#[test]
fn an_unfinished_call_ends_when_a_rank_leaves() {
    for ranks in both_kinds(3) {
        let [first, second, third]: [_; 3] = ranks.try_into().unwrap_or_else(|_| panic!("three ranks"));
        drop(first.barrier_timeout(Duration::from_millis(20)).unwrap_err());
        drop(third);
        thread::scope(|scope| {
            let second = scope.spawn(|| second.barrier().unwrap_err());
            let error = first.barrier().unwrap_err();
            assert!(matches!(error, Error::PeerClosed { rank: 2 }), "{error}");
            assert!(matches!(second.join().unwrap(), Error::PeerClosed { rank: 2 }));
        });
        // That call is over for both ranks.
        drop(first.barrier_timeout(Duration::from_millis(20)).unwrap_err());
    }
}

#[test]
fn a_bootstrap_of_others_need_not_have_time_outs() {
    struct Theirs(LocalBootstrap);
    impl Bootstrap for Theirs {
        fn rank(&self) -> usize {
            self.0.rank()
        }
        fn n_ranks(&self) -> usize {
            self.0.n_ranks()
        }
        fn n_ranks_per_node(&self) -> usize {
            self.0.n_ranks_per_node()
        }
        fn n_ranks_per_ipc_domain(&self) -> usize {
            self.0.n_ranks_per_ipc_domain()
        }
        fn send(&self, bytes: &[u8], peer: usize, tag: u32) -> Result<(), Error> {
            self.0.send(bytes, peer, tag)
        }
        fn recv(&self, peer: usize, tag: u32) -> Result<Vec<u8>, Error> {
            self.0.recv(peer, tag)
        }
        fn recv_timeout(&self, peer: usize, tag: u32, timeout: Duration) -> Result<Vec<u8>, Error> {
            self.0.recv_timeout(peer, tag, timeout)
        }
        fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
            self.0.all_gather(bytes)
        }
        fn barrier(&self) -> Result<(), Error> {
            self.0.barrier()
        }
        fn group_barrier(&self, ranks: &[usize]) -> Result<(), Error> {
            self.0.group_barrier(ranks)
        }
        fn broadcast(&self, bytes: &mut Vec<u8>, root: usize) -> Result<(), Error> {
            self.0.broadcast(bytes, root)
        }
        fn failure(&self) -> Option<Error> {
            self.0.failure()
        }
        fn on_failure(&self, hook: mscclpp_bootstrap::FailureHook) {
            self.0.on_failure(hook);
        }
        fn abort(&self, reason: &str) {
            self.0.abort(reason);
        }
    }
    let theirs = Theirs(LocalBootstrap::group(1).remove(0));
    let limit = Duration::from_secs(1);
    for error in
        [theirs.barrier_timeout(limit).unwrap_err(), theirs.all_gather_timeout(&[], limit).unwrap_err()]
    {
        assert!(error.to_string().contains("no time-out for collective calls"), "{error}");
    }
}

/// A job of one rank over TCP has no network to wait for.
#[test]
fn a_rank_alone_keeps_its_limits() {
    let alone = connect(0, 1, "127.0.0.1:9", PATIENCE).unwrap();
    assert!(alone.recv_timeout(0, 0, Duration::ZERO).is_err());
    alone.barrier_timeout(Duration::ZERO).unwrap();
}
