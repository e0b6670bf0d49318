//! Functions that need hardware or parts of NCCL that this library does not use: its device API, multimem, CFT, GIN and
//! encryption. They fail, as NCCL's do on a machine without these.

use std::ffi::{c_int, c_void};

use crate::{
    abi::{Code, EncryptionConfig, Handle, Team},
    answers::{answered, function},
    failure::Failure,
    pointers::versioned,
    teams::{self, not_covered},
};

nccl! {
    /// Refuses the call, which is not covered.
    fn ncclDevCommCreate/pncclDevCommCreate(_comm: Handle, _requirements: *const c_void, _devComm: *mut c_void) {
        not_covered("communicators for kernels of NCCL's device API")
    }

    /// Refuses the call, which is not covered.
    fn ncclDevCommDestroy/pncclDevCommDestroy(_comm: Handle, _devComm: *const c_void) {
        not_covered("communicators for kernels of NCCL's device API")
    }

    /// Refuses the call, which is not covered.
    fn ncclLsaBarrierCreateRequirement/pncclLsaBarrierCreateRequirement(
        _team: Team, _nBarriers: c_int, _outHandle: *mut c_void, _outReq: *mut c_void,
    ) {
        not_covered("barriers for kernels of NCCL's device API")
    }

    /// Refuses the call, which is not covered.
    fn ncclGinBarrierCreateRequirement/pncclGinBarrierCreateRequirement(
        _comm: Handle, _team: Team, _nBarriers: c_int, _outHandle: *mut c_void, _outReq: *mut c_void,
    ) {
        not_covered("barriers for kernels of NCCL's device API")
    }

    /// Refuses the call, which is not covered.
    fn ncclLLA2ACreateRequirement/pncclLLA2ACreateRequirement(
        _nBlocks: c_int, _nSlots: c_int, _outHandle: *mut c_void, _outReq: *mut c_void,
    ) {
        not_covered("messages of kernels of NCCL's device API")
    }

    /// Refuses the call, which is not covered.
    fn ncclCftBarrierCreateRequirement/pncclCftBarrierCreateRequirement(
        _team: Team, _nBarriers: c_int, _outHandle: *mut c_void, _outReq: *mut c_void,
    ) {
        not_covered("barriers for kernels of NCCL's device API")
    }

    /// Refuses the call, which is not covered. Its arguments are not read.
    fn ncclGinOutboxCreateRequirement/pncclGinOutboxCreateRequirement() {
        not_covered("messages of kernels of NCCL's device API")
    }

    /// Refuses the call, which is not covered. Its arguments are not read.
    fn ncclGinInboxA2ACreateRequirement/pncclGinInboxA2ACreateRequirement() {
        not_covered("messages of kernels of NCCL's device API")
    }

    /// Refuses the call, which is not covered. Its other arguments are not read.
    fn ncclGetMultimemDevicePointer/pncclGetMultimemDevicePointer(_window: Handle, _offset: usize) {
        not_covered("multimem addresses of windows")
    }

    /// Refuses the call, which is not covered.
    fn ncclGetMultimemDeviceLeInfo/pncclGetMultimemDeviceLeInfo(
        _window: Handle, _offset: usize, _leId: *mut u32, _leOffset: *mut usize,
    ) {
        not_covered("CFT addresses of windows")
    }

    /// Refuses the call, which is not covered.
    fn ncclGetCftDeviceLeInfo/pncclGetCftDeviceLeInfo(
        _window: Handle, _offset: usize, _peerCft: c_int, _cftTeam: Team, _leId: *mut u32, _leOffset: *mut usize,
    ) {
        not_covered("CFT addresses of windows")
    }

    /// Refuses the call, which is not covered.
    fn ncclGetPeerDeviceLeInfo/pncclGetPeerDeviceLeInfo(
        _window: Handle, _offset: usize, _peerWorld: c_int, _leId: *mut u32, _leOffset: *mut usize,
    ) {
        not_covered("CFT addresses of windows")
    }

    /// Accepts that connections are not encrypted, and refuses everything else: they never are.
    fn ncclSetEncryption/pncclSetEncryption(config: *const EncryptionConfig) {
        if config.is_null() {
            return Err(Failure::argument("`config` is NULL"));
        }
        match versioned(config, EncryptionConfig::NONE)?.mode {
            0 => Ok(()),
            1 => not_covered("encrypted connections"),
            other => Err(Failure::argument(format!("mode is {other} in ncclEncryptionConfig_t; 0 and 1 are known"))),
        }
    }
}

plain! {
    /// Refuses the call, which is not covered, and returns the empty team.
    fn ncclTeamCft/pncclTeamCft(_comm: Handle, _mode: c_int) -> Team {
        refused("ncclTeamCft", "teams for CFT");
        teams::NONE
    }

    /// Refuses the call, which is not covered, and returns the empty team.
    fn ncclTeamCftMultimem/pncclTeamCftMultimem(_comm: Handle) -> Team {
        refused("ncclTeamCftMultimem", "teams for CFT");
        teams::NONE
    }

    /// Refuses the call, which is not covered, and returns 0.
    fn ncclLLA2ACalcSlots/pncclLLA2ACalcSlots(_maxElts: c_int, _maxEltSize: c_int) -> c_int {
        refused("ncclLLA2ACalcSlots", "messages of kernels of NCCL's device API");
        0
    }
}

/// Keeps the failure of a function that returns no code, for `ncclGetLastError`.
fn refused(name: &str, what: &str) {
    let refused = answered(name, || not_covered(what));
    debug_assert_eq!(refused, Code::INVALID_USAGE);
}
