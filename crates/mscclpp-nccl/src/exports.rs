//! The functions of NCCL 2.32.3, each as `ncclXxx`, and as `pncclXxx` for profilers that replace `ncclXxx` and then call it.
//!
//! Each body calls the module that implements the function. Neither name calls the other, as a program may replace either.

#![allow(non_snake_case, reason = "the names are NCCL's")]
#![allow(clippy::missing_safety_doc, reason = "NCCL's documentation says what callers promise")]

use std::ffi::{c_char, c_int, c_void};

use crate::{
    abi::{Code, CollConfig, Config, Handle, SimInfo, Team, UniqueId},
    answers::{self, answered_anywhere, function},
    calls::{Arguments, What},
    comm::{self, Backend},
    ending,
    env::Env,
    failure::Failure,
    forming, group, growing, id, memory,
    pointers::{OutPointer, array},
    simulation, split, teams,
};

/// Defines functions that return a code, under both names.
macro_rules! nccl {
    ($($(#[$doc:meta])* fn $name:ident/$other:ident $arguments:tt $body:block)*) => {
        function! {
            $(
                $(#[$doc])*
                fn $name $arguments $body

                #[doc = concat!("The same as [`", stringify!($name), "`].")]
                fn $other $arguments $body
            )*
        }
    };
}

/// Defines the functions of collectives, each also with a configuration of the call.
macro_rules! collectives {
    ($($(#[$doc:meta])* fn $name:ident/$other:ident, $config:ident/$other_config:ident($count:ident $(, $extra:ident)*) $what:ident;)*) => {
        nccl! {
            $(
                $(#[$doc])*
                fn $name/$other(
                    sendbuff: *const c_void, recvbuff: *mut c_void, $count: usize, datatype: c_int, $($extra: c_int,)* comm: Handle,
                    stream: Handle,
                ) {
                    let arguments = Arguments { send: sendbuff, recv: recvbuff, count: $count, data_type: datatype, comm, stream };
                    group::make(What::$what { $($extra),* }, arguments)
                }

                #[doc = concat!("The same as [`", stringify!($name), "`], with a configuration of the call. NULL for it makes the plain call.")]
                fn $config/$other_config(
                    sendbuff: *const c_void, recvbuff: *mut c_void, $count: usize, datatype: c_int, $($extra: c_int,)* comm: Handle,
                    stream: Handle, config: *const CollConfig,
                ) {
                    let arguments = Arguments { send: sendbuff, recv: recvbuff, count: $count, data_type: datatype, comm, stream };
                    group::make_with(What::$what { $($extra),* }, arguments, config)
                }
            )*
        }
    };
}

/// Defines functions with other results, or that never fail, under both names.
macro_rules! plain {
    ($($(#[$doc:meta])* fn $name:ident/$other:ident($($argument:ident: $type:ty),*) -> $result:ty $body:block)*) => {
        $(
            plain!(@one $(#[$doc])* $name ($($argument: $type),*) $result $body);
            plain!(@one #[doc = concat!("The same as [`", stringify!($name), "`].")] $other ($($argument: $type),*) $result $body);
        )*
    };
    (@one $(#[$doc:meta])* $name:ident ($($argument:ident: $type:ty),*) $result:ty $body:block) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result $body
    };
}

pub mod one_sided;
pub mod queries;
pub mod refused;

nccl! {
    /// Makes a unique id, with which the ranks of a communicator find each other.
    fn ncclGetUniqueId/pncclGetUniqueId(uniqueId: *mut UniqueId) {
        let place = OutPointer::at(uniqueId, "uniqueId")?;
        id::create(Env::of_process()?).map(|id| place.set(id))
    }

    /// Makes this rank's communicator, on the thread's device.
    fn ncclCommInitRank/pncclCommInitRank(comm: *mut Handle, nranks: c_int, commId: UniqueId, rank: c_int) {
        let place = OutPointer::at(comm, "comm");
        group::noted(place.and_then(|place| forming::init_rank(place, nranks, &commId, rank, std::ptr::null())))
    }

    /// Makes this rank's communicator, with a configuration.
    fn ncclCommInitRankConfig/pncclCommInitRankConfig(
        comm: *mut Handle, nranks: c_int, commId: UniqueId, rank: c_int, config: *mut Config,
    ) {
        let place = OutPointer::at(comm, "comm");
        group::noted(place.and_then(|place| forming::init_rank(place, nranks, &commId, rank, config)))
    }

    /// Makes this rank's communicator from several ids, of which the first alone is used.
    fn ncclCommInitRankScalable/pncclCommInitRankScalable(
        newcomm: *mut Handle, nranks: c_int, myrank: c_int, nId: c_int, commIds: *mut UniqueId, config: *mut Config,
    ) {
        group::noted(array(commIds, nId, "commIds").and_then(|ids| {
            let (id, others) = ids.split_first().ok_or_else(|| Failure::argument("`nId` is 0; one id is needed"))?;
            others.iter().filter(|other| *other != id).for_each(id::forget);
            forming::init_rank(OutPointer::at(newcomm, "newcomm")?, nranks, id, myrank, config)
        }))
    }

    /// Makes the communicators of all ranks in this process, one on each device.
    fn ncclCommInitAll/pncclCommInitAll(comm: *mut Handle, ndev: c_int, devlist: *const c_int) {
        let init = || {
            let n = usize::try_from(ndev).ok().filter(|n| *n > 0);
            let n = n.ok_or_else(|| Failure::argument(format!("`ndev` is {ndev}")))?;
            let places = (0..n).map(|r| OutPointer::at(comm.wrapping_add(r), "comm")).collect::<Result<Vec<_>, _>>()?;
            let devices = if devlist.is_null() { None } else { Some(array(devlist, ndev, "devlist")?) };
            forming::init_all(&places, devices.as_deref())
        };
        group::noted(init())
    }

    /// Refuses further calls, and waits for those that were made.
    fn ncclCommFinalize/pncclCommFinalize(comm: Handle) {
        ending::finalize(comm)
    }

    /// Destroys a communicator.
    fn ncclCommDestroy/pncclCommDestroy(comm: Handle) {
        ending::destroy(comm)
    }

    /// Ends a communicator at once, on all its ranks.
    fn ncclCommAbort/pncclCommAbort(comm: Handle) {
        ending::abort(comm)
    }

    /// Aborts this rank's calls that are under way.
    fn ncclCommRevoke/pncclCommRevoke(comm: Handle, revokeFlags: c_int) {
        ending::revoke(comm, revokeFlags)
    }

    /// Makes a communicator of the ranks that pass the same color.
    fn ncclCommSplit/pncclCommSplit(
        comm: Handle, color: c_int, key: c_int, newcomm: *mut Handle, config: *mut Config,
    ) {
        let place = OutPointer::at(newcomm, "newcomm");
        group::noted(place.and_then(|place| split::split(comm, color, key, place, config)))
    }

    /// Makes a communicator without some of the ranks.
    fn ncclCommShrink/pncclCommShrink(
        comm: Handle, excludeRanksList: *mut c_int, excludeRanksCount: c_int, newcomm: *mut Handle,
        config: *mut Config, shrinkFlags: c_int,
    ) {
        group::noted(array(excludeRanksList, excludeRanksCount, "excludeRanksList").and_then(|excluded| {
            split::shrink(comm, &excluded, OutPointer::at(newcomm, "newcomm")?, config, shrinkFlags)
        }))
    }

    /// Makes a unique id by which new ranks find the ranks of a communicator.
    fn ncclCommGetUniqueId/pncclCommGetUniqueId(comm: Handle, uniqueId: *mut UniqueId) {
        let place = OutPointer::at(uniqueId, "uniqueId")?;
        growing::unique_id(comm).map(|id| place.set(id))
    }

    /// Makes a communicator of all ranks of another one, and new ranks, whose `comm` is NULL.
    fn ncclCommGrow/pncclCommGrow(
        comm: Handle, nRanks: c_int, uniqueId: *const UniqueId, rank: c_int, newcomm: *mut Handle, config: *mut Config,
    ) {
        let id = if uniqueId.is_null() { None } else { Some(uniqueId.read_unaligned()) };
        let place = OutPointer::at(newcomm, "newcomm");
        group::noted(place.and_then(|place| growing::grow(comm, nRanks, id, rank, place, config)))
    }

    /// Reports whether a communicator is ready, still at work in the background, or failed.
    fn ncclCommGetAsyncError/pncclCommGetAsyncError(comm: Handle, asyncError: *mut Code) {
        let place = OutPointer::at(asyncError, "asyncError")?;
        comm::of(comm).map(|comm| place.set(comm.state()))
    }

    /// The number of ranks of a communicator.
    fn ncclCommCount/pncclCommCount(comm: Handle, count: *mut c_int) {
        let place = OutPointer::at(count, "count")?;
        comm::of(comm)?.position().map(|(_, ranks)| place.set(comm::as_int(ranks)))
    }

    /// The number of a communicator's device in this process.
    fn ncclCommCuDevice/pncclCommCuDevice(comm: Handle, device: *mut c_int) {
        let place = OutPointer::at(device, "device")?;
        comm::of(comm).map(|comm| place.set(comm::as_int(comm.gpu.id())))
    }

    /// The number of this rank in a communicator.
    fn ncclCommUserRank/pncclCommUserRank(comm: Handle, rank: *mut c_int) {
        let place = OutPointer::at(rank, "rank")?;
        comm::of(comm)?.position().map(|(rank, _)| place.set(comm::as_int(rank)))
    }

    /// Allocates memory of the thread's device, which is all zero.
    fn ncclMemAlloc/pncclMemAlloc(ptr: *mut *mut c_void, size: usize) {
        memory::allocate(OutPointer::at(ptr, "ptr")?, size)
    }

    /// Frees memory of [`ncclMemAlloc`].
    fn ncclMemFree/pncclMemFree(ptr: *mut c_void) {
        memory::free(ptr)
    }

    /// Registers memory of this rank, into which peers can then write directly.
    fn ncclCommRegister/pncclCommRegister(comm: Handle, buff: *mut c_void, size: usize, handle: *mut Handle) {
        memory::register(comm, (buff, size), OutPointer::at(handle, "handle")?)
    }

    /// Ends a registration of [`ncclCommRegister`].
    fn ncclCommDeregister/pncclCommDeregister(comm: Handle, handle: Handle) {
        memory::deregister(comm, handle)
    }

    /// Registers memory of all ranks, which calls can then read and write directly.
    fn ncclCommWindowRegister/pncclCommWindowRegister(
        comm: Handle, buff: *mut c_void, size: usize, win: *mut Handle, winFlags: c_int,
    ) {
        let place = OutPointer::at(win, "win");
        group::noted(place.and_then(|place| memory::register_window(comm, (buff, size), place, winFlags)))
    }

    /// Ends a registration of [`ncclCommWindowRegister`].
    fn ncclCommWindowDeregister/pncclCommWindowDeregister(comm: Handle, win: Handle) {
        memory::deregister_window(comm, win)
    }

    /// Makes an operation that multiplies this rank's numbers by a factor, and sums up.
    fn ncclRedOpCreatePreMulSum/pncclRedOpCreatePreMulSum(
        op: *mut c_int, scalar: *mut c_void, datatype: c_int, residence: c_int, comm: Handle,
    ) {
        let (place, comm) = (OutPointer::at(op, "op")?, comm::of(comm)?);
        match comm.backend()? {
            Backend::Ours(_) => comm.operators.create(scalar, datatype, residence),
            Backend::Handed(handed) => handed.create_operator(scalar, datatype, residence),
        }
        .map(|op| place.set(op))
    }

    /// Destroys an operation of [`ncclRedOpCreatePreMulSum`].
    fn ncclRedOpDestroy/pncclRedOpDestroy(op: c_int, comm: Handle) {
        let comm = comm::of(comm)?;
        match comm.formed()? {
            Backend::Ours(_) => comm.operators.destroy(op),
            Backend::Handed(handed) => handed.destroy_operator(op),
        }
    }

    /// Gives each rank the numbers of one rank, in place.
    fn ncclBcast/pncclBcast(buff: *mut c_void, count: usize, datatype: c_int, root: c_int, comm: Handle, stream: Handle) {
        group::make(What::Broadcast { root }, Arguments { send: buff, recv: buff, count, data_type: datatype, comm, stream })
    }

    /// Sends numbers to a rank.
    fn ncclSend/pncclSend(sendbuff: *const c_void, count: usize, datatype: c_int, peer: c_int, comm: Handle, stream: Handle) {
        group::make(What::Send { peer }, Arguments { send: sendbuff, recv: std::ptr::null_mut(), count, data_type: datatype, comm, stream })
    }

    /// Receives numbers from a rank.
    fn ncclRecv/pncclRecv(recvbuff: *mut c_void, count: usize, datatype: c_int, peer: c_int, comm: Handle, stream: Handle) {
        group::make(What::Recv { peer }, Arguments { send: std::ptr::null(), recv: recvbuff, count, data_type: datatype, comm, stream })
    }

    /// Begins a group: calls that the thread makes from here on are carried out at the group's end.
    fn ncclGroupStart/pncclGroupStart() {
        group::start();
        Ok::<_, Failure>(())
    }

    /// Ends the group, and carries out its calls together.
    fn ncclGroupEnd/pncclGroupEnd() {
        group::end()
    }

    /// Ends the group without carrying out its calls, and predicts how long they would take.
    fn ncclGroupSimulateEnd/pncclGroupSimulateEnd(simInfo: *mut SimInfo) {
        simulation::end(simInfo)
    }
}

collectives! {
    /// Reduces the numbers of all ranks; each rank gets the result.
    fn ncclAllReduce/pncclAllReduce, ncclAllReduceConfig/pncclAllReduceConfig(count, op) AllReduce;

    /// Reduces the numbers of all ranks; one rank gets the result.
    fn ncclReduce/pncclReduce, ncclReduceConfig/pncclReduceConfig(count, op, root) Reduce;

    /// Reduces the numbers of all ranks; each rank gets an equal part of the result.
    fn ncclReduceScatter/pncclReduceScatter, ncclReduceScatterConfig/pncclReduceScatterConfig(recvcount, op) ReduceScatter;

    /// Gives each rank the numbers of all ranks, in the order of the ranks.
    fn ncclAllGather/pncclAllGather, ncclAllGatherConfig/pncclAllGatherConfig(sendcount) AllGather;

    /// Gives each rank its part of the numbers of every rank.
    fn ncclAlltoAll/pncclAlltoAll, ncclAlltoAllConfig/pncclAlltoAllConfig(count) AlltoAll;

    /// Gives each rank the numbers of one rank.
    fn ncclBroadcast/pncclBroadcast, ncclBroadcastConfig/pncclBroadcastConfig(count, root) Broadcast;

    /// Gives one rank the numbers of all ranks, in the order of the ranks.
    fn ncclGather/pncclGather, ncclGatherConfig/pncclGatherConfig(count, root) Gather;

    /// Gives each rank its part of the numbers of one rank.
    fn ncclScatter/pncclScatter, ncclScatterConfig/pncclScatterConfig(count, root) Scatter;
}

plain! {
    /// The version of NCCL whose interface this is. It works also in forked children, as programs may ask for it at any time.
    fn ncclGetVersion/pncclGetVersion(version: *mut c_int) -> Code {
        answered_anywhere("ncclGetVersion", || {
            // SAFETY: the caller passes NULL or the address of a number, as NCCL asks for.
            let place = unsafe { OutPointer::at(version, "version")? };
            place.set(Env::of_process()?.version.cast_signed());
            Ok(())
        })
    }

    /// The meaning of a code, as a text.
    fn ncclGetErrorString/pncclGetErrorString(result: Code) -> *const c_char {
        result.text().as_ptr()
    }

    /// Describes a failure: that of the communicator; or, if it is NULL or has not failed, that of the thread's last call; or,
    /// if that did not fail, the last one in this process. The text is valid until the thread calls this function again.
    fn ncclGetLastError/pncclGetLastError(comm: Handle) -> *const c_char {
        match comm::of(comm).ok().and_then(|comm| comm.failure()) {
            Some(failure) => answers::give(failure.text),
            None => answers::last(),
        }
    }

    /// Does nothing: the variables of the log are read once. NCCL has this function for tests of its own.
    fn ncclResetDebugInit/pncclResetDebugInit() -> () {}

    /// The team of all ranks.
    fn ncclTeamWorld/pncclTeamWorld(comm: Handle) -> Team {
        teams::world(comm)
    }

    /// The team of the ranks of this node.
    fn ncclTeamLsa/pncclTeamLsa(comm: Handle) -> Team {
        teams::lsa(comm)
    }

    /// The team of the ranks that have this rank's number on their nodes.
    fn ncclTeamRail/pncclTeamRail(comm: Handle) -> Team {
        teams::rail(comm)
    }

    /// Converts a rank's number in a team to its number among all ranks.
    fn ncclTeamRankToWorld/pncclTeamRankToWorld(comm: Handle, team: Team, rank: c_int) -> c_int {
        teams::to_world(comm, team, rank)
    }

    /// Converts a rank's number in a team to its number among the ranks of this node.
    fn ncclTeamRankToLsa/pncclTeamRankToLsa(comm: Handle, team: Team, rank: c_int) -> c_int {
        teams::to_lsa(comm, team, rank)
    }
}

/// Does nothing. NCCL exports this function too, and has no `pnccl` name for it.
#[unsafe(no_mangle)]
pub extern "C" fn ncclResetDebugInitInternal() {}
