//! Tests of the messages and collectives of ranks, over TCP and in one process.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use crate::ranks::{PATIENCE, both_kinds, in_threads};
use mscclpp_bootstrap::{Bootstrap, Error};

const SIZES: [usize; 5] = [1, 2, 3, 8, 64];

/// Runs a function on all ranks of jobs of both kinds.
fn on_all(n: usize, run: impl Fn(&dyn Bootstrap) + Sync) {
    for job in both_kinds(n) {
        in_threads(0..n, |rank| run(&*job[rank]));
    }
}

#[test]
fn as_the_tutorial_has_it() {
    fn exchange(bootstrap: &dyn Bootstrap) -> Result<(), Error> {
        // ANCHOR: exchange
        let (rank, n) = (bootstrap.rank(), bootstrap.n_ranks());
        bootstrap.send(&[10 + rank as u8], (rank + 1) % n, 7)?; // to the next rank, with tag 7
        let received: Vec<u8> = bootstrap.recv((rank + n - 1) % n, 7)?; // from the one before
        let all: Vec<Vec<u8>> = bootstrap.all_gather(&received)?; // all[2] is what rank 2 gave
        // ANCHOR_END: exchange
        let expected: Vec<_> = (0..n).map(|rank| [10 + ((rank + n - 1) % n) as u8]).collect();
        assert_eq!(all, expected);
        Ok(())
    }
    on_all(3, |bootstrap| exchange(bootstrap).unwrap());
}

#[test]
fn ranks_know_who_they_are() {
    for n in SIZES {
        for job in both_kinds(n) {
            for (rank, bootstrap) in job.iter().enumerate() {
                assert_eq!((bootstrap.rank(), bootstrap.n_ranks()), (rank, n));
                assert_eq!((bootstrap.n_ranks_per_node(), bootstrap.n_ranks_per_ipc_domain()), (n, n));
                assert!(bootstrap.failure().is_none());
            }
        }
    }
}

#[test]
fn all_gather_with_differing_lengths() {
    for n in SIZES {
        on_all(n, |job| {
            for round in 0..3 {
                let mine = vec![job.rank() as u8; job.rank() * 7 * round];
                let all = job.all_gather(&mine).unwrap();
                let expected: Vec<Vec<u8>> = (0..n).map(|rank| vec![rank as u8; rank * 7 * round]).collect();
                assert_eq!(all, expected);
            }
        });
    }
}

#[test]
fn nobody_leaves_a_barrier_before_all_have_come() {
    for n in SIZES {
        let arrived = AtomicUsize::new(0);
        let kinds = 2;
        let expected = AtomicUsize::new(0);
        for job in both_kinds(n) {
            expected.fetch_add(10 * n, Ordering::Relaxed);
            let base = arrived.load(Ordering::Relaxed);
            in_threads(0..n, |rank| {
                for round in 1..=10 {
                    arrived.fetch_add(1, Ordering::SeqCst);
                    job[rank].barrier().unwrap();
                    assert!(arrived.load(Ordering::SeqCst) >= base + round * n);
                }
            });
        }
        assert_eq!(arrived.into_inner(), kinds * 10 * n);
    }
}

#[test]
fn broadcast_from_each_rank() {
    for n in [1, 2, 3, 8] {
        on_all(n, |job| {
            for root in 0..n {
                for size in [0, 1, 100_000] {
                    let mut bytes = if job.rank() == root { vec![root as u8; size] } else { vec![99; 3] };
                    job.broadcast(&mut bytes, root).unwrap();
                    assert_eq!(bytes, vec![root as u8; size]);
                }
            }
        });
    }
}

#[test]
fn groups_meet_without_the_others() {
    on_all(8, |job| {
        let rank = job.rank();
        let group: Vec<usize> = if rank % 2 == 0 { vec![6, 0, 4, 2] } else { vec![1, 3, 5, 7] };
        for _ in 0..5 {
            job.group_barrier(&group).unwrap();
        }
        if rank < 2 {
            // There are two groups that share a member, and one of a single rank.
            job.group_barrier(&[0, 1]).unwrap();
            job.group_barrier(&[rank]).unwrap();
        }
        job.barrier().unwrap();
    });
}

#[test]
fn messages_keep_their_order_and_tags_are_independent() {
    on_all(3, |job| {
        let (rank, n) = (job.rank(), 3);
        for peer in 0..n {
            for number in 0..50_u8 {
                for tag in [0, 1, u32::MAX] {
                    job.send(&[rank as u8, number, tag as u8], peer, tag).unwrap();
                }
            }
        }
        // The tag that was sent last is received first.
        for tag in [u32::MAX, 1, 0] {
            for peer in 0..n {
                for number in 0..50_u8 {
                    assert_eq!(job.recv(peer, tag).unwrap(), [peer as u8, number, tag as u8]);
                }
            }
        }
    });
}

#[test]
fn all_pairs_at_once() {
    on_all(8, |job| {
        for round in 0..5_u8 {
            for peer in 0..8 {
                job.send(&[round, job.rank() as u8], peer, 3).unwrap();
            }
            for peer in 0..8 {
                assert_eq!(job.recv(peer, 3).unwrap(), [round, peer as u8]);
            }
        }
    });
}

#[test]
fn messages_of_all_sizes() {
    on_all(2, |job| {
        let peer = 1 - job.rank();
        for size in [0, 1, 32 * 1024 - 26, 32 * 1024, 65_537, 5 << 20] {
            let bytes: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
            // Both send before they receive: a send does not wait for its receive.
            job.send(&bytes, peer, 1).unwrap();
            assert!(job.recv(peer, 1).unwrap() == bytes, "{size} bytes");
        }
        let all = job.all_gather(&vec![job.rank() as u8; 3 << 20]).unwrap();
        assert!(all.iter().enumerate().all(|(rank, bytes)| *bytes == vec![rank as u8; 3 << 20]));
    });
}

#[test]
fn several_threads_of_a_rank() {
    for job in both_kinds(2) {
        in_threads(0..16, |thread| {
            let (rank, tag) = (thread % 2, (thread / 2) as u32);
            for number in 0..20_u8 {
                job[rank].send(&[number], 1 - rank, tag).unwrap();
                assert_eq!(job[rank].recv(1 - rank, tag).unwrap(), [number]);
            }
        });
    }
}

#[test]
fn a_receive_that_times_out_takes_nothing() {
    for job in both_kinds(2) {
        for _ in 0..2 {
            let error = job[0].recv_timeout(1, 4, Duration::from_millis(150)).unwrap_err();
            let Error::Timeout { operation, missing, .. } = &error else { panic!("{error}") };
            assert!(operation.contains("rank 1") && *missing == [1], "{error}");
        }
        job[1].send(b"late", 0, 4).unwrap();
        assert_eq!(job[0].recv_timeout(1, 4, PATIENCE).unwrap(), b"late");
    }
}

#[test]
fn bad_arguments_are_errors() {
    for job in both_kinds(2) {
        let invalid = |outcome: Result<(), Error>| assert!(matches!(outcome, Err(Error::InvalidArgument(_))));
        invalid(job[0].send(&[], 2, 0));
        invalid(job[0].recv(2, 0).map(drop));
        invalid(job[0].broadcast(&mut Vec::new(), 2));
        invalid(job[0].group_barrier(&[0, 2]));
        invalid(job[0].group_barrier(&[1]));
        invalid(job[0].group_barrier(&[0, 0]));
        invalid(job[0].group_barrier(&[]));
    }
}

#[test]
fn different_collectives_name_both() {
    for job in both_kinds(3) {
        let errors = in_threads(0..3, |rank| {
            let outcome = if rank == 2 { job[rank].all_gather(&[]).map(drop) } else { job[rank].barrier() };
            outcome.unwrap_err()
        });
        for error in errors {
            assert!(matches!(&error, Error::Mismatch { .. }), "{error}");
            let message = error.to_string();
            assert!(message.contains("barrier") && message.contains("all_gather"), "{message}");
        }
    }
}

#[test]
fn who_has_left_fails_only_what_needs_it() {
    // Rank 1 is in the middle of the tree, rank 0 is its root, rank 3 is one of its leaves.
    for leaver in [0, 1, 3] {
        for mut job in both_kinds(5) {
            job[leaver].send(b"last words", (leaver + 1) % 5, 9).unwrap();
            drop(job.remove(leaver));
            let stay: Vec<usize> = (0..5).filter(|&rank| rank != leaver).collect();
            in_threads(0..4, |at| {
                let rank = stay[at];
                let me = &job[at];
                assert_eq!(me.rank(), rank);
                let closed = |outcome: Result<(), Error>| match outcome {
                    Err(Error::PeerClosed { rank }) => assert_eq!(rank, leaver),
                    other => panic!("rank {rank}: {other:?}"),
                };
                if rank == (leaver + 1) % 5 {
                    assert_eq!(me.recv(leaver, 9).unwrap(), b"last words");
                }
                closed(me.recv(leaver, 9).map(drop));
                closed(me.send(&[], leaver, 9));
                closed(me.barrier());
                closed(me.all_gather(&[1]).map(drop));
                // Only ranks below the one that left need it for this call.
                match me.broadcast(&mut vec![], stay[0]) {
                    Ok(()) => assert_ne!(leaver, 0),
                    outcome => closed(outcome),
                }
                me.group_barrier(&stay).unwrap();
                let (next, previous) = (stay[(at + 1) % 4], stay[(at + 3) % 4]);
                me.send(&[rank as u8], next, 1).unwrap();
                assert_eq!(me.recv(previous, 1).unwrap(), [previous as u8]);
                assert!(me.failure().is_none());
            });
        }
    }
}

#[test]
fn who_only_looks_now_and_then_learns_of_a_departure() {
    for mut job in both_kinds(5) {
        drop(job.remove(4));
        let deadline = std::time::Instant::now() + PATIENCE;
        // Ranks 2 and 4 are no neighbours in the tree.
        loop {
            match job[2].recv_timeout(4, 0, Duration::from_millis(1)) {
                Err(Error::Timeout { .. }) if std::time::Instant::now() < deadline => {}
                Err(Error::PeerClosed { rank: 4 }) => break,
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn abort_ends_every_call_of_every_rank() {
    for job in both_kinds(5) {
        let (told, hooks) = mpsc::channel();
        for bootstrap in &job {
            let told = told.clone();
            bootstrap.on_failure(Box::new(move |error| told.send(error.to_string()).unwrap()));
        }
        in_threads(0..5, |rank| {
            let me = &job[rank];
            let outcome = match rank {
                0 => me.recv(1, 0).map(drop),
                1 | 2 => me.barrier(),
                3 => me.group_barrier(&[3, 4]),
                _ => {
                    me.abort("enough");
                    me.barrier()
                }
            };
            for outcome in [outcome, me.barrier(), me.send(&[], 0, 0), me.recv(rank, 0).map(drop)] {
                match outcome {
                    Err(Error::Aborted { rank: 4, reason }) => assert_eq!(reason, "enough"),
                    other => panic!("rank {rank}: {other:?}"),
                }
            }
            assert!(matches!(me.failure(), Some(Error::Aborted { rank: 4, .. })));
        });
        for _ in 0..5 {
            assert!(hooks.recv_timeout(PATIENCE).unwrap().contains("enough"));
        }
        let (late, too_late) = mpsc::channel();
        job[0].on_failure(Box::new(move |_| late.send(()).unwrap()));
        too_late.recv_timeout(PATIENCE).unwrap();
        // When the jobs are dropped, nobody is left who could call a hook.
        drop((told, job));
        let more = hooks.recv_timeout(PATIENCE);
        assert_eq!(more, Err(mpsc::RecvTimeoutError::Disconnected), "each hook is called once");
    }
}

#[test]
fn a_rank_whose_thread_panics_does_not_leave_others_waiting() {
    for mut job in both_kinds(3) {
        let last = job.remove(2);
        let panicked = std::thread::spawn(move || {
            let _last = last;
            panic!("on purpose");
        });
        assert!(panicked.join().is_err());
        in_threads(0..2, |rank| {
            let error = job[rank].barrier().unwrap_err();
            assert!(matches!(error, Error::Aborted { rank: 2, .. }), "{error}");
        });
    }
}
