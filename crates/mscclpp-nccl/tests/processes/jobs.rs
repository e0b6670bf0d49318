//! Ranks that are processes: how they join, leave and die.

use std::{ffi::c_int, ptr, thread, time::Duration};

use crate::{
    job::{N, all_succeed, id, join, start},
    support::nccl::{
        Config, INVALID_USAGE, Numbers, REMOTE_ERROR, Rank, SUCCESS, Stream, UniqueId, WaitSignal, nccl,
    },
};
use libtest_mimic::{Failed, Trial};
use mscclpp_test_support::{
    Child, LIMIT, child,
    child::{hear, say},
    held, hex, in_fork, unhex, until,
};
use rustix::process::Signal;

const F32: c_int = 7;

pub(crate) fn trials() -> Vec<Trial> {
    let succeed = |name: &'static str, variables: &'static [(&'static str, &'static str)]| {
        Trial::test(name, move || all_succeed(name, variables))
    };
    vec![
        succeed("a_rank_sends_and_the_other_receives", &[]),
        succeed("a_rank_that_has_destroyed_its_communicator_may_end_at_once", &[]),
        Trial::test("a_process_that_never_destroys_ends_and_is_not_lost", || {
            let mut children = start("never_destroys", &[]);
            children[0].expect_success();
            children[1].tell("it has ended");
            children[1].expect_success();
            Ok(())
        }),
        Trial::test("an_abort_reaches_other_processes", || {
            let mut children = start("an_abort_reaches_other_processes", &[]);
            children[1].expect("waiting");
            children[0].tell("abort");
            children.iter_mut().for_each(Child::expect_success);
            Ok(())
        }),
        Trial::test("a_rank_that_is_killed_is_named", || killed("killed")),
        Trial::test("a_wait_for_a_signal_of_a_killed_rank_ends", || killed("killed_before_its_signal")),
        Trial::test("killed_with_workers", || killed("killed_with_workers")),
        succeed("calls_that_do_not_match_are_named", &[("MSCCLPP_CHECK_CALLS", "1")]),
        Trial::test("calls_that_did_not_match_are_told_by_the_destroy", || {
            let mut children = start("told_by_the_destroy", &[("MSCCLPP_CHECK_CALLS", "1")]);
            let told: Vec<String> = children.iter().map(Child::next_line).collect();
            children.iter_mut().for_each(Child::expect_success);
            // The call fails on at least one of the two ranks; which one is not defined.
            assert!(
                told.iter().any(|said| said.contains("of 32 F32") && said.contains("of 64 F32")),
                "{told:?}"
            );
            Ok(())
        }),
        succeed("ids_of_one_process", &[]),
        succeed("a_new_process_joins", &[]),
        succeed("many_communicators_leave_nothing_behind", &[]),
        succeed("a_forked_child_is_told", &[]),
        succeed("a_split_without_a_color_is_no_failure", &[]),
    ]
}

/// Plays a role of this module, and returns whether it is one.
pub(crate) fn run(role: &str, rank: usize) -> bool {
    match role {
        "a_rank_sends_and_the_other_receives" => {
            let (nccl, rank) = (nccl(), join(rank));
            let numbers = Numbers::new(&[2.0 * (1 - rank.rank) as f32; 16]);
            // SAFETY: the memory has the size that the calls name, and lives until the stream is synchronised.
            nccl.ok(unsafe {
                match rank.rank {
                    0 => (nccl.ncclSend)(numbers.ptr(), 16, F32, 1, rank.comm, rank.stream.0),
                    _ => (nccl.ncclRecv)(numbers.ptr(), 16, F32, 0, rank.comm, rank.stream.0),
                }
            });
            rank.stream.synchronize();
            assert_eq!(numbers.read(), [2.0; 16]);
            rank.destroy();
        }
        "a_rank_that_has_destroyed_its_communicator_may_end_at_once" => {
            let rank = join(rank);
            for _ in 0..20 {
                rank.assert_works();
            }
            let numbers = Numbers::new(&vec![1f32; 1 << 18]);
            rank.all_reduce(&numbers);
            if rank.rank == 0 {
                rank.stream.synchronize();
                rank.destroy();
                // The other rank's kernel may still be running.
                std::process::exit(0);
            }
            rank.stream.synchronize();
            assert!(numbers.read().iter().all(|number| *number == 2.0));
            rank.destroy();
        }
        "never_destroys" => {
            let (nccl, rank) = (nccl(), join(rank));
            rank.assert_works();
            if rank.rank == 1 {
                assert_eq!(hear(), "it has ended");
                assert_eq!(nccl.state(rank.comm), SUCCESS);
                let numbers = Numbers::new(&[1f32; 64]);
                let (p, comm, stream) = (numbers.ptr(), rank.comm, rank.stream.0);
                // SAFETY: the memory has the size that the call names, and lives until the stream is synchronised.
                unsafe {
                    // The call is refused, or waits in vain.
                    let called = (nccl.ncclAllReduce)(p, p, 64, F32, 0, comm, stream);
                    assert!(called == REMOTE_ERROR || (nccl.mscclppSimStreamSynchronize)(stream) != SUCCESS);
                }
                until("the error", || nccl.state(comm) == REMOTE_ERROR);
            }
        }
        "an_abort_reaches_other_processes" => an_abort_reaches_other_processes(rank),
        "killed" | "killed_before_its_signal" | "killed_with_workers" => is_killed(rank, role),
        "calls_that_do_not_match_are_named" => calls_that_do_not_match_are_named(rank),
        "told_by_the_destroy" => {
            let (nccl, rank) = (nccl(), join(rank));
            let numbers = Numbers::new(&[1f32; 64]);
            let count = 32 * (1 + rank.rank);
            // SAFETY: the memory has the size that the call names, and lives until the stream is synchronised; the handle is that
            // of a live communicator.
            let destroyed = unsafe {
                let p = numbers.ptr();
                // The rank that calls last may already be refused by the call.
                let _ = (nccl.ncclAllReduce)(p, p, count, F32, 0, rank.comm, rank.stream.0);
                let _ = (nccl.mscclppSimStreamSynchronize)(rank.stream.0);
                (nccl.ncclCommDestroy)(rank.comm)
            };
            say(&if destroyed == SUCCESS { "nothing".to_owned() } else { nccl.last_error(ptr::null_mut()) });
        }
        // The process that made the id is rank 1.
        "ids_of_one_process" => {
            let rank = Rank::join(1 - rank, N, id(rank));
            rank.assert_works();
            rank.destroy();
        }
        "a_new_process_joins" => a_new_process_joins(rank),
        "many_communicators_leave_nothing_behind" => many_communicators_leave_nothing_behind(rank),
        "a_forked_child_is_told" => a_forked_child_is_told(rank),
        "a_split_without_a_color_is_no_failure" => {
            let (nccl, rank, mut split) = (nccl(), join(rank), ptr::null_mut());
            // SAFETY: the handle is that of a live communicator; a handle is written to a place for one.
            nccl.ok(unsafe { (nccl.ncclCommSplit)(rank.comm, -1, 0, &raw mut split, ptr::null_mut()) });
            assert!(split.is_null());
            until("the split", || nccl.state(rank.comm) == SUCCESS);
            assert_eq!(nccl.last_error(ptr::null_mut()), "");
            rank.destroy();
        }
        _ => return false,
    }
    true
}

/// The communicator of one process grows by another process.
fn a_new_process_joins(rank: usize) {
    let (nccl, mut id, mut grown) = (nccl(), UniqueId([0; 128]), ptr::null_mut());
    let old = (rank == 0).then(|| Rank::join(0, 1, nccl.unique_id()));
    // SAFETY: the handle is that of a live communicator or NULL; an id and a handle are written to places for them.
    unsafe {
        let (comm, number) = match &old {
            Some(old) => {
                nccl.ok((nccl.ncclCommGetUniqueId)(old.comm, &raw mut id));
                say(&hex(&id.0));
                (old.comm, -1)
            }
            None => {
                id = UniqueId(unhex(&hear()).try_into().expect("128 bytes"));
                nccl.set_device(rank);
                (ptr::null_mut(), rank as c_int)
            }
        };
        let config = ptr::null_mut();
        nccl.ok((nccl.ncclCommGrow)(comm, N as c_int, &raw const id, number, &raw mut grown, config));
    }
    let all = Rank { rank, ranks: N, comm: grown, stream: Stream::new() };
    all.assert_works();
    all.destroy();
    old.into_iter().for_each(Rank::destroy);
}

fn an_abort_reaches_other_processes(rank: usize) {
    let (nccl, rank) = (nccl(), join(rank));
    rank.assert_works();
    let numbers = Numbers::new(&[1f32; 64]);
    if rank.rank == 0 {
        assert_eq!(hear(), "abort");
    } else {
        rank.all_reduce(&numbers);
        say("waiting");
        // The kernel waits for rank 0, which aborts instead of calling.
        // SAFETY: the handle is that of a live stream.
        let code = unsafe { (nccl.mscclppSimStreamSynchronize)(rank.stream.0) };
        assert_ne!(code, SUCCESS);
        until("the error", || nccl.state(rank.comm) == REMOTE_ERROR);
    }
    // SAFETY: the handle is that of a live communicator.
    nccl.ok(unsafe { (nccl.ncclCommAbort)(rank.comm) });
}

fn killed(role: &str) -> Result<(), Failed> {
    let mut children = start(role, &[]);
    children.iter().for_each(|child| child.expect("ready"));
    // Its input stays open, at whose end its forked child ends.
    children[0].signal(Signal::KILL);
    children[1].tell("killed");
    children[1].expect_success();
    Ok(())
}

/// Rank 0 is killed while rank 1 waits for it: for a signal, or in a collective. It may have a forked child, which lives until
/// the test is over.
fn is_killed(rank: usize, role: &str) {
    let (nccl, rank) = (nccl(), join(rank));
    rank.assert_works();
    let numbers = Numbers::new(&[1f32; 64]);
    if role == "killed_before_its_signal" {
        let (mut window, mut wait) = (ptr::null_mut(), WaitSignal(1, 0, 0, 0));
        // SAFETY: the memory lives until the process ends; a handle is written to a place for one, and one description is read.
        unsafe {
            nccl.ok((nccl.ncclCommWindowRegister)(rank.comm, numbers.ptr(), 256, &raw mut window, 0));
            if rank.rank == 1 {
                nccl.ok((nccl.ncclWaitSignal)(1, &raw mut wait, rank.comm, rank.stream.0));
            }
        }
    } else if rank.rank == 1 {
        rank.all_reduce(&numbers);
    }
    let ready = || {
        say("ready");
        if rank.rank == 0 {
            child::await_end();
        }
        String::new()
    };
    if rank.rank == 0 && role == "killed_with_workers" {
        in_fork(2 * LIMIT, ready);
    } else {
        ready();
    }
    if rank.rank == 0 {
        return;
    }
    assert_eq!(hear(), "killed");
    // 5 seconds are promised. Pauses are counted, since they become longer where the node is busy and the library's threads wait
    // for a processor, too.
    let told = (0..500).any(|_| {
        thread::sleep(Duration::from_millis(10));
        nccl.state(rank.comm) == REMOTE_ERROR
    });
    assert!(told, "rank 0 was not missed within 500 pauses of 10 ms");
    let said = nccl.last_error(rank.comm);
    assert!(said.contains("rank 0"), "{said}");
    // SAFETY: the handle is that of a live stream.
    let code = unsafe { (nccl.mscclppSimStreamSynchronize)(rank.stream.0) };
    assert_ne!(code, SUCCESS);
    // SAFETY: the handle is that of a live communicator.
    nccl.ok(unsafe { (nccl.ncclCommAbort)(rank.comm) });
}

fn calls_that_do_not_match_are_named(rank: usize) {
    let (nccl, rank) = (nccl(), join(rank));
    rank.assert_works();
    let numbers = Numbers::new(&[1f32; 64]);
    let count = 32 * (1 + rank.rank);
    // SAFETY: the memory has the size that the call names, and lives until the stream is synchronised.
    let call = || unsafe {
        let p = numbers.ptr();
        (nccl.ncclAllReduce)(p, p, count, F32, 0, rank.comm, rank.stream.0)
    };
    // The call fails if the other rank has made its own already, and otherwise later.
    let _ = call();
    // SAFETY: the handle is that of a live stream.
    let _ = unsafe { (nccl.mscclppSimStreamSynchronize)(rank.stream.0) };
    until("the error", || nccl.state(rank.comm) == INVALID_USAGE);
    let calls = [0, 1].map(|r| format!("all_reduce (Sum) of {} F32", 32 * (1 + r)));
    let [ours, theirs] = [&calls[rank.rank], &calls[1 - rank.rank]];
    let said = format!("rank {} called {ours}, while rank {} called {theirs}; ", rank.rank, 1 - rank.rank);
    assert!(nccl.last_error(rank.comm).contains(&said), "{}", nccl.last_error(rank.comm));
    nccl.fails(call(), INVALID_USAGE, &said);
    // SAFETY: the handle is that of a live communicator.
    nccl.ok(unsafe { (nccl.ncclCommDestroy)(rank.comm) });
}

fn many_communicators_leave_nothing_behind(rank: usize) {
    const ROUNDS: usize = 25;
    let first = id(rank);
    if rank > 0 {
        return;
    }
    let nccl = nccl();
    let round = || {
        let mut comms = [ptr::null_mut(); 3];
        // SAFETY: the functions write handles to places for them, and get handles of live communicators.
        unsafe {
            // Each round makes communicators from an id, splits them, destroys the parents before the splits, and aborts another
            // communicator while it is being formed.
            let id = nccl.unique_id();
            nccl.ok((nccl.ncclGroupStart)());
            for (r, comm) in comms[..2].iter_mut().enumerate() {
                nccl.set_device(r);
                nccl.ok((nccl.ncclCommInitRank)(comm, 2, id, r as c_int));
            }
            nccl.ok((nccl.ncclGroupEnd)());
            let mut children = [ptr::null_mut(); 2];
            nccl.ok((nccl.ncclGroupStart)());
            for (comm, child) in comms.iter().zip(&mut children) {
                nccl.ok((nccl.ncclCommSplit)(*comm, 0, 0, child, ptr::null_mut()));
            }
            nccl.ok((nccl.ncclGroupEnd)());
            let (id, mut config) = (nccl.unique_id(), Config::NOT_BLOCKING);
            (nccl.ncclCommInitRankConfig)(&raw mut comms[2], 2, id, 0, &raw mut config);
            nccl.ok((nccl.ncclCommAbort)(comms[2]));
            for comm in comms[..2].iter().chain(&children) {
                nccl.ok((nccl.ncclCommDestroy)(*comm));
            }
        }
    };
    let settled = || {
        let mut last = held();
        until("nothing to come and go", || {
            thread::sleep(Duration::from_millis(200));
            let now = held();
            let same = now == last;
            last = now;
            same
        });
        last
    };
    let _unused = first;
    round();
    let before = settled();
    (0..ROUNDS).for_each(|_| round());
    let mut after = settled();
    // Communicators end in the background, which takes longer on a busy node.
    mscclpp_test_support::within(LIMIT, || {
        after = settled();
        after.iter().zip(before).all(|(after, before)| *after < before + ROUNDS / 2)
    });
    let grown: Vec<_> =
        after.iter().zip(before).map(|(after, before)| after.saturating_sub(before)).collect();
    assert!(
        grown.iter().all(|grown| *grown < ROUNDS / 2),
        "{before:?} before, {after:?} after {ROUNDS} rounds"
    );
}

fn a_forked_child_is_told(rank: usize) {
    let (nccl, rank) = (nccl(), join(rank));
    rank.assert_works();
    let numbers = Numbers::new(&[1f32]);
    let said = in_fork(LIMIT, || {
        // SAFETY: the function refuses the call.
        let call = unsafe {
            (nccl.ncclAllReduce)(numbers.ptr(), numbers.ptr(), 1, F32, 0, rank.comm, rank.stream.0)
        };
        let last = nccl.last_error(rank.comm);
        // SAFETY: the function refuses the call.
        let destroy = unsafe { (nccl.ncclCommDestroy)(rank.comm) };
        let mut version = 0;
        // SAFETY: the function writes a number to a place for one.
        unsafe { (nccl.ncclGetVersion)(&raw mut version) };
        // SAFETY: the function takes any handle.
        let team = unsafe { (nccl.ncclTeamWorld)(rank.comm) };
        format!("{call} {destroy} {version} {} {last}", team.0)
    });
    let told = format!("{INVALID_USAGE} {INVALID_USAGE} 23203 0 ncclAllReduce: ");
    assert!(said.starts_with(&told) && said.contains("fork"), "{said}");
    rank.assert_works();
    rank.destroy();
}
