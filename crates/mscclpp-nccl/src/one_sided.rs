//! Calls of one rank alone: it writes into a peer's window, signals a peer, or waits for signals.

use std::{
    ffi::{c_int, c_uint, c_void},
    sync::Arc,
};

use mscclpp::DevicePtr;

use crate::{
    abi::{Code, Handle, WaitSignal},
    calls,
    comm::{self, Comm},
    failure::Failure,
    operators::data_type,
    signals::{Put, Signal, Signals},
    streams,
};

/// A call that has been checked.
pub(crate) struct OneSided {
    comm: Arc<Comm>,
    stream: Handle,
    what: What,
}

enum What {
    Send(Option<Put>, Signal),
    Wait(Vec<(Signal, u64)>),
}

/// The peer of a call, its signal and its context, as C code gives them.
pub(crate) type Named = (c_int, c_int, c_int);

/// Memory that a call writes, and where.
pub(crate) struct Source {
    pub(crate) from: *const c_void,
    pub(crate) count: usize,
    pub(crate) data_type: c_int,
    pub(crate) window: Handle,
    pub(crate) offset: usize,
}

/// `ncclPutSignal` with a source, else `ncclSignal`.
pub(crate) fn send(
    source: Option<Source>,
    named: Named,
    flags: c_uint,
    (comm, stream): (Handle, Handle),
) -> Result<OneSided, Failure> {
    let comm = comm::of(comm)?;
    of(&comm)?;
    if flags != 0 {
        return Err(Failure::argument(format!("`flags` is {flags}; 0 is known")));
    }
    let signal = signal(&comm, named)?;
    let put = source.map(|source| put(&comm, signal.peer, &source)).transpose()?;
    Ok(OneSided { comm, stream, what: What::Send(put, signal) })
}

/// `ncclWaitSignal`.
pub(crate) fn wait(waits: &[WaitSignal], (comm, stream): (Handle, Handle)) -> Result<OneSided, Failure> {
    let comm = comm::of(comm)?;
    of(&comm)?;
    let wait = |wait: &WaitSignal| {
        let count = u64::try_from(wait.op_cnt)
            .map_err(|_| Failure::argument(format!("`opCnt` is {} in ncclWaitSignalDesc_t", wait.op_cnt)))?;
        Ok((signal(&comm, (wait.peer, wait.sig_idx, wait.ctx))?, count))
    };
    let waits = waits.iter().map(wait).collect::<Result<Vec<_>, Failure>>()?;
    Ok(OneSided { comm, stream, what: What::Wait(waits) })
}

fn signal(comm: &Comm, (peer, number, context): Named) -> Result<Signal, Failure> {
    let (_, ranks) = comm.position()?;
    Signal::of(calls::rank("peer", peer, ranks)?, number, context)
}

fn put(comm: &Comm, peer: usize, source: &Source) -> Result<Put, Failure> {
    let bytes = (source.count as u64).saturating_mul(data_type(source.data_type)?.size());
    if source.from.is_null() && bytes > 0 {
        return Err(Failure::argument("`localbuff` is NULL"));
    }
    let windows = comm.registrations.windows.lock();
    let window = windows.get(&source.window.addr()).ok_or_else(|| {
        Failure::argument(format!("`peerWin` is {:p}, which is no window of {}", source.window, comm.name()))
    })?;
    let place = window.registered.as_ref().and_then(|registered| registered.of(peer));
    let (at, length) = place.ok_or_else(|| {
        Failure::usage(format!(
            "rank {peer}'s memory of the window cannot be shared, so nothing can be put there"
        ))
    })?;
    let offset = source.offset as u64;
    if offset.checked_add(bytes).is_none_or(|end| end > length) {
        return Err(Failure::argument(format!(
            "{bytes} bytes at `peerWinOffset` {offset} are not in the window of rank {peer}, which has {length}"
        )));
    }
    Ok(Put { to: at.add(offset), from: DevicePtr(source.from.expose_provenance() as u64), bytes })
}

fn of(comm: &Comm) -> Result<&Signals, Failure> {
    let ours = comm.backend()?.ours("signals of ")?;
    if !ours.has_signals() {
        return Err(Failure::usage(
            "not covered: signals in a communicator of several nodes, or of devices that do not reach each other's memory",
        ));
    }
    ours.signals.get().ok_or_else(|| {
        Failure::usage(
            "there are no signals before all ranks have registered a window (ncclCommWindowRegister)",
        )
    })
}

/// Puts calls into their streams: those that send before those that wait, which may wait for what they send.
///
/// # Safety
/// The memory is that of the communicators' devices, and lives until the calls are complete, or as long as a graph that captured
/// them. The streams are of these devices.
pub(crate) unsafe fn submit(calls: &[OneSided]) -> Result<Code, Failure> {
    let sends = calls.iter().filter(|call| matches!(call.what, What::Send(..)));
    let waits = calls.iter().filter(|call| matches!(call.what, What::Wait(_)));
    let mut answer = Ok(Code::SUCCESS);
    for call in sends.chain(waits) {
        // SAFETY: the caller's promise.
        let put = unsafe { call.put() };
        // The others are made even if one fails: other ranks may wait for them.
        answer = answer.and_then(|code| put.map(|()| code));
    }
    answer
}

impl OneSided {
    /// # Safety
    /// The same as of [`submit`].
    unsafe fn put(&self) -> Result<(), Failure> {
        let signals = of(&self.comm)?;
        // SAFETY: the caller's promise.
        let stream = unsafe { streams::of(&self.comm.gpu, self.stream)? };
        match &self.what {
            // SAFETY: the caller's promise.
            What::Send(put, signal) => unsafe { signals.send(*put, *signal, &stream) },
            What::Wait(waits) => signals.wait(waits, &stream),
        }
    }
}
