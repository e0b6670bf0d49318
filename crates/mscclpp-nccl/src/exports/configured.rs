//! The collectives with a configuration of the call. NULL for it makes the plain call.

use std::ffi::{c_int, c_void};

use crate::{
    abi::{CollConfig, Handle},
    answers::function,
    calls::{Arguments, What},
    group,
};

nccl! {
    /// The same as `ncclAllReduce`, with a configuration.
    fn ncclAllReduceConfig/pncclAllReduceConfig(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: c_int, op: c_int, comm: Handle, stream: Handle,
        config: *const CollConfig,
    ) {
        let arguments = Arguments { send: sendbuff, recv: recvbuff, count, data_type: datatype, comm, stream };
        group::make_with(What::AllReduce { op }, arguments, config)
    }

    /// The same as `ncclBroadcast`, with a configuration.
    fn ncclBroadcastConfig/pncclBroadcastConfig(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: c_int, root: c_int, comm: Handle, stream: Handle,
        config: *const CollConfig,
    ) {
        let arguments = Arguments { send: sendbuff, recv: recvbuff, count, data_type: datatype, comm, stream };
        group::make_with(What::Broadcast { root }, arguments, config)
    }

    /// The same as `ncclReduce`, with a configuration.
    fn ncclReduceConfig/pncclReduceConfig(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: c_int, op: c_int, root: c_int, comm: Handle, stream: Handle,
        config: *const CollConfig,
    ) {
        let arguments = Arguments { send: sendbuff, recv: recvbuff, count, data_type: datatype, comm, stream };
        group::make_with(What::Reduce { op, root }, arguments, config)
    }

    /// The same as `ncclAllGather`, with a configuration.
    fn ncclAllGatherConfig/pncclAllGatherConfig(
        sendbuff: *const c_void, recvbuff: *mut c_void, sendcount: usize, datatype: c_int, comm: Handle, stream: Handle,
        config: *const CollConfig,
    ) {
        let arguments = Arguments { send: sendbuff, recv: recvbuff, count: sendcount, data_type: datatype, comm, stream };
        group::make_with(What::AllGather, arguments, config)
    }

    /// The same as `ncclReduceScatter`, with a configuration.
    fn ncclReduceScatterConfig/pncclReduceScatterConfig(
        sendbuff: *const c_void, recvbuff: *mut c_void, recvcount: usize, datatype: c_int, op: c_int, comm: Handle, stream: Handle,
        config: *const CollConfig,
    ) {
        let arguments = Arguments { send: sendbuff, recv: recvbuff, count: recvcount, data_type: datatype, comm, stream };
        group::make_with(What::ReduceScatter { op }, arguments, config)
    }

    /// The same as `ncclAlltoAll`, with a configuration.
    fn ncclAlltoAllConfig/pncclAlltoAllConfig(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: c_int, comm: Handle, stream: Handle,
        config: *const CollConfig,
    ) {
        let arguments = Arguments { send: sendbuff, recv: recvbuff, count, data_type: datatype, comm, stream };
        group::make_with(What::AlltoAll, arguments, config)
    }

    /// The same as `ncclGather`, with a configuration.
    fn ncclGatherConfig/pncclGatherConfig(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: c_int, root: c_int, comm: Handle, stream: Handle,
        config: *const CollConfig,
    ) {
        let arguments = Arguments { send: sendbuff, recv: recvbuff, count, data_type: datatype, comm, stream };
        group::make_with(What::Gather { root }, arguments, config)
    }

    /// The same as `ncclScatter`, with a configuration.
    fn ncclScatterConfig/pncclScatterConfig(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: c_int, root: c_int, comm: Handle, stream: Handle,
        config: *const CollConfig,
    ) {
        let arguments = Arguments { send: sendbuff, recv: recvbuff, count, data_type: datatype, comm, stream };
        group::make_with(What::Scatter { root }, arguments, config)
    }
}
