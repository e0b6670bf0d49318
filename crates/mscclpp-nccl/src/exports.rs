//! The functions of NCCL 2.28.9, each under its name and, for profilers that put themselves in front, as `pnccl...`.
//!
//! What a function does is in the module that its body names. `ncclXxx` does not go through `pncclXxx` nor the other way round, as a
//! program may replace either.

#![allow(non_snake_case, reason = "the names are NCCL's")]
#![allow(clippy::missing_safety_doc, reason = "NCCL's documentation says what callers promise")]

use std::ffi::{c_char, c_int, c_void};

use crate::{
    abi::{Code, Config, Handle, Place, SimInfo, Team, UniqueId, VERSION, array},
    calls::{self, Arguments, What},
    comm::{self, Backend},
    ending,
    env::Env,
    failure::{self, Failure, answered, answered_anywhere},
    forming, group, id, memory, simulation, split,
    teams::{self, not_covered},
};

/// A function that answers a code: what its body gives, or what failed in it.
macro_rules! function {
    ($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),*) $body:block) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::missing_safety_doc, reason = "a function of a C interface")]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $crate::abi::Code {
            $crate::failure::answered(stringify!($name), || {
                // SAFETY: what the C interface asks of its callers is what the functions in the body ask for.
                #[allow(unused_unsafe, reason = "many functions take numbers alone")]
                unsafe { $body.map_err($crate::failure::Failure::from) }
            })
        }
    };
}
pub(crate) use function;

/// Functions under both names.
macro_rules! nccl {
    ($($(#[$doc:meta])* fn $name:ident/$other:ident $arguments:tt $body:block)*) => {
        $(
            nccl!(@one $(#[$doc])* $name $arguments $body);
            nccl!(@one #[doc = concat!("As [`", stringify!($name), "`].")] $other $arguments $body);
        )*
    };
    (@one $(#[$doc:meta])* $name:ident ($($argument:ident: $type:ty),* $(,)?) $body:block) => {
        function! { $(#[$doc])* fn $name($($argument: $type),*) $body }
    };
}

/// Functions that answer something else than a code.
macro_rules! plain {
    ($($(#[$doc:meta])* fn $name:ident/$other:ident($($argument:ident: $type:ty),*) -> $result:ty $body:block)*) => {
        $(
            plain!(@one $(#[$doc])* $name ($($argument: $type),*) $result $body);
            plain!(@one #[doc = concat!("As [`", stringify!($name), "`].")] $other ($($argument: $type),*) $result $body);
        )*
    };
    (@one $(#[$doc:meta])* $name:ident ($($argument:ident: $type:ty),*) $result:ty $body:block) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result $body
    };
}

nccl! {
    /// A new unique id, for all ranks of a communicator.
    fn ncclGetUniqueId/pncclGetUniqueId(uniqueId: *mut UniqueId) {
        let place = Place::at(uniqueId, "uniqueId")?;
        id::create(Env::of_process()?).map(|id| place.set(id))
    }

    /// A communicator of this rank on the thread's device.
    fn ncclCommInitRank/pncclCommInitRank(comm: *mut Handle, nranks: c_int, commId: UniqueId, rank: c_int) {
        group::noted(forming::init_rank(Place::at(comm, "comm")?, nranks, &commId, rank, std::ptr::null()))
    }

    /// The same with a configuration.
    fn ncclCommInitRankConfig/pncclCommInitRankConfig(
        comm: *mut Handle, nranks: c_int, commId: UniqueId, rank: c_int, config: *mut Config,
    ) {
        group::noted(forming::init_rank(Place::at(comm, "comm")?, nranks, &commId, rank, config))
    }

    /// The same with several ids, of which the first is enough.
    fn ncclCommInitRankScalable/pncclCommInitRankScalable(
        newcomm: *mut Handle, nranks: c_int, myrank: c_int, nId: c_int, commIds: *mut UniqueId, config: *mut Config,
    ) {
        let ids = array(commIds, nId, "commIds")?;
        let (id, others) = ids.split_first().ok_or_else(|| Failure::argument("`nId` is 0; one id is needed"))?;
        others.iter().filter(|other| *other != id).for_each(id::forget);
        group::noted(forming::init_rank(Place::at(newcomm, "newcomm")?, nranks, id, myrank, config))
    }

    /// Communicators of all ranks in this process, one for each device.
    fn ncclCommInitAll/pncclCommInitAll(comm: *mut Handle, ndev: c_int, devlist: *const c_int) {
        let n = usize::try_from(ndev).ok().filter(|n| *n > 0);
        let n = n.ok_or_else(|| Failure::argument(format!("`ndev` is {ndev}")))?;
        let places = (0..n).map(|r| Place::at(comm.wrapping_add(r), "comm")).collect::<Result<Vec<_>, _>>()?;
        let devices = if devlist.is_null() { None } else { Some(array(devlist, ndev, "devlist")?) };
        forming::init_all(&places, devices.as_deref())
    }

    /// No more calls: waits for those that were made.
    fn ncclCommFinalize/pncclCommFinalize(comm: Handle) {
        ending::finalize(comm)
    }

    /// The end of a communicator.
    fn ncclCommDestroy/pncclCommDestroy(comm: Handle) {
        ending::destroy(comm)
    }

    /// Its end at once, for all its ranks.
    fn ncclCommAbort/pncclCommAbort(comm: Handle) {
        ending::abort(comm)
    }

    /// Ends what is under way.
    fn ncclCommRevoke/pncclCommRevoke(comm: Handle, revokeFlags: c_int) {
        ending::revoke(comm, revokeFlags)
    }

    /// A communicator for each color.
    fn ncclCommSplit/pncclCommSplit(
        comm: Handle, color: c_int, key: c_int, newcomm: *mut Handle, config: *mut Config,
    ) {
        group::noted(split::split(comm, color, key, Place::at(newcomm, "newcomm")?, config))
    }

    /// A communicator without some of the ranks.
    fn ncclCommShrink/pncclCommShrink(
        comm: Handle, excludeRanksList: *mut c_int, excludeRanksCount: c_int, newcomm: *mut Handle,
        config: *mut Config, shrinkFlags: c_int,
    ) {
        let excluded = array(excludeRanksList, excludeRanksCount, "excludeRanksList")?;
        group::noted(split::shrink(comm, &excluded, Place::at(newcomm, "newcomm")?, config, shrinkFlags))
    }

    /// Whether it is ready, goes on, or has failed.
    fn ncclCommGetAsyncError/pncclCommGetAsyncError(comm: Handle, asyncError: *mut Code) {
        let place = Place::at(asyncError, "asyncError")?;
        comm::of(comm).map(|comm| place.set(comm.state()))
    }

    /// How many ranks there are.
    fn ncclCommCount/pncclCommCount(comm: Handle, count: *mut c_int) {
        let place = Place::at(count, "count")?;
        comm::of(comm)?.position().map(|(_, ranks)| place.set(comm::as_int(ranks)))
    }

    /// The number of its device in this process.
    fn ncclCommCuDevice/pncclCommCuDevice(comm: Handle, device: *mut c_int) {
        let place = Place::at(device, "device")?;
        comm::of(comm).map(|comm| place.set(comm::as_int(comm.gpu.id())))
    }

    /// The number of this rank.
    fn ncclCommUserRank/pncclCommUserRank(comm: Handle, rank: *mut c_int) {
        let place = Place::at(rank, "rank")?;
        comm::of(comm)?.position().map(|(rank, _)| place.set(comm::as_int(rank)))
    }

    /// Memory of the thread's device, all zero.
    fn ncclMemAlloc/pncclMemAlloc(ptr: *mut *mut c_void, size: usize) {
        memory::allocate(Place::at(ptr, "ptr")?, size)
    }

    /// Frees it.
    fn ncclMemFree/pncclMemFree(ptr: *mut c_void) {
        memory::free(ptr)
    }

    /// Accepted, and changes nothing: it is each rank's own, and ranks must choose alike.
    fn ncclCommRegister/pncclCommRegister(comm: Handle, buff: *mut c_void, _size: usize, handle: *mut Handle) {
        memory::register(comm, buff, Place::at(handle, "handle")?)
    }

    /// Takes it back.
    fn ncclCommDeregister/pncclCommDeregister(comm: Handle, handle: Handle) {
        memory::deregister(comm, handle)
    }

    /// Memory into which peers write.
    fn ncclCommWindowRegister/pncclCommWindowRegister(
        comm: Handle, buff: *mut c_void, size: usize, win: *mut Handle, winFlags: c_int,
    ) {
        group::noted(memory::register_window(comm, (buff, size), Place::at(win, "win")?, winFlags))
    }

    /// Takes it back.
    fn ncclCommWindowDeregister/pncclCommWindowDeregister(comm: Handle, win: Handle) {
        memory::deregister_window(comm, win)
    }

    /// An operation that multiplies this rank's numbers by a factor, and sums up.
    fn ncclRedOpCreatePreMulSum/pncclRedOpCreatePreMulSum(
        op: *mut c_int, scalar: *mut c_void, datatype: c_int, residence: c_int, comm: Handle,
    ) {
        let (place, comm) = (Place::at(op, "op")?, comm::of(comm)?);
        match comm.backend()? {
            Backend::Ours(_) => comm.operators.create(scalar, datatype, residence),
            Backend::Handed(handed) => handed.create_operator(scalar, datatype, residence),
        }
        .map(|op| place.set(op))
    }

    /// Its end.
    fn ncclRedOpDestroy/pncclRedOpDestroy(op: c_int, comm: Handle) {
        let comm = comm::of(comm)?;
        match comm.formed()? {
            Backend::Ours(_) => comm.operators.destroy(op),
            Backend::Handed(handed) => handed.destroy_operator(op),
        }
    }

    /// The numbers of all ranks, reduced, on each.
    fn ncclAllReduce/pncclAllReduce(sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: c_int, op: c_int, comm: Handle, stream: Handle) {
        calls::make(What::AllReduce { op }, Arguments { send: sendbuff, recv: recvbuff, count, data_type: datatype, comm, stream })
    }

    /// The numbers of all ranks, reduced, on one.
    fn ncclReduce/pncclReduce(sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: c_int, op: c_int, root: c_int, comm: Handle, stream: Handle) {
        calls::make(What::Reduce { op, root }, Arguments { send: sendbuff, recv: recvbuff, count, data_type: datatype, comm, stream })
    }

    /// A part of the numbers of all ranks, reduced, on each.
    fn ncclReduceScatter/pncclReduceScatter(sendbuff: *const c_void, recvbuff: *mut c_void, recvcount: usize, datatype: c_int, op: c_int, comm: Handle, stream: Handle) {
        calls::make(What::ReduceScatter { op }, Arguments { send: sendbuff, recv: recvbuff, count: recvcount, data_type: datatype, comm, stream })
    }

    /// The numbers of all ranks, behind each other, on each.
    fn ncclAllGather/pncclAllGather(sendbuff: *const c_void, recvbuff: *mut c_void, sendcount: usize, datatype: c_int, comm: Handle, stream: Handle) {
        calls::make(What::AllGather, Arguments { send: sendbuff, recv: recvbuff, count: sendcount, data_type: datatype, comm, stream })
    }

    /// A part of each rank's numbers for each rank.
    fn ncclAlltoAll/pncclAlltoAll(sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: c_int, comm: Handle, stream: Handle) {
        calls::make(What::AlltoAll, Arguments { send: sendbuff, recv: recvbuff, count, data_type: datatype, comm, stream })
    }

    /// The numbers of one rank, on each.
    fn ncclBroadcast/pncclBroadcast(sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: c_int, root: c_int, comm: Handle, stream: Handle) {
        calls::make(What::Broadcast { root }, Arguments { send: sendbuff, recv: recvbuff, count, data_type: datatype, comm, stream })
    }

    /// The same, in place.
    fn ncclBcast/pncclBcast(buff: *mut c_void, count: usize, datatype: c_int, root: c_int, comm: Handle, stream: Handle) {
        calls::make(What::Broadcast { root }, Arguments { send: buff, recv: buff, count, data_type: datatype, comm, stream })
    }

    /// The numbers of all ranks, behind each other, on one.
    fn ncclGather/pncclGather(sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: c_int, root: c_int, comm: Handle, stream: Handle) {
        calls::make(What::Gather { root }, Arguments { send: sendbuff, recv: recvbuff, count, data_type: datatype, comm, stream })
    }

    /// A part of one rank's numbers, on each.
    fn ncclScatter/pncclScatter(sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: c_int, root: c_int, comm: Handle, stream: Handle) {
        calls::make(What::Scatter { root }, Arguments { send: sendbuff, recv: recvbuff, count, data_type: datatype, comm, stream })
    }

    /// Numbers for another rank.
    fn ncclSend/pncclSend(sendbuff: *const c_void, count: usize, datatype: c_int, peer: c_int, comm: Handle, stream: Handle) {
        calls::make(What::Send { peer }, Arguments { send: sendbuff, recv: std::ptr::null_mut(), count, data_type: datatype, comm, stream })
    }

    /// Numbers of another rank.
    fn ncclRecv/pncclRecv(recvbuff: *mut c_void, count: usize, datatype: c_int, peer: c_int, comm: Handle, stream: Handle) {
        calls::make(What::Recv { peer }, Arguments { send: std::ptr::null(), recv: recvbuff, count, data_type: datatype, comm, stream })
    }

    /// What the thread calls from here on is done at the end of the group.
    fn ncclGroupStart/pncclGroupStart() {
        group::start();
        Ok::<_, Failure>(())
    }

    /// Does it, together.
    fn ncclGroupEnd/pncclGroupEnd() {
        group::end()
    }

    /// Ends the group without its calls, and says how long they would take.
    fn ncclGroupSimulateEnd/pncclGroupSimulateEnd(simInfo: *mut SimInfo) {
        simulation::end(simInfo)
    }

    /// Not covered.
    fn ncclDevCommCreate/pncclDevCommCreate(_comm: Handle, _requirements: *const c_void, _devComm: *mut c_void) {
        not_covered("communicators for kernels of NCCL's device API")
    }

    /// Not covered.
    fn ncclDevCommDestroy/pncclDevCommDestroy(_comm: Handle, _devComm: *const c_void) {
        not_covered("communicators for kernels of NCCL's device API")
    }

    /// Not covered.
    fn ncclLsaBarrierCreateRequirement/pncclLsaBarrierCreateRequirement(
        _team: Team, _nBarriers: c_int, _outHandle: *mut c_void, _outReq: *mut c_void,
    ) {
        not_covered("barriers for kernels of NCCL's device API")
    }

    /// Not covered.
    fn ncclGinBarrierCreateRequirement/pncclGinBarrierCreateRequirement(
        _comm: Handle, _team: Team, _nBarriers: c_int, _outHandle: *mut c_void, _outReq: *mut c_void,
    ) {
        not_covered("barriers for kernels of NCCL's device API")
    }

    /// Not covered.
    fn ncclLLA2ACreateRequirement/pncclLLA2ACreateRequirement(
        _nBlocks: c_int, _nSlots: c_int, _outHandle: *mut c_void, _outReq: *mut c_void,
    ) {
        not_covered("messages of kernels of NCCL's device API")
    }
}

plain! {
    /// The version of NCCL whose interface this is. Programs ask for it before they fork.
    fn ncclGetVersion/pncclGetVersion(version: *mut c_int) -> Code {
        // SAFETY: NULL, or a place for a number, as NCCL asks for.
        answered_anywhere("ncclGetVersion", || unsafe { Place::at(version, "version") }.map(|place| place.set(VERSION)))
    }

    /// What a code means.
    fn ncclGetErrorString/pncclGetErrorString(result: Code) -> *const c_char {
        result.text().as_ptr()
    }

    /// A sentence about what failed: of the communicator; or if it is NULL or has not failed, in the thread's last call; or if that did
    /// not fail, last in this process. Valid until the thread calls again.
    fn ncclGetLastError/pncclGetLastError(comm: Handle) -> *const c_char {
        let of_comm = if failure::is_foreign() { None } else { comm::of(comm).ok() };
        match of_comm.and_then(|comm| comm.failure()) {
            Some(failure) => failure::give(failure.text),
            None => failure::last(),
        }
    }

    /// The variables of the log are read once, so it does nothing. NCCL has it for tests of its own.
    fn ncclResetDebugInit/pncclResetDebugInit() -> () {}

    /// All ranks.
    fn ncclTeamWorld/pncclTeamWorld(comm: Handle) -> Team {
        teams::world(comm)
    }

    /// The ranks whose devices reach each other's memory: all.
    fn ncclTeamLsa/pncclTeamLsa(comm: Handle) -> Team {
        teams::world(comm)
    }

    /// This rank: no node has another of its number.
    fn ncclTeamRail/pncclTeamRail(comm: Handle) -> Team {
        teams::rail(comm)
    }

    /// The number among all ranks of a team's rank.
    fn ncclTeamRankToWorld/pncclTeamRankToWorld(comm: Handle, team: Team, rank: c_int) -> c_int {
        teams::to_world(comm, team, rank)
    }

    /// The number among the ranks that reach each other's memory of a team's rank.
    fn ncclTeamRankToLsa/pncclTeamRankToLsa(comm: Handle, team: Team, rank: c_int) -> c_int {
        teams::to_world(comm, team, rank)
    }

    /// Not covered: no slots.
    fn ncclLLA2ACalcSlots/pncclLLA2ACalcSlots(_maxElts: c_int, _maxEltSize: c_int) -> c_int {
        let refused = answered("ncclLLA2ACalcSlots", || not_covered("messages of kernels of NCCL's device API"));
        debug_assert_eq!(refused, Code::INVALID_USAGE);
        0
    }
}

/// NCCL exports it too, under this name alone.
#[unsafe(no_mangle)]
pub extern "C" fn ncclResetDebugInitInternal() {}
