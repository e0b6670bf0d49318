//! The collectives: from C arguments to requests, and from these into streams.

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

/// What NCCL's functions do; each has the arguments that it alone has.
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

/// A call as C code makes it.
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
    /// What becomes of it; none if NCCL gets it.
    pub(crate) request: Option<Request<'static>>,
}

/// A call of one of NCCL's functions.
///
/// # Safety
/// What NCCL asks for: addresses are memory that the communicator's device reaches, of the size that follows from the call, which
/// lives until the call is complete, or as long as the graph that captured it. The stream is one of that device.
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

/// The type of a number of `ncclDataType_t`.
pub(crate) fn data_type(number: c_int) -> Result<DataType, Failure> {
    /// `ncclNumTypes`. This library's collectives have two more, which NCCL has not.
    const TYPES: usize = 12;
    let known = usize::try_from(number).ok().filter(|number| *number < TYPES);
    known
        .map(|number| DataType::ALL[number])
        .ok_or_else(|| Failure::argument(format!("`datatype` is {number}, which is no ncclDataType_t")))
}

/// The operation of a number of `ncclRedOp_t` that NCCL has by itself.
pub(crate) fn operation(number: c_int) -> Option<ReduceOp> {
    let operations = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min, ReduceOp::Avg];
    usize::try_from(number).ok().and_then(|number| operations.get(number).copied())
}

/// Puts calls into their streams: those of each communicator together, communicators in the order of their first calls; and those
/// that NCCL gets. Waits for no other rank.
pub(crate) fn submit(calls: Vec<Call>) -> Result<(), Failure> {
    let (handed, mut calls): (Vec<Call>, _) = calls.into_iter().partition(|call| call.request.is_none());
    let mut answer = Ok(());
    while let Some(first) = calls.first() {
        let comm = Arc::clone(&first.comm);
        let (own, others) = calls.into_iter().partition(|call| Arc::ptr_eq(&call.comm, &comm));
        calls = others;
        // All of them, whatever the first one says: another rank may wait for a later one.
        answer = answer.and(submit_of(&own));
    }
    answer.and(submit_of(&handed))
}

/// Puts a call into its stream.
pub(crate) fn submit_one(call: &Call) -> Result<(), Failure> {
    submit_of(slice::from_ref(call))
}

/// Calls of one communicator, or such that NCCL gets.
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
    // SAFETY: who called promised streams of the communicator's device.
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
    // Calls of several streams go into the first of these, which is joined with the others.
    let Some((stream, others)) = streams.split_first() else { return Ok(()) };
    stream.join(&others.iter().collect::<Vec<_>>(), || enqueue(comm, ours, &requests, stream))
}

fn enqueue(comm: &Comm, ours: &Ours, requests: &[Request<'_>], stream: &Stream) -> Result<(), Failure> {
    let timed = ours.statistics.begin(&comm.gpu, stream, requests);
    // SAFETY: who called promised what is asked for, of each call.
    unsafe { ours.collectives.enqueue(requests, stream)? };
    ours.statistics.end(stream, timed);
    Ok(())
}
