//! The calls of collectives: C arguments become checked calls, with requests to the layers below.

use std::{
    ffi::{c_int, c_void},
    ptr::NonNull,
    sync::Arc,
};

use mscclpp::DevicePtr;
use mscclpp_collectives::{Kind, Request};

use crate::{
    abi::{CollConfig, Handle},
    choice::{self, Choice, Given},
    comm::{self, Backend, Comm},
    failure::Failure,
    operators::data_type,
};

/// The function that was called, with those of its arguments that not every function has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    AllReduce { op: c_int },
    Reduce { op: c_int, root: c_int },
    ReduceScatter { op: c_int },
    AllGather,
    AlltoAll,
    Broadcast { root: c_int },
    Gather { root: c_int },
    Scatter { root: c_int },
    Send { peer: c_int },
    Recv { peer: c_int },
}

/// The arguments that C code passed; those that a function does not have are null.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arguments {
    pub(crate) send: *const c_void,
    pub(crate) recv: *mut c_void,
    pub(crate) count: usize,
    pub(crate) data_type: c_int,
    pub(crate) comm: Handle,
    pub(crate) stream: Handle,
}

/// A call that has been checked.
pub(crate) struct Call {
    pub(crate) comm: Arc<Comm>,
    pub(crate) what: What,
    pub(crate) arguments: Arguments,
    /// The request to this library's collectives, or `None` if the call goes to NCCL.
    pub(crate) request: Option<Request<'static>>,
    /// How it is to be done. NCCL is not told.
    pub(crate) choice: Choice,
    /// The event that is recorded when it is launched.
    pub(crate) launch_event: Option<NonNull<c_void>>,
}

/// Checks a call of one of NCCL's functions.
///
/// # Safety
/// `config` is what [`choice::read`] asks for.
pub(crate) unsafe fn checked(
    what: What,
    arguments: Arguments,
    config: *const CollConfig,
) -> Result<Call, Failure> {
    let comm = comm::of(arguments.comm)?;
    // SAFETY: the caller's promise.
    let Given { mut choice, launch_event } = unsafe { choice::read(config, &comm.settings)? };
    let request = match comm.backend()? {
        Backend::Handed(_) => None,
        Backend::Ours(ours) => {
            if choice != Choice::default() {
                choice.least = choice.least.or(ours.least_blocks);
            }
            let request = request(&comm, what, &arguments)?;
            choice.check(&ours.collectives, &request)?;
            Some(request)
        }
    };
    Ok(Call { comm, what, arguments, request, choice, launch_event })
}

fn request(comm: &Comm, what: What, arguments: &Arguments) -> Result<Request<'static>, Failure> {
    let data_type = data_type(arguments.data_type)?;
    let (_, ranks) = comm.position()?;
    let op = |op| comm.operators.of(op, data_type);
    let rank = |name, number| rank(name, number, ranks);
    let kind = match what {
        What::AllReduce { op: number } => Kind::AllReduce(op(number)?),
        What::Reduce { op: number, root } => Kind::Reduce { root: rank("root", root)?, op: op(number)? },
        What::ReduceScatter { op: number } => Kind::ReduceScatter(op(number)?),
        What::AllGather => Kind::AllGather,
        What::AlltoAll => Kind::AllToAll,
        What::Broadcast { root } => Kind::Broadcast { root: rank("root", root)? },
        What::Gather { root } => Kind::Gather { root: rank("root", root)? },
        What::Scatter { root } => Kind::Scatter { root: rank("root", root)? },
        What::Send { peer } => Kind::Send { peer: rank("peer", peer)? },
        What::Recv { peer } => Kind::Recv { peer: rank("peer", peer)? },
    };
    let address = |pointer: *const c_void| DevicePtr(pointer.expose_provenance() as u64);
    Ok(Request {
        kind,
        send: address(arguments.send),
        recv: address(arguments.recv),
        count: arguments.count as u64,
        data_type,
    })
}

/// The rank that the argument `name` of a call names, in a communicator of `ranks` ranks.
pub(crate) fn rank(name: &str, rank: c_int, ranks: usize) -> Result<usize, Failure> {
    match usize::try_from(rank) {
        Ok(rank) if rank < ranks => Ok(rank),
        _ => Err(Failure::argument(format!("`{name}` is {rank} in a communicator of {ranks} ranks"))),
    }
}
