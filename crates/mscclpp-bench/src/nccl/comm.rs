//! A communicator of NCCL, of the same ranks and devices as the library's.

use std::{
    cell::Cell,
    ffi::{c_int, c_void},
    ptr,
    time::Duration,
};

use mscclpp::{DevicePtr, Stream};
use mscclpp_collectives::Request;

use super::{
    MULTICAST,
    library::{AllToAll, Handle, Library, SUM, UniqueId},
};
use crate::{Result, collectives::What, pair::Pair, watchdog::within};

/// Graphs with its calls are dropped before it: NCCL waits for them when it is destroyed.
pub(crate) struct Comm<'a> {
    pub(super) library: &'a Library,
    ranks: usize,
    /// For a call of NCCL that does not wait for the device.
    pub(super) limit: Duration,
    /// Null once it was aborted.
    raw: Cell<Handle>,
}

impl<'a> Comm<'a> {
    /// Waits for the other ranks, which make the same call.
    pub(crate) fn join(library: &'a Library, pair: &Pair, limit: Duration) -> Result<Self> {
        let ranks = &pair.ranks;
        let mut id = UniqueId([0; 128]);
        let made = if ranks.rank == 0 {
            // SAFETY: it fills a place for one id.
            within(limit, "ncclGetUniqueId", || unsafe { (library.unique_id)(&raw mut id) })
        } else {
            0
        };
        // The others need not wait for an id that does not come.
        let said = ranks.say(&(made, id.0.to_vec()))?.swap_remove(0);
        library.check("ncclGetUniqueId", said.0)?;
        let id = UniqueId(said.1.try_into().map_err(|_| "an id of NCCL is 128 bytes long")?);
        pair.gpu.make_current()?;
        let mut raw = ptr::null_mut();
        let [count, rank] = [ranks.count(), ranks.rank].map(|n| n as c_int);
        // SAFETY: the id is rank 0's; it writes one handle; the device of this rank is the current one.
        let code = within(limit, "ncclCommInitRank", || unsafe {
            (library.init_rank)(&raw mut raw, count, id, rank)
        });
        library.check("ncclCommInitRank", code)?;
        Ok(Self { library, ranks: ranks.count(), limit, raw: Cell::new(raw) })
    }

    /// What was compared with.
    pub(crate) fn note(&self) -> String {
        let multicast = std::env::var(MULTICAST).unwrap_or_default();
        format!(
            "NCCL: version {} of {}, with {MULTICAST}={multicast}; ratio: the best of its medians over that of the row",
            self.library.version(),
            self.library.name
        )
    }

    /// Puts a collective into the stream.
    ///
    /// # Safety
    /// As for [`enqueue`](mscclpp_collectives::Collectives::enqueue) of the library: the memory is there until the call is
    /// complete.
    pub(super) unsafe fn call(&self, what: What, request: &Request<'_>, stream: &Stream) -> Result<()> {
        let (library, comm, stream) = (self.library, self.raw()?, stream.raw());
        let (send, recv) = (pointer(request.send).cast_const(), pointer(request.recv));
        // Types of numbers have NCCL's values.
        let (count, data_type) = (request.count as usize, request.data_type as c_int);
        // SAFETY: the communicator is alive, the stream is one of its device, and the caller answers for the memory, which
        // is of the size that the header asks for, as it is for the library's call.
        let (name, code) = unsafe {
            match what {
                What::AllReduce => {
                    let call = library.all_reduce;
                    ("ncclAllReduce", call(send, recv, count, data_type, SUM, comm, stream))
                }
                What::AllGather => {
                    ("ncclAllGather", (library.all_gather)(send, recv, count, data_type, comm, stream))
                }
                What::ReduceScatter => {
                    let call = library.reduce_scatter;
                    ("ncclReduceScatter", call(send, recv, count, data_type, SUM, comm, stream))
                }
                What::AllToAll => match &library.all_to_all {
                    AllToAll::Function(call) => {
                        ("ncclAlltoAll", call(send, recv, count, data_type, comm, stream))
                    }
                    AllToAll::Messages { .. } => return self.messages(request, comm, stream),
                },
            }
        };
        library.check(name, code)
    }

    /// An `all_to_all` of messages between all.
    ///
    /// # Safety
    /// As [`Self::call`].
    unsafe fn messages(&self, request: &Request<'_>, comm: Handle, stream: Handle) -> Result<()> {
        let AllToAll::Messages { send, recv, group_start, group_end } = &self.library.all_to_all else {
            unreachable!("it is asked where there is no function");
        };
        let check = |name, code| self.library.check(name, code);
        let (count, data_type) = (request.count as usize, request.data_type as c_int);
        let part = request.count * request.data_type.size();
        // SAFETY: a group is begun and ended by this thread; the rest as in `call`.
        unsafe {
            check("ncclGroupStart", group_start())?;
            for peer in 0..self.ranks {
                let [from, to] =
                    [request.send, request.recv].map(|base| pointer(base.add(part * peer as u64)));
                let peer = peer as c_int;
                check("ncclSend", send(from.cast_const(), count, data_type, peer, comm, stream))?;
                check("ncclRecv", recv(to, count, data_type, peer, comm, stream))?;
            }
            check("ncclGroupEnd", group_end())
        }
    }

    /// Ends what the device still does for it. It can do nothing more then.
    pub(crate) fn abort(&self) {
        let raw = self.raw.replace(ptr::null_mut());
        if !raw.is_null() {
            // SAFETY: it is alive, and nobody has it any more. There is nothing to do about a failure.
            within(self.limit, "ncclCommAbort", || unsafe { (self.library.abort)(raw) });
        }
    }

    pub(super) fn raw(&self) -> Result<Handle> {
        let raw = self.raw.get();
        if raw.is_null() { Err("NCCL's communicator was aborted".into()) } else { Ok(raw) }
    }
}

impl Drop for Comm<'_> {
    fn drop(&mut self) {
        let raw = self.raw.replace(ptr::null_mut());
        if !raw.is_null() {
            // SAFETY: it is alive, and nobody has it any more. All its calls are complete, or their stream was aborted.
            let code = within(self.limit, "ncclCommDestroy", || unsafe { (self.library.destroy)(raw) });
            if let Err(error) = self.library.check("ncclCommDestroy", code) {
                eprintln!("warning: {error}");
            }
        }
    }
}

fn pointer(of: DevicePtr) -> *mut c_void {
    of.0 as *mut c_void
}
