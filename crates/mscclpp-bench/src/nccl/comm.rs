//! A communicator of NCCL with the same ranks and devices as the library's.

use std::{
    cell::Cell,
    ffi::{CStr, c_int, c_void},
    ptr,
    rc::Rc,
    time::Duration,
};

use mscclpp_collectives::Request;

use super::{
    MULTICAST,
    library::{Group, Handle, Library, Message, Move, OfComm, Reduce, SUM, UniqueId},
};
use crate::{
    collectives::{Calls, Side, Task, What},
    data::Memory,
    prelude::*,
    watchdog::within,
};

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
        // SAFETY: the types are those of the header.
        let (unique_id, init_rank) = unsafe {
            let unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int =
                library.function(c"ncclGetUniqueId")?;
            let init_rank: unsafe extern "C" fn(*mut Handle, c_int, UniqueId, c_int) -> c_int =
                library.function(c"ncclCommInitRank")?;
            (unique_id, init_rank)
        };
        let made = if ranks.rank == 0 {
            // SAFETY: the function writes one id, for which there is room.
            within(limit, "ncclGetUniqueId", || unsafe { unique_id(&raw mut id) })
        } else {
            0
        };
        // If the call failed, the other ranks learn it here, and do not wait for an id.
        let said = ranks.say(&(made, id.0.to_vec()))?.swap_remove(0);
        library.check(c"ncclGetUniqueId", said.0)?;
        let id = UniqueId(said.1.try_into().map_err(|_| "an id of NCCL is 128 bytes long")?);
        pair.gpu.make_current()?;
        let mut raw = ptr::null_mut();
        let [count, rank] = [ranks.count(), ranks.rank].map(|n| n as c_int);
        // SAFETY: the id is rank 0's; the function writes one handle; the device of this rank is the current one.
        let code = within(limit, "ncclCommInitRank", || unsafe { init_rank(&raw mut raw, count, id, rank) });
        library.check(c"ncclCommInitRank", code)?;
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

    /// NCCL's side of a row, in a memory that begins at `base` and was loaded. All ranks make this call.
    ///
    /// On GPUs, the calls of a time are graphs like the library's. Simulated devices have no streams that other code could
    /// use, so each call there is complete when it returns. Only the replacement of NCCL in tests can do that.
    pub(crate) fn side<'s>(
        &'s self,
        name: &str,
        (memory, base): (&'s dyn Memory, DevicePtr),
        task: &Task,
        calls: Calls,
        stopwatch: &Stopwatch<'_>,
    ) -> Result<Side<'s>> {
        let (what, limit, numbers, ranks) = (task.what, self.limit, task.numbers, task.ranks);
        let watched = format!("{name} ({})", what.name());
        // SAFETY: the memory outlives the side, and the code that times the calls waits for them.
        let call = Rc::new(unsafe { self.call(what, task.request(base))? });
        let one = {
            let (watched, call) = (watched.clone(), Rc::clone(&call));
            move |stream: &Stream| within(limit, &watched, || call(stream))
        };
        let is_simulated = stopwatch.stream().gpu().platform() == Platform::Sim;
        // SAFETY: as above.
        let launches = unsafe { self.capture(&watched, calls, stopwatch, move |stream| call(stream))? };
        Ok(Side {
            name: name.to_owned(),
            memory,
            launches,
            // The calls are watched from outside of the time, which has the same limit for their work on the device.
            limit: (is_simulated || calls.of_a_graph == 0).then_some(2 * limit),
            // On simulated devices a call is complete when it returns.
            are_queued: !is_simulated,
            call: Box::new(one),
            like: Box::new(move |found, expected| numbers.are_near(ranks, found, expected)),
        })
    }

    /// Returns the launches of calls: graphs, if `calls` says so and the device is not simulated. `watched` names the call in the
    /// error of one that does not return.
    ///
    /// # Safety
    /// The memory that the calls use must be kept until who submits the launches has waited for them.
    pub(crate) unsafe fn capture<'s>(
        &'s self,
        watched: &str,
        calls: Calls,
        stopwatch: &Stopwatch<'_>,
        call: impl Fn(&Stream) -> Result<()> + 's,
    ) -> Result<Launches<'s>> {
        let stream = stopwatch.stream();
        let of_a_graph = if stream.gpu().platform() == Platform::Sim { 0 } else { calls.of_a_graph };
        // The first call connects the ranks, which no capture may contain.
        stopwatch.time_of_waits(|stream| within(self.limit, watched, || call(stream)))?;
        // SAFETY: the caller's promise.
        within(self.limit, watched, || unsafe { Launches::capture(stream, calls.rounds, of_a_graph, call) })
    }

    /// Returns a function that enqueues collectives of one kind as a group.
    ///
    /// # Safety
    /// The same as [`Self::call`].
    pub(crate) unsafe fn group(&self, what: What, requests: &[Request<'static>]) -> Result<Submit<'_>> {
        // SAFETY: the caller's promise.
        let calls = requests.iter().map(|request| unsafe { self.call(what, *request) });
        let calls = calls.collect::<Result<Vec<_>>>()?;
        self.in_group(Box::new(move |stream| calls.iter().try_for_each(|call| call(stream))))
    }

    /// Returns a function that makes calls as a group.
    fn in_group<'s>(&'s self, calls: Submit<'s>) -> Result<Submit<'s>> {
        let library = self.library;
        // SAFETY: the types are those of the header.
        let (start, end): (Group, Group) =
            unsafe { (library.function(c"ncclGroupStart")?, library.function(c"ncclGroupEnd")?) };
        Ok(Box::new(move |stream| {
            // SAFETY: this thread begins and ends the group.
            library.check(c"ncclGroupStart", unsafe { start() })?;
            calls(stream)?;
            // SAFETY: as above.
            library.check(c"ncclGroupEnd", unsafe { end() })
        }))
    }

    /// Returns a function that enqueues a collective on a stream.
    ///
    /// # Safety
    /// The same as for the library's [`enqueue`](mscclpp_collectives::Collectives::enqueue): the memory must live until all calls
    /// are complete.
    pub(crate) unsafe fn call(&self, what: What, request: Request<'static>) -> Result<Submit<'_>> {
        let library = self.library;
        let (send, recv) = (pointer(request.send).cast_const(), pointer(request.recv));
        // The library's types of numbers have NCCL's values.
        let (count, data_type) = (request.count as usize, request.data_type as c_int);
        // SAFETY: the types are those of the header. At a call the communicator is alive, the stream is one of its device, and
        // the caller vouches for the memory, which has the size that the header asks for, as it has for the library's call.
        unsafe {
            let reduce = |name: &'static CStr| -> Result<Submit<'_>> {
                let function: Reduce = library.function(name)?;
                Ok(Box::new(move |stream| {
                    let code = function(send, recv, count, data_type, SUM, self.raw()?, stream.raw());
                    library.check(name, code)
                }))
            };
            let exchange = |name: &'static CStr| -> Result<Submit<'_>> {
                let function: Move = library.function(name)?;
                Ok(Box::new(move |stream| {
                    library.check(name, function(send, recv, count, data_type, self.raw()?, stream.raw()))
                }))
            };
            match what {
                What::AllReduce => reduce(c"ncclAllReduce"),
                What::AllGather => exchange(c"ncclAllGather"),
                What::ReduceScatter => reduce(c"ncclReduceScatter"),
                // There is a function since 2.28; the second name is that of RCCL.
                What::AllToAll => exchange(c"ncclAlltoAll")
                    .or_else(|_| exchange(c"ncclAllToAll"))
                    .or_else(|_| self.messages(request)),
            }
        }
    }

    /// Returns a function that makes an `all_to_all` of messages between all ranks.
    ///
    /// # Safety
    /// The same as [`Self::call`].
    unsafe fn messages(&self, request: Request<'static>) -> Result<Submit<'_>> {
        let (library, ranks) = (self.library, self.ranks);
        let (count, data_type) = (request.count as usize, request.data_type as c_int);
        let part = request.count * request.data_type.size();
        // SAFETY: the types are those of the header; the caller promises the same as for `call`.
        unsafe {
            let send: Message<*const c_void> = library.function(c"ncclSend")?;
            let recv: Message<*mut c_void> = library.function(c"ncclRecv")?;
            self.in_group(Box::new(move |stream| {
                let (comm, stream) = (self.raw()?, stream.raw());
                for peer in 0..ranks {
                    let [from, to] =
                        [request.send, request.recv].map(|base| pointer(base.add(part * peer as u64)));
                    let peer = peer as c_int;
                    let sent = send(from.cast_const(), count, data_type, peer, comm, stream);
                    library.check(c"ncclSend", sent)?;
                    library.check(c"ncclRecv", recv(to, count, data_type, peer, comm, stream))?;
                }
                Ok(())
            }))
        }
    }

    /// Ends the communicator's work on the device. It cannot be used afterwards.
    pub(crate) fn abort(&self) {
        // A failure cannot be handled.
        let _ = self.end(c"ncclCommAbort");
    }

    /// Ends the communicator by a function, unless it has ended.
    fn end(&self, name: &CStr) -> Result<()> {
        let raw = self.raw.replace(ptr::null_mut());
        if raw.is_null() {
            return Ok(());
        }
        // SAFETY: the type is that of the header. The communicator is alive, and nobody has its handle any more.
        let code = unsafe {
            let end: OfComm = self.library.function(name)?;
            within(self.limit, &name.to_string_lossy(), || end(raw))
        };
        self.library.check(name, code)
    }

    pub(super) fn raw(&self) -> Result<Handle> {
        let raw = self.raw.get();
        if raw.is_null() { Err("NCCL's communicator was aborted".into()) } else { Ok(raw) }
    }
}

impl Drop for Comm<'_> {
    fn drop(&mut self) {
        // All calls of the communicator are complete, or their stream was aborted.
        if let Err(error) = self.end(c"ncclCommDestroy") {
            eprintln!("warning: {error}");
        }
    }
}

fn pointer(of: DevicePtr) -> *mut c_void {
    of.0 as *mut c_void
}
