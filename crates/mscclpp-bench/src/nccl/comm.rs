//! A communicator of NCCL with the same ranks and devices as the library's.

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

/// A communicator. Graphs with its calls are dropped before it, because NCCL waits for them when it is destroyed.
pub(crate) struct Comm<'a> {
    pub(super) library: &'a Library,
    ranks: usize,
    /// The time limit for a call of NCCL that does not wait for the device.
    pub(super) limit: Duration,
    /// The communicator's handle; null once it was aborted.
    raw: Cell<Handle>,
}

impl<'a> Comm<'a> {
    /// Creates the communicator. Waits for the other ranks, which make the same call.
    pub(crate) fn join(library: &'a Library, pair: &Pair, limit: Duration) -> Result<Self> {
        let ranks = &pair.ranks;
        let mut id = UniqueId([0; 128]);
        let made = if ranks.rank == 0 {
            // SAFETY: the function writes one id, for which there is room.
            within(limit, "ncclGetUniqueId", || unsafe { (library.unique_id)(&raw mut id) })
        } else {
            0
        };
        // If the call failed, the other ranks learn it here, and do not wait for an id.
        let said = ranks.say(&(made, id.0.to_vec()))?.swap_remove(0);
        library.check("ncclGetUniqueId", said.0)?;
        let id = UniqueId(said.1.try_into().map_err(|_| "an id of NCCL is 128 bytes long")?);
        pair.gpu.make_current()?;
        let mut raw = ptr::null_mut();
        let [count, rank] = [ranks.count(), ranks.rank].map(|n| n as c_int);
        // SAFETY: the id is rank 0's; the function writes one handle; the device of this rank is the current one.
        let code = within(limit, "ncclCommInitRank", || unsafe {
            (library.init_rank)(&raw mut raw, count, id, rank)
        });
        library.check("ncclCommInitRank", code)?;
        Ok(Self { library, ranks: ranks.count(), limit, raw: Cell::new(raw) })
    }

    /// A note on the library with which the rows are compared.
    pub(crate) fn note(&self) -> String {
        let multicast = std::env::var(MULTICAST).unwrap_or_default();
        format!(
            "NCCL: version {} of {}, with {MULTICAST}={multicast}; ratio: the best of its medians over that of the row",
            self.library.version(),
            self.library.name
        )
    }

    /// Enqueues a collective on the stream.
    ///
    /// # Safety
    /// The same as for the library's [`enqueue`](mscclpp_collectives::Collectives::enqueue): the memory must live until the call
    /// is complete.
    pub(super) unsafe fn call(&self, what: What, request: &Request<'_>, stream: &Stream) -> Result<()> {
        let (library, comm, stream) = (self.library, self.raw()?, stream.raw());
        let (send, recv) = (pointer(request.send).cast_const(), pointer(request.recv));
        // The library's types of numbers have NCCL's values.
        let (count, data_type) = (request.count as usize, request.data_type as c_int);
        // SAFETY: the communicator is alive, the stream is one of its device, and the caller vouches for the memory, which has
        // the size that the header asks for, as it has for the library's call.
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

    /// Makes an `all_to_all` of messages between all ranks.
    ///
    /// # Safety
    /// The same as [`Self::call`].
    unsafe fn messages(&self, request: &Request<'_>, comm: Handle, stream: Handle) -> Result<()> {
        let AllToAll::Messages { send, recv, group_start, group_end } = &self.library.all_to_all else {
            unreachable!("it is asked where there is no function");
        };
        let check = |name, code| self.library.check(name, code);
        let (count, data_type) = (request.count as usize, request.data_type as c_int);
        let part = request.count * request.data_type.size();
        // SAFETY: this thread begins and ends the group; the caller promises the same as for `call`.
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

    /// Ends the communicator's work on the device. It cannot be used afterwards.
    pub(crate) fn abort(&self) {
        let raw = self.raw.replace(ptr::null_mut());
        if !raw.is_null() {
            // SAFETY: the communicator is alive, and nobody has its handle any more. A failure cannot be handled.
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
            // SAFETY: it is alive, and nobody has its handle any more. All its calls are complete, or their stream was aborted.
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
