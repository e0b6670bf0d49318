//! Jobs whose ranks are processes: this test program again.

use std::{ffi::c_int, process::Command, ptr};

use libtest_mimic::Failed;
use mscclpp_test_support::{
    Child,
    child::{self, hear, say, this_program},
    hex, reserve_port, unhex,
};

use super::nccl::{Rank, UniqueId, nccl};

/// How many ranks there are.
pub(crate) const N: usize = 2;

/// In a child: its role and its rank.
pub(crate) fn role() -> Option<(String, usize)> {
    let role = child::role()?;
    let [name, rank] = role.as_slice() else { panic!("no role: {role:?}") };
    Some((name.clone(), rank.parse().expect("a number")))
}

/// The processes of a job. Rank 0's unique id goes to the others.
pub(crate) fn start(role: &str, variables: &[(&str, &str)]) -> Vec<Child> {
    let port = reserve_port();
    let command = |rank: usize| {
        let mut command: Command = this_program();
        for (name, value) in variables {
            command.env(name, value.replace("PORT", &port.to_string()).replace("RANK", &rank.to_string()));
        }
        command
    };
    let mut children: Vec<Child> =
        (0..N).map(|rank| Child::start_by(command(rank), &[role, &rank.to_string()])).collect();
    let id = children[0].next_line();
    children[1..].iter_mut().for_each(|child| child.tell(&id));
    children
}

/// That all ranks succeed.
pub(crate) fn all_succeed(role: &str, variables: &[(&str, &str)]) -> Result<(), Failed> {
    start(role, variables).iter_mut().for_each(Child::expect_success);
    Ok(())
}

/// In a child: the job's unique id.
pub(crate) fn id(rank: usize) -> UniqueId {
    if rank == 0 {
        let id = nccl().unique_id();
        say(&hex(&id.0));
        id
    } else {
        UniqueId(unhex(&hear()).try_into().expect("128 bytes"))
    }
}

/// In a child: a communicator of all ranks.
pub(crate) fn join(rank: usize) -> Rank {
    Rank::join(rank, N, id(rank))
}

/// In a child: a communicator that cannot be made.
pub(crate) fn refused(id: UniqueId, rank: usize, code: c_int, said: &str) {
    let (nccl, mut comm) = (nccl(), ptr::without_provenance_mut(1));
    nccl.set_device(rank);
    // SAFETY: a place for a handle.
    let refused = unsafe { (nccl.ncclCommInitRank)(&raw mut comm, N as c_int, id, rank as c_int) };
    nccl.fails(refused, code, said);
    assert!(comm.is_null());
}
