//! Jobs whose ranks are processes: children that run this test program again.

use std::{ffi::c_int, process::Command, ptr};

use libtest_mimic::Failed;
use mscclpp_test_support::{
    Child,
    child::{self, hear, say, this_program},
    hex, reserve_port, unhex,
};

use crate::support::nccl::{Rank, UniqueId, nccl};

/// The number of ranks of a job.
pub(crate) const N: usize = 2;

/// The role and the rank of this process, or `None` if it is not a child.
pub(crate) fn role() -> Option<(String, usize)> {
    let role = child::role()?;
    let [name, rank] = role.as_slice() else { panic!("no role: {role:?}") };
    Some((name.clone(), rank.parse().expect("a number")))
}

/// Starts the processes of a job, and passes rank 0's unique id to the others.
pub(crate) fn start(role: &str, variables: &[(&str, &str)]) -> Vec<Child> {
    let port = reserve_port();
    start_by(N, role, |rank| {
        let mut command = this_program();
        for (name, value) in variables {
            command.env(name, value.replace("PORT", &port.to_string()).replace("RANK", &rank.to_string()));
        }
        command
    })
}

/// [`start`] with `ranks` processes, each started by a command of its own.
pub(crate) fn start_by(ranks: usize, role: &str, command: impl Fn(usize) -> Command) -> Vec<Child> {
    let mut children: Vec<Child> =
        (0..ranks).map(|rank| Child::start_by(command(rank), &[role, &rank.to_string()])).collect();
    let id = children[0].next_line();
    children[1..].iter_mut().for_each(|child| child.tell(&id));
    children
}

/// Runs a job, all ranks of which must succeed.
pub(crate) fn all_succeed(role: &str, variables: &[(&str, &str)]) -> Result<(), Failed> {
    start(role, variables).iter_mut().for_each(Child::expect_success);
    Ok(())
}

/// The job's unique id, for a child.
pub(crate) fn id(rank: usize) -> UniqueId {
    if rank == 0 {
        let id = nccl().unique_id();
        say(&hex(&id.0));
        id
    } else {
        UniqueId(unhex(&hear()).try_into().expect("128 bytes"))
    }
}

/// Makes the communicator of all ranks, in a child.
pub(crate) fn join(rank: usize) -> Rank {
    Rank::join(rank, N, id(rank))
}

/// Checks that a communicator cannot be made, in a child.
pub(crate) fn refused(id: UniqueId, rank: usize, code: c_int, said: &str) {
    let (nccl, mut comm) = (nccl(), ptr::without_provenance_mut(1));
    nccl.set_device(rank);
    // SAFETY: the function writes a handle to a place for one.
    let refused = unsafe { (nccl.ncclCommInitRank)(&raw mut comm, N as c_int, id, rank as c_int) };
    nccl.fails(refused, code, said);
    assert!(comm.is_null());
}
