//! Communicators that grow, among ranks that are threads of one process.

use std::{ffi::c_int, ptr, sync::mpsc, thread};

use crate::support::nccl::{
    Config, Handle, IN_PROGRESS, INVALID_ARGUMENT, INVALID_USAGE, Rank, SUCCESS, UniqueId, nccl, ranks,
};
use mscclpp_test_support::until;

/// The code of `ncclCommGrow` to `n` ranks, and the new communicator.
fn grow(comm: Handle, n: usize, id: Option<&UniqueId>, rank: c_int, config: *mut Config) -> (c_int, Handle) {
    let mut grown = ptr::null_mut();
    let id = id.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the handle is that of a live communicator or NULL; a handle is written to a place for one.
    let code = unsafe { (nccl().ncclCommGrow)(comm, n as c_int, id, rank, &raw mut grown, config) };
    (code, grown)
}

/// The rank of a communicator that has grown.
fn of((code, comm): (c_int, Handle)) -> Rank {
    nccl().ok(code);
    Rank::of(comm)
}

fn unique_id(comm: Handle) -> UniqueId {
    let (nccl, mut id) = (nccl(), UniqueId([0; 128]));
    // SAFETY: the handle is that of a live communicator; the function writes an id to a place for one.
    nccl.ok(unsafe { (nccl.ncclCommGetUniqueId)(comm, &raw mut id) });
    id
}

#[test]
fn new_ranks_join_those_of_a_communicator() {
    let (tell, told) = mpsc::channel::<(usize, UniqueId)>();
    thread::scope(|scope| {
        scope.spawn(|| {
            for (n, id) in told {
                nccl().set_device(n - 1);
                let new = of(grow(ptr::null_mut(), n, Some(&id), n as c_int - 1, ptr::null_mut()));
                assert_eq!((new.rank, new.ranks), (n - 1, n));
                new.assert_works();
                new.destroy();
            }
        });
        // Each communicator grows twice.
        ranks(2, |rank| {
            for n in [3, 3] {
                // The second rank is the root.
                let id = (rank.rank == 1).then(|| unique_id(rank.comm));
                if let Some(id) = id {
                    tell.send((n, id)).expect("a new rank listens");
                }
                let grown = of(grow(rank.comm, n, id.as_ref(), -1, ptr::null_mut()));
                assert_eq!((grown.rank, grown.ranks), (rank.rank, n));
                grown.assert_works();
                // The parent goes on.
                rank.assert_works();
                grown.destroy();
            }
            rank.destroy();
        });
        drop(tell);
    });
}

#[test]
fn what_does_not_fit_a_growth_is_named() {
    ranks(2, |rank| {
        let (nccl, none) = (nccl(), ptr::null_mut());
        let mut id = unique_id(rank.comm);
        // SAFETY: the handle is that of a live communicator; the function writes an id to a place for one.
        let twice = unsafe { (nccl.ncclCommGetUniqueId)(rank.comm, &raw mut id) };
        nccl.fails(twice, INVALID_USAGE, "has an id that ncclCommGrow has not taken yet");
        nccl.fails(grow(rank.comm, 3, None, 0, none).0, INVALID_ARGUMENT, "`rank` is 0");
        nccl.fails(
            grow(rank.comm, 2, None, -1, none).0,
            INVALID_ARGUMENT,
            "`nRanks` is 2, and `comm` has 2 ranks",
        );
        let other = nccl.unique_id();
        nccl.fails(grow(rank.comm, 3, Some(&other), -1, none).0, INVALID_ARGUMENT, "ncclCommGetUniqueId");
        nccl.fails(
            grow(ptr::null_mut(), 3, None, 2, none).0,
            INVALID_ARGUMENT,
            "`uniqueId` is NULL on a new rank",
        );
        // Both ranks pass an id, and then none does.
        nccl.fails(grow(rank.comm, 3, Some(&id), -1, none).0, INVALID_USAGE, "ranks [0, 1] pass an id");
        nccl.fails(grow(rank.comm, 3, None, -1, none).0, INVALID_USAGE, "ranks [] pass an id");
        rank.assert_works();
        rank.destroy();
    });
}

#[test]
fn a_growth_that_does_not_block_is_polled() {
    let (nccl, id) = (nccl(), nccl().unique_id());
    let old = Rank::join(0, 1, id);
    let id = unique_id(old.comm);
    let poll = |rank: usize, comm: Handle| {
        nccl.set_device(rank);
        let id = (rank == 1 || !comm.is_null()).then_some(&id);
        let number = if comm.is_null() { rank as c_int } else { -1 };
        let (code, grown) = grow(comm, 2, id, number, &mut Config { ..Config::NOT_BLOCKING });
        assert_eq!(code, IN_PROGRESS);
        (code, grown)
    };
    let grown = [poll(0, old.comm), poll(1, ptr::null_mut())].map(|(_, comm)| comm);
    for comm in grown {
        until("the growth", || nccl.state(comm) != IN_PROGRESS);
    }
    assert_eq!(nccl.state(old.comm), SUCCESS);
    thread::scope(|scope| {
        for (device, comm) in grown.into_iter().enumerate() {
            // The handle is a number to this test.
            let comm = comm.addr();
            scope.spawn(move || {
                nccl.set_device(device);
                let rank = of((SUCCESS, ptr::without_provenance_mut(comm)));
                rank.assert_works();
                rank.destroy();
            });
        }
    });
    old.destroy();
}
