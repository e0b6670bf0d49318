//! The collectives: C arguments become requests, and requests are put into streams.

use std::{
    ffi::{c_int, c_void},
    slice,
    sync::Arc,
};

use mscclpp::{DevicePtr, Stream};
use mscclpp_collectives::{DataType, Kind, ReduceOp, Request};

use crate::{
    abi::{Code, Handle},
    comm::{self, Backend, Comm, Ours},
    failure::Failure,
    fallback, group, streams,
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
}

/// Makes a call of one of NCCL's functions: checks it, and puts it into its stream at once or at the end of the thread's group.
///
/// # Safety
/// NCCL's own conditions hold: the addresses are memory that the communicator's device reaches, of the size that follows from the
/// call. The memory lives until the call is complete, or as long as a graph that captured it. The stream is one of that device.
pub(crate) unsafe fn make(what: What, arguments: Arguments) -> Result<Code, Failure> {
    group::call(group::noted(checked(what, arguments))?)
}

fn checked(what: What, arguments: Arguments) -> Result<Call, Failure> {
    let comm = comm::of(arguments.comm)?;
    let request = match comm.backend()? {
        Backend::Handed(_) => None,
        Backend::Ours(_) => Some(request(&comm, what, &arguments)?),
    };
    Ok(Call { comm, what, arguments, request })
}

fn request(comm: &Comm, what: What, arguments: &Arguments) -> Result<Request<'static>, Failure> {
    let data_type = data_type(arguments.data_type)?;
    let (_, ranks) = comm.position()?;
    let op = |op| comm.operators.of(op, data_type);
    let rank = |name: &str, rank: c_int| match usize::try_from(rank) {
        Ok(rank) if rank < ranks => Ok(rank),
        _ => Err(Failure::argument(format!("`{name}` is {rank} in a communicator of {ranks} ranks"))),
    };
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

/// The type that a number of `ncclDataType_t` stands for.
pub(crate) fn data_type(number: c_int) -> Result<DataType, Failure> {
    /// `ncclNumTypes`. The collectives have two more types, which NCCL does not have.
    const TYPES: usize = 12;
    let known = usize::try_from(number).ok().filter(|number| *number < TYPES);
    known
        .map(|number| DataType::ALL[number])
        .ok_or_else(|| Failure::argument(format!("`datatype` is {number}, which is no ncclDataType_t")))
}

/// The built-in operation that a number of `ncclRedOp_t` stands for, if it is one.
pub(crate) fn operation(number: c_int) -> Option<ReduceOp> {
    let operations = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min, ReduceOp::Avg];
    usize::try_from(number).ok().and_then(|number| operations.get(number).copied())
}

/// Puts calls into their streams: the calls of each communicator together, communicators in the order of their first calls, and
/// last those that go to NCCL. Waits for no other rank.
pub(crate) fn submit(calls: Vec<Call>) -> Result<(), Failure> {
    let (handed, mut calls): (Vec<Call>, _) = calls.into_iter().partition(|call| call.request.is_none());
    let mut answer = Ok(());
    while let Some(first) = calls.first() {
        let comm = Arc::clone(&first.comm);
        let (own, others) = calls.into_iter().partition(|call| Arc::ptr_eq(&call.comm, &comm));
        calls = others;
        // The other communicators' calls are made even if these fail: other ranks may wait for them.
        answer = answer.and(submit_of(&own));
    }
    answer.and(submit_of(&handed))
}

/// Puts a call into its stream.
pub(crate) fn submit_one(call: &Call) -> Result<(), Failure> {
    submit_of(slice::from_ref(call))
}

/// Puts calls into their streams that are all of one communicator, or all go to NCCL.
fn submit_of(calls: &[Call]) -> Result<(), Failure> {
    let [Call { comm, .. }, ..] = calls else { return Ok(()) };
    let submitted = match comm.backend()? {
        Backend::Handed(_) => fallback::submit(calls),
        Backend::Ours(ours) => submit_ours(comm, ours, calls),
    };
    if let Err(failure) = &submitted
        && failure.code == Code::REMOTE_ERROR
    {
        calls.iter().for_each(|call| call.comm.fail(failure));
    }
    submitted
}

fn submit_ours(comm: &Comm, ours: &Ours, calls: &[Call]) -> Result<(), Failure> {
    // SAFETY: the caller of `make` promised streams of the communicator's device.
    let open = |handle: Handle| unsafe { streams::of(&comm.gpu, handle) };
    if let [Call { request: Some(request), arguments, .. }] = calls {
        return enqueue(comm, ours, slice::from_ref(request), &open(arguments.stream)?);
    }
    let mut handles: Vec<Handle> = Vec::new();
    for call in calls {
        if !handles.contains(&call.arguments.stream) {
            handles.push(call.arguments.stream);
        }
    }
    let streams = handles.into_iter().map(open).collect::<Result<Vec<Stream>, Failure>>()?;
    let requests: Vec<Request<'_>> = calls.iter().filter_map(|call| call.request).collect();
    // If there are several streams, all calls go into the first: it waits for the others before the calls, and the others wait
    // for it after them.
    let Some((stream, others)) = streams.split_first() else { return Ok(()) };
    stream.join(&others.iter().collect::<Vec<_>>(), || enqueue(comm, ours, &requests, stream))
}

fn enqueue(comm: &Comm, ours: &Ours, requests: &[Request<'_>], stream: &Stream) -> Result<(), Failure> {
    let timed = ours.statistics.begin(&comm.gpu, stream, requests);
    // SAFETY: the caller of `make` promised for each call what `enqueue` asks for.
    unsafe { ours.collectives.enqueue(requests, stream)? };
    ours.statistics.end(stream, timed);
    Ok(())
}
