//! Functions that need hardware or parts of NCCL that this library does not use: its device API, multimem, CFT, GIN and
//! encryption. They fail, as NCCL's do on a machine without these.

use std::ffi::c_int;

use crate::{
    abi::{Code, EncryptionConfig, Handle, Team},
    answers::{answered, function},
    failure::Failure,
    pointers::versioned,
    teams::{self, not_covered},
};

/// Defines functions that refuse the call. They read no arguments, and so have none here: in C, the caller gives its arguments
/// room, and takes it back.
macro_rules! refused {
    ($($name:ident/$other:ident: $what:literal;)*) => {
        nccl! {
            $(
                /// Refuses the call, which is not covered.
                fn $name/$other() {
                    not_covered($what)
                }
            )*
        }
    };
}

refused! {
    ncclDevCommCreate/pncclDevCommCreate: "communicators for kernels of NCCL's device API";
    ncclDevCommDestroy/pncclDevCommDestroy: "communicators for kernels of NCCL's device API";
    ncclLsaBarrierCreateRequirement/pncclLsaBarrierCreateRequirement: "barriers for kernels of NCCL's device API";
    ncclGinBarrierCreateRequirement/pncclGinBarrierCreateRequirement: "barriers for kernels of NCCL's device API";
    ncclLLA2ACreateRequirement/pncclLLA2ACreateRequirement: "messages of kernels of NCCL's device API";
    ncclCftBarrierCreateRequirement/pncclCftBarrierCreateRequirement: "barriers for kernels of NCCL's device API";
    ncclGinOutboxCreateRequirement/pncclGinOutboxCreateRequirement: "messages of kernels of NCCL's device API";
    ncclGinInboxA2ACreateRequirement/pncclGinInboxA2ACreateRequirement: "messages of kernels of NCCL's device API";
    ncclGetMultimemDevicePointer/pncclGetMultimemDevicePointer: "multimem addresses of windows";
    ncclGetMultimemDeviceLeInfo/pncclGetMultimemDeviceLeInfo: "CFT addresses of windows";
    ncclGetCftDeviceLeInfo/pncclGetCftDeviceLeInfo: "CFT addresses of windows";
    ncclGetPeerDeviceLeInfo/pncclGetPeerDeviceLeInfo: "CFT addresses of windows";
}

nccl! {
    /// Accepts that connections are not encrypted, and refuses everything else: they never are.
    fn ncclSetEncryption/pncclSetEncryption(config: *const EncryptionConfig) {
        if config.is_null() {
            return Err(Failure::argument("`config` is NULL"));
        }
        match versioned(config)?.mode {
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
