//! Calls of one rank alone.

use std::ffi::{c_int, c_uint, c_void};

use crate::{
    abi::{Handle, WaitSignal},
    answers::function,
    group,
    one_sided::{self, Source},
    pointers::array,
};

nccl! {
    /// Writes numbers into a peer's window, and then signals the peer.
    fn ncclPutSignal/pncclPutSignal(
        localbuff: *const c_void, count: usize, datatype: c_int, peer: c_int, peerWin: Handle, peerWinOffset: usize,
        sigIdx: c_int, ctx: c_int, flags: c_uint, comm: Handle, stream: Handle,
    ) {
        let source = Source { from: localbuff, count, data_type: datatype, window: peerWin, offset: peerWinOffset };
        group::make_one_sided(one_sided::send(Some(source), (peer, sigIdx, ctx), flags, (comm, stream)))
    }

    /// Signals a peer.
    fn ncclSignal/pncclSignal(
        peer: c_int, sigIdx: c_int, ctx: c_int, flags: c_uint, comm: Handle, stream: Handle,
    ) {
        group::make_one_sided(one_sided::send(None, (peer, sigIdx, ctx), flags, (comm, stream)))
    }

    /// Waits for signals.
    fn ncclWaitSignal/pncclWaitSignal(
        nDesc: c_int, signalDescs: *mut WaitSignal, comm: Handle, stream: Handle,
    ) {
        let waits = array(signalDescs, nDesc, "signalDescs");
        group::make_one_sided(waits.and_then(|waits| one_sided::wait(&waits, (comm, stream))))
    }
}
