//! How communicators are formed, split, shrunk and ended, among ranks that are threads of one process.

use std::{
    collections::BTreeSet,
    ffi::c_int,
    fs::File,
    os::unix::fs::FileExt,
    ptr,
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use crate::support::nccl::{
    Config, IN_PROGRESS, INVALID_ARGUMENT, INVALID_USAGE, Numbers, REMOTE_ERROR, Rank, SUCCESS, UniqueId,
    nccl, ranks,
};
use mscclpp_test_support::{LIMIT, until, within};

const F32: c_int = 7;

/// Splits a rank's communicator, and returns the new one, or `None` for a rank without a color.
fn split(rank: &Rank, color: c_int, key: c_int) -> Option<Rank> {
    let (nccl, mut comm) = (nccl(), ptr::without_provenance_mut(1));
    // SAFETY: the handle is that of a live communicator; the function writes a handle to a place for one.
    nccl.ok(unsafe { (nccl.ncclCommSplit)(rank.comm, color, key, &raw mut comm, ptr::null_mut()) });
    (!comm.is_null()).then(|| Rank::of(comm))
}

#[test]
fn splits_have_the_order_of_their_keys_and_outlive_their_parent() {
    ranks(4, |rank| {
        // The ranks split into two halves, the second in reverse order. In the next split rank 3 alone has a color.
        let half =
            split(&rank, (rank.rank / 2) as c_int, if rank.rank < 2 { 0 } else { -(rank.rank as c_int) });
        let half = half.expect("each rank has a color");
        assert_eq!((half.rank, half.ranks), ([0, 1, 1, 0][rank.rank], 2));
        let alone = split(&rank, if rank.rank == 3 { 7 } else { -1 }, 0);
        assert_eq!(alone.is_some(), rank.rank == 3);
        rank.assert_works();
        rank.destroy();
        half.assert_works();
        half.destroy();
        if let Some(alone) = alone {
            assert_eq!(alone.ranks, 1);
            alone.assert_works();
            alone.destroy();
        }
    });
}

#[test]
fn a_split_that_does_not_block_is_polled_at_its_parent() {
    ranks(2, |rank| {
        let (nccl, mut comm, mut config) = (nccl(), ptr::null_mut(), Config::NOT_BLOCKING);
        // SAFETY: the handle is that of a live communicator; the function reads a configuration, and writes a handle to a place
        // for one.
        let code = unsafe { (nccl.ncclCommSplit)(rank.comm, 0, 0, &raw mut comm, &raw mut config) };
        assert_eq!(code, IN_PROGRESS);
        until("the parent", || nccl.state(rank.comm) != IN_PROGRESS);
        assert_eq!((nccl.state(rank.comm), nccl.state(comm)), (SUCCESS, SUCCESS));
        let child = Rank::of(comm);
        child.assert_works();
        child.destroy();
        rank.destroy();
    });
}

#[test]
fn one_thread_splits_all_its_ranks_in_a_group() {
    let nccl = nccl();
    let (mut comms, mut children) = ([ptr::null_mut(); 2], [ptr::null_mut(); 2]);
    // SAFETY: the functions write handles to places that live until the group ends.
    unsafe {
        nccl.ok((nccl.ncclCommInitAll)(comms.as_mut_ptr(), 2, ptr::null()));
        nccl.ok((nccl.ncclGroupStart)());
        for (comm, child) in comms.iter().zip(&mut children) {
            nccl.ok((nccl.ncclCommSplit)(*comm, 0, 0, child, ptr::null_mut()));
        }
        nccl.ok((nccl.ncclGroupEnd)());
        for comm in comms.into_iter().chain(children) {
            nccl.ok((nccl.ncclCommDestroy)(comm));
        }
    }
}

fn shrink(rank: &Rank, excluded: &mut [c_int], flags: c_int) -> Rank {
    let (nccl, mut comm) = (nccl(), ptr::null_mut());
    let n = excluded.len() as c_int;
    // SAFETY: the handle is that of a live communicator; the function reads `n` numbers, and writes a handle to a place for one.
    nccl.ok(unsafe {
        (nccl.ncclCommShrink)(rank.comm, excluded.as_mut_ptr(), n, &raw mut comm, ptr::null_mut(), flags)
    });
    Rank::of(comm)
}

#[test]
fn a_shrunk_communicator_has_the_ranks_that_are_left() {
    ranks(3, |rank| {
        let shrunk = (rank.rank != 1).then(|| shrink(&rank, &mut [1], 0));
        if let Some(shrunk) = shrunk {
            assert_eq!((shrunk.rank, shrunk.ranks), (rank.rank / 2, 2));
            shrunk.assert_works();
            shrunk.destroy();
        }
        // The parent still works on all ranks, the excluded one too.
        rank.assert_works();
        rank.destroy();
    });
}

#[test]
fn a_communicator_is_shrunk_again_to_other_ranks() {
    for flags in [0, 1] {
        ranks(3, |rank| {
            // Rank 0 is in all three, the others are in some.
            for excluded in [2, 1, 1] {
                if rank.rank != excluded as usize {
                    let shrunk = shrink(&rank, &mut [excluded], flags);
                    assert_eq!((shrunk.rank, shrunk.ranks), (rank.rank.min(1), 2));
                    shrunk.assert_works();
                    shrunk.destroy();
                }
            }
            let nccl = nccl();
            // SAFETY: the handle is that of a live communicator.
            nccl.ok(unsafe {
                if flags == 0 { (nccl.ncclCommDestroy)(rank.comm) } else { (nccl.ncclCommAbort)(rank.comm) }
            });
        });
    }
}

#[test]
fn ranks_that_lost_one_go_on_without_it() {
    let done = Barrier::new(3);
    ranks(3, |rank| {
        let nccl = nccl();
        rank.assert_works();
        done.wait();
        if rank.rank == 0 {
            // SAFETY: the handle is that of a live communicator.
            nccl.ok(unsafe { (nccl.ncclCommAbort)(rank.comm) });
            return;
        }
        // The call waits for rank 0, which is gone.
        let numbers = Numbers::new(&[1f32; 64]);
        // SAFETY: the memory has the size that the call names, and lives until the stream is synchronised.
        unsafe { (nccl.ncclAllReduce)(numbers.ptr(), numbers.ptr(), 64, F32, 0, rank.comm, rank.stream.0) };
        until("the loss", || nccl.state(rank.comm) == REMOTE_ERROR);
        let shrunk = shrink(&rank, &mut [0], 1);
        assert_eq!((shrunk.rank, shrunk.ranks), (rank.rank - 1, 2));
        shrunk.assert_works();
        shrunk.destroy();
        // SAFETY: the handle is that of a live communicator.
        nccl.ok(unsafe { (nccl.ncclCommAbort)(rank.comm) });
    });
}

#[test]
fn an_abort_ends_the_kernels_of_the_others() {
    let waiting = Barrier::new(3);
    ranks(3, |rank| {
        let nccl = nccl();
        let numbers = Numbers::new(&[1f32; 64]);
        rank.assert_works();
        if rank.rank == 2 {
            waiting.wait();
            // SAFETY: the handle is that of a live communicator.
            nccl.ok(unsafe { (nccl.ncclCommAbort)(rank.comm) });
            return;
        }
        rank.all_reduce(&numbers);
        waiting.wait();
        let begun = Instant::now();
        // The kernels of ranks 0 and 1 wait for rank 2, which aborts; then they end, and this returns.
        // SAFETY: the handle is that of a live stream.
        let code = unsafe { (nccl.mscclppSimStreamSynchronize)(rank.stream.0) };
        assert_ne!(code, SUCCESS);
        // 5 seconds are promised; the limit is longer, as the node may be busy.
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
        until("the error", || nccl.state(rank.comm) == REMOTE_ERROR);
        assert!(
            nccl.last_error(rank.comm).contains("ncclCommAbort was called"),
            "{}",
            nccl.last_error(rank.comm)
        );
        // SAFETY: the memory has the size that the call names.
        let refused = unsafe { (nccl.ncclBcast)(numbers.ptr(), 1, F32, 0, rank.comm, rank.stream.0) };
        assert_eq!(refused, REMOTE_ERROR);
        // SAFETY: the handle is that of a live communicator.
        nccl.ok(unsafe { (nccl.ncclCommAbort)(rank.comm) });
    });
}

#[test]
fn an_abort_is_no_error_for_who_waits_for_nothing() {
    let (done, aborted, looked) = (Barrier::new(2), Barrier::new(2), Barrier::new(2));
    ranks(2, |rank| {
        let nccl = nccl();
        rank.assert_works();
        done.wait();
        if rank.rank == 0 {
            // SAFETY: the handle is that of a live communicator.
            nccl.ok(unsafe { (nccl.ncclCommAbort)(rank.comm) });
            aborted.wait();
            looked.wait();
            return;
        }
        aborted.wait();
        assert_eq!(nccl.state(rank.comm), SUCCESS);
        // The next call is an error: it is refused if the abort is known here by then, else it waits in vain.
        let numbers = Numbers::new(&[1f32; 64]);
        // SAFETY: the memory has the size that the call names, and lives until the stream is synchronised.
        unsafe { (nccl.ncclAllReduce)(numbers.ptr(), numbers.ptr(), 64, F32, 0, rank.comm, rank.stream.0) };
        until("the error", || nccl.state(rank.comm) == REMOTE_ERROR);
        // SAFETY: the handle is that of a live stream.
        unsafe { (nccl.mscclppSimStreamSynchronize)(rank.stream.0) };
        looked.wait();
        // SAFETY: the handle is that of a live communicator.
        nccl.ok(unsafe { (nccl.ncclCommAbort)(rank.comm) });
    });
}

#[test]
fn a_handle_is_given_once() {
    let (nccl, mut handles) = (nccl(), BTreeSet::new());
    for _ in 0..10 {
        let rank = Rank::join(0, 1, nccl.unique_id());
        assert!(handles.insert(rank.comm), "a call with the old handle would use the new communicator");
        rank.destroy();
        // A thread in the background frees its memory.
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_abort_ends_forming() {
    let (nccl, id) = (nccl(), nccl().unique_id());
    nccl.set_device(0);
    let (mut comm, mut config) = (ptr::null_mut(), Config::NOT_BLOCKING);
    // The other rank never comes.
    // SAFETY: the function reads a configuration, and writes a handle to a place for one.
    let code = unsafe { (nccl.ncclCommInitRankConfig)(&raw mut comm, 2, id, 0, &raw mut config) };
    assert_eq!(code, IN_PROGRESS);
    // SAFETY: the handle is that of a live communicator.
    nccl.ok(unsafe { (nccl.ncclCommAbort)(comm) });
    // SAFETY: the handle is no longer valid, which the function checks.
    nccl.fails(unsafe { (nccl.ncclCommAbort)(comm) }, INVALID_ARGUMENT, "it was destroyed");
}

#[test]
fn a_finalized_communicator_takes_no_calls() {
    ranks(2, |rank| {
        let (nccl, numbers) = (nccl(), Numbers::new(&[1f32; 64]));
        rank.all_reduce(&numbers);
        // SAFETY: the handle is that of a live communicator, and the memory has the size that the call names.
        unsafe {
            nccl.ok((nccl.ncclCommFinalize)(rank.comm));
            assert_eq!(numbers.read(), [2.0; 64], "it has waited for the call");
            assert_eq!(nccl.state(rank.comm), SUCCESS);
            let refused = (nccl.ncclBcast)(numbers.ptr(), 1, F32, 0, rank.comm, rank.stream.0);
            nccl.fails(refused, INVALID_USAGE, "finalized");
        }
        rank.destroy();
    });
}

/// Rank 1 ends, and rank 0 waits for it in a call.
#[test]
fn a_communicator_is_not_finalized_without_a_word_if_its_calls_failed() {
    let called = AtomicBool::new(false);
    ranks(2, |rank| {
        let (nccl, numbers) = (nccl(), Numbers::new(&[1f32; 64]));
        // SAFETY: the handle is that of a live communicator, and the memory has the size that the call names.
        unsafe {
            if rank.rank == 0 {
                let (comm, stream) = (rank.comm, rank.stream.0);
                nccl.ok((nccl.ncclAllReduce)(numbers.ptr(), numbers.ptr(), 64, F32, 0, comm, stream));
                called.store(true, Ordering::Release);
                let code = (nccl.ncclCommFinalize)(rank.comm);
                assert_ne!(code, SUCCESS, "the call has failed");
                assert_eq!(nccl.state(rank.comm), code);
            } else {
                until("the call of rank 0", || called.load(Ordering::Acquire));
            }
            nccl.ok((nccl.ncclCommAbort)(rank.comm));
        }
    });
}

#[test]
fn a_revoked_communicator_is_shrunk() {
    ranks(2, |rank| {
        let (nccl, numbers) = (nccl(), Numbers::new(&[1f32; 64]));
        if rank.rank == 0 {
            rank.all_reduce(&numbers);
        }
        // SAFETY: the handle is that of a live communicator, and the memory has the size that the call names.
        unsafe {
            nccl.fails((nccl.ncclCommRevoke)(rank.comm, 1), INVALID_ARGUMENT, "`revokeFlags` is 1");
            nccl.ok((nccl.ncclCommRevoke)(rank.comm, 0));
            until("its end", || nccl.state(rank.comm) == SUCCESS);
            let refused = (nccl.ncclBcast)(numbers.ptr(), 1, F32, 0, rank.comm, rank.stream.0);
            nccl.fails(refused, INVALID_USAGE, "revoked");
        }
        let again = split(&rank, 0, 0).expect("a color");
        again.assert_works();
        again.destroy();
        rank.destroy();
    });
}

#[test]
fn two_ranks_on_one_device_are_an_error_that_says_so() {
    let id = nccl().unique_id();
    std::thread::scope(|scope| {
        for rank in 0..2 {
            scope.spawn(move || {
                let (nccl, mut comm) = (nccl(), ptr::without_provenance_mut(1));
                nccl.set_device(4);
                // SAFETY: the function writes a handle to a place for one.
                let refused = unsafe { (nccl.ncclCommInitRank)(&raw mut comm, 2, id, rank) };
                nccl.fails(refused, INVALID_USAGE, "MSCCLPP_NCCL_SAME_GPU=1");
                assert!(comm.is_null());
            });
        }
    });
}

#[test]
fn wrong_ids_and_ranks_are_named() {
    let (nccl, id, mut comm) = (nccl(), nccl().unique_id(), ptr::null_mut());
    let mut config = Config { magic: 7, ..Config::INITIAL };
    // SAFETY: the functions write a handle to a place for one, and refuse the wrong arguments.
    unsafe {
        let mut init = |n, id, rank| (nccl.ncclCommInitRank)(&raw mut comm, n, id, rank);
        nccl.fails(init(2, UniqueId([0; 128]), 0), INVALID_ARGUMENT, "ncclGetUniqueId");
        nccl.fails(init(2, id, 2), INVALID_ARGUMENT, "rank 2 of 2");
        nccl.fails(init(-1, id, 0), INVALID_ARGUMENT, "rank 0 of -1");
        let null = (nccl.ncclCommInitRank)(ptr::null_mut(), 1, id, 0);
        nccl.fails(null, INVALID_ARGUMENT, "`comm`: the out argument is NULL");
        let config = (nccl.ncclCommInitRankConfig)(&raw mut comm, 1, id, 0, &raw mut config);
        nccl.fails(config, INVALID_ARGUMENT, "NCCL_CONFIG_INITIALIZER");
        let none = (nccl.ncclCommInitRankScalable)(&raw mut comm, 1, 0, 0, ptr::null_mut(), ptr::null_mut());
        nccl.fails(none, INVALID_ARGUMENT, "`nId` is 0");
    }
    // The id can still be used, as no rank has joined with it.
    let mut ids = [id, id];
    // SAFETY: the function reads two ids, and writes a handle to a place for one.
    nccl.ok(unsafe {
        (nccl.ncclCommInitRankScalable)(&raw mut comm, 1, 0, 2, ids.as_mut_ptr(), ptr::null_mut())
    });
    Rank::of(comm).destroy();
}

#[test]
fn what_is_registered_is_taken_back_once() {
    ranks(2, |rank| {
        let (nccl, numbers) = (nccl(), Numbers::new(&[1f32; 1024]));
        let (mut handle, mut window) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the memory has the size that the calls name, and handles are written to places for them.
        unsafe {
            nccl.ok((nccl.ncclCommRegister)(rank.comm, numbers.ptr(), 4096, &raw mut handle));
            nccl.ok((nccl.ncclCommWindowRegister)(rank.comm, numbers.ptr(), 4096, &raw mut window, 1));
            let flags = (nccl.ncclCommWindowRegister)(rank.comm, numbers.ptr(), 4096, &raw mut window, 6);
            nccl.fails(flags, INVALID_ARGUMENT, "`winFlags` is 0x6");
            rank.assert_works();
            nccl.ok((nccl.ncclCommDeregister)(rank.comm, handle));
            nccl.fails((nccl.ncclCommDeregister)(rank.comm, handle), INVALID_ARGUMENT, "is not registered");
            nccl.ok((nccl.ncclCommWindowDeregister)(rank.comm, window));
            nccl.fails(
                (nccl.ncclCommWindowDeregister)(rank.comm, window),
                INVALID_ARGUMENT,
                "is not registered",
            );
        }
        rank.destroy();
    });
}

/// Rank 0 registers more than it has. The other ranks have a window in which its part is missing.
#[test]
fn a_window_beyond_its_memory_is_refused() {
    ranks(2, |rank| {
        let (nccl, numbers) = (nccl(), Numbers::new(&[1f32; 1024]));
        let (mut window, bytes) = (ptr::without_provenance_mut(1), if rank.rank == 0 { 4097 } else { 4096 });
        // SAFETY: the function checks the size; a handle is written to a place for one.
        let code =
            unsafe { (nccl.ncclCommWindowRegister)(rank.comm, numbers.ptr(), bytes, &raw mut window, 0) };
        if rank.rank == 0 {
            nccl.fails(code, INVALID_ARGUMENT, "bytes 0..4097 are no part of a buffer of 4096");
            assert!(window.is_null());
        } else {
            nccl.ok(code);
        }
        rank.assert_works();
        rank.destroy();
    });
}

/// Rank 0 registers its memory for itself, deregisters it while calls that use it are under way, and frees it soon after.
#[test]
fn a_rank_registers_memory_for_itself() {
    const PART: usize = 20_000;
    ranks(2, |rank| {
        let nccl = nccl();
        for round in 0..20 {
            let number = |rank: usize| (10 * round + rank) as f32;
            let (own, all) = (Numbers::new(&[number(rank.rank); PART]), Numbers::new(&[0f32; 2 * PART]));
            let mut handle = ptr::null_mut();
            // SAFETY: the memory has the size that the calls name, and lives until the stream is synchronised.
            unsafe {
                if rank.rank == 0 {
                    nccl.ok((nccl.ncclCommRegister)(rank.comm, all.ptr(), 8 * PART, &raw mut handle));
                }
                for _ in 0..3 {
                    nccl.ok((nccl.ncclAllGather)(own.ptr(), all.ptr(), PART, F32, rank.comm, rank.stream.0));
                }
                if rank.rank == 0 {
                    nccl.ok((nccl.ncclCommDeregister)(rank.comm, handle));
                }
            }
            rank.stream.synchronize();
            let expected = [number(0), number(1)].into_iter().flat_map(|number| [number; PART]);
            assert!(all.read().into_iter().eq(expected), "round {round}");
        }
        rank.destroy();
    });
}

/// Rank 0 deregisters its window, frees the memory and destroys its communicator, while rank 1 still has all of it mapped.
#[test]
fn memory_of_a_window_stays_until_the_last_peer_has_let_go() {
    const WORD: u64 = 0x5eed_0fa1_1e55;
    let address = AtomicUsize::new(0);
    // The kernel reads the memory here: if it is not mapped any more, that fails instead of ending the process.
    let is_there = || {
        let (mut word, memory) = ([0; 8], File::open("/proc/self/mem").expect("this process's memory"));
        let read = memory.read_exact_at(&mut word, address.load(Ordering::SeqCst) as u64 + 4096);
        read.is_ok() && u64::from_le_bytes(word) == WORD
    };
    // The results are checked after both ranks have ended: a rank that panics earlier would leave the other one waiting.
    let was_there = [(); 2].map(|()| AtomicBool::new(false));
    let steps = Barrier::new(2);
    ranks(2, |rank| {
        let (nccl, numbers, mut window) = (nccl(), Numbers::new(&[WORD; 8192]), ptr::null_mut());
        // The window is the second half of the memory.
        let part = numbers.at(4096);
        // SAFETY: the memory has the size that the call names; the function writes a handle to a place for one.
        nccl.ok(unsafe { (nccl.ncclCommWindowRegister)(rank.comm, part, 32 << 10, &raw mut window, 1) });
        rank.assert_works();
        if rank.rank == 0 {
            address.store(numbers.ptr().addr(), Ordering::SeqCst);
            // SAFETY: the handle is that of this rank's window.
            nccl.ok(unsafe { (nccl.ncclCommWindowDeregister)(rank.comm, window) });
            drop(numbers);
            was_there[0].store(is_there(), Ordering::SeqCst);
            rank.destroy();
            steps.wait();
            steps.wait();
            return;
        }
        steps.wait();
        // A thread in the background is still destroying rank 0's communicator: this gives it time to free memory wrongly.
        std::thread::sleep(Duration::from_millis(100));
        was_there[1].store(is_there(), Ordering::SeqCst);
        // SAFETY: the handle is that of this rank's window.
        nccl.ok(unsafe { (nccl.ncclCommWindowDeregister)(rank.comm, window) });
        drop(numbers);
        rank.destroy();
        let is_gone = within(LIMIT, || !is_there());
        steps.wait();
        assert!(is_gone, "nobody has it any more");
    });
    let there = was_there.map(AtomicBool::into_inner);
    assert_eq!(there, [true; 2], "while rank 0 has its communicator, and while rank 1 has its window");
}

/// Programs end the NULL communicator that a split without a color gave them.
#[test]
fn to_end_no_communicator_is_no_error() {
    let (nccl, none) = (nccl(), ptr::null_mut());
    // SAFETY: the functions do nothing with NULL.
    unsafe {
        nccl.ok((nccl.ncclCommFinalize)(none));
        nccl.ok((nccl.ncclCommRevoke)(none, 0));
        nccl.ok((nccl.ncclCommAbort)(none));
        nccl.ok((nccl.ncclCommDestroy)(none));
    }
}
