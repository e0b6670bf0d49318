//! Hands communicators over to NCCL that this library does not cover, or that have several nodes, if `MSCCLPP_NCCL_FALLBACK`
//! names one.
//!
//! A communicator is handed over as a whole when it is formed. The ranks decide so from the greetings that they exchange, so all
//! ranks decide the same. Its calls then go to NCCL unchanged.

use std::ffi::c_int;

use mscclpp::Bootstrap;

use crate::{
    abi::{Code, Handle, UniqueId},
    calls::{Arguments, Call, What},
    comm::{Backend, Comm},
    failure::Failure,
    nccl::{Handed, Nccl, nccl},
    report, streams,
};

/// Hands a communicator that is being formed over to NCCL. Blocks until all its ranks have called this.
pub(crate) fn hand_over(comm: &Comm, bootstrap: &dyn Bootstrap, why: &str) -> Result<Handed, Failure> {
    let nccl = nccl()?;
    let (rank, ranks) = comm.position()?;
    let mut id = UniqueId([0; 128]);
    if rank == 0 {
        // SAFETY: the function writes an id to a place for one.
        nccl.check("ncclGetUniqueId", std::ptr::null_mut(), unsafe { (nccl.unique_id)(&raw mut id) })?;
    }
    let mut bytes = id.0.to_vec();
    bootstrap.broadcast(&mut bytes, 0)?;
    id.0 = bytes.as_slice().try_into().map_err(|_| {
        Failure::usage(format!(
            "rank 0 sent {} bytes as NCCL's unique id; all ranks load the same library",
            bytes.len()
        ))
    })?;
    comm.gpu.make_current()?;
    let (mut handle, mut version) = (std::ptr::null_mut(), 0);
    let [n, r] = [ranks, rank].map(|number| c_int::try_from(number).unwrap_or(-1));
    // SAFETY: the function writes a handle to a place for one; the communicator's device is this thread's.
    nccl.check("ncclCommInitRank", std::ptr::null_mut(), unsafe {
        (nccl.init_rank)(&raw mut handle, n, id, r)
    })?;
    // SAFETY: the function writes a number to a place for one.
    nccl.check("ncclGetVersion", std::ptr::null_mut(), unsafe { (nccl.version)(&raw mut version) })?;
    report::once(&format!("{} goes to NCCL {version} (MSCCLPP_NCCL_FALLBACK): {why}", comm.name()));
    Ok(Handed { nccl, comm: handle })
}

/// Puts calls into their streams as one group of NCCL. One thread may have several ranks, and NCCL connects ranks at the end of
/// the group in which they first communicate: in separate groups, the first would wait for the second for ever.
pub(crate) fn submit(calls: &[Call]) -> Result<(), Failure> {
    let nccl = nccl()?;
    // SAFETY: the function has no arguments.
    nccl.check("ncclGroupStart", std::ptr::null_mut(), unsafe { (nccl.group_start)() })?;
    let made = calls.iter().try_for_each(|call| {
        let Backend::Handed(Handed { comm, .. }) = *call.comm.backend()? else { return Ok(()) };
        if let Some(event) = call.launch_event {
            let gpu = &call.comm.gpu;
            // SAFETY: the caller of `group::make_with` promised a live stream and event of the communicator's device.
            let (stream, event) =
                unsafe { (streams::of(gpu, call.arguments.stream)?, streams::event_of(gpu, event)?) };
            // NCCL's own version may not take events.
            stream.record(&event)?;
        }
        // SAFETY: the caller of `group::make` promised what NCCL asks for.
        nccl.check("call", comm, unsafe { call_of(nccl, comm, call.what, &call.arguments) }).map(drop)
    });
    // SAFETY: the function has no arguments.
    let ended = nccl.check("ncclGroupEnd", std::ptr::null_mut(), unsafe { (nccl.group_end)() });
    made.and(ended.map(drop))
}

/// Calls the function of NCCL that `what` names.
///
/// # Safety
/// The arguments are what that function asks for.
unsafe fn call_of(nccl: &Nccl, comm: Handle, what: What, arguments: &Arguments) -> Code {
    let Arguments { send, recv, count, data_type, stream, .. } = *arguments;
    // SAFETY: the caller's promise.
    unsafe {
        match what {
            What::AllReduce { op } => (nccl.all_reduce)(send, recv, count, data_type, op, comm, stream),
            What::Reduce { op, root } => (nccl.reduce)(send, recv, count, data_type, op, root, comm, stream),
            What::ReduceScatter { op } => {
                (nccl.reduce_scatter)(send, recv, count, data_type, op, comm, stream)
            }
            What::AllGather => (nccl.all_gather)(send, recv, count, data_type, comm, stream),
            What::AlltoAll => (nccl.all_to_all)(send, recv, count, data_type, comm, stream),
            What::Broadcast { root } => (nccl.broadcast)(send, recv, count, data_type, root, comm, stream),
            What::Gather { root } => (nccl.gather)(send, recv, count, data_type, root, comm, stream),
            What::Scatter { root } => (nccl.scatter)(send, recv, count, data_type, root, comm, stream),
            What::Send { peer } => (nccl.send)(send, count, data_type, peer, comm, stream),
            What::Recv { peer } => (nccl.recv)(recv, count, data_type, peer, comm, stream),
        }
    }
}
