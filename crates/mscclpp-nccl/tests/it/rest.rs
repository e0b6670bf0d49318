//! The version, error texts, memory, teams, and the functions that are not covered.

use std::{
    ffi::{CStr, c_int},
    ptr,
};

use crate::support::nccl::{EncryptionConfig, INVALID_ARGUMENT, INVALID_USAGE, Team, nccl, ranks};

#[test]
fn the_version_is_that_of_the_interface() {
    let (nccl, mut version) = (nccl(), 0);
    // SAFETY: the function writes a number to a place for one.
    unsafe {
        nccl.ok((nccl.ncclGetVersion)(&raw mut version));
        nccl.fails(
            (nccl.ncclGetVersion)(ptr::null_mut()),
            INVALID_ARGUMENT,
            "`version`: the out argument is NULL",
        );
    }
    assert_eq!(version, 23_203);
}

#[test]
fn every_code_has_a_text() {
    let nccl = nccl();
    // SAFETY: the function returns texts that live as long as the library.
    let text =
        |code: c_int| unsafe { CStr::from_ptr((nccl.ncclGetErrorString)(code)) }.to_str().expect("UTF-8");
    let texts: std::collections::BTreeSet<_> = (0..=8).map(text).collect();
    assert_eq!(texts.len(), 9);
    assert_eq!([text(9), text(-1)], ["unknown result code"; 2]);
}

#[test]
fn memory_is_zero_and_is_freed_once() {
    let (nccl, mut memory) = (nccl(), ptr::null_mut());
    nccl.set_device(0);
    // SAFETY: an address is written to a place for one; the memory has this size until it is freed.
    unsafe {
        nccl.ok((nccl.ncclMemAlloc)(&raw mut memory, 4096));
        assert!(std::slice::from_raw_parts(memory.cast::<u8>(), 4096).iter().all(|byte| *byte == 0));
        nccl.ok((nccl.ncclMemFree)(memory));
        nccl.fails((nccl.ncclMemFree)(memory), INVALID_ARGUMENT, "ncclMemAlloc did not give");
        nccl.ok((nccl.ncclMemFree)(ptr::null_mut()));
        nccl.ok((nccl.ncclMemAlloc)(&raw mut memory, 0));
    }
    assert!(memory.is_null());
}

#[test]
fn teams_are_all_ranks_and_this_one() {
    ranks(2, |rank| {
        let (nccl, r) = (nccl(), rank.rank as c_int);
        // SAFETY: the handle is that of a live communicator.
        unsafe {
            let all = (nccl.ncclTeamWorld)(rank.comm);
            assert_eq!(all, Team(2, r, 1));
            assert_eq!((nccl.ncclTeamLsa)(rank.comm), all);
            let rail = (nccl.ncclTeamRail)(rank.comm);
            assert_eq!(rail, Team(1, 0, 2));
            assert_eq!((nccl.ncclTeamRankToWorld)(rank.comm, all, 1), 1);
            assert_eq!((nccl.ncclTeamRankToLsa)(rank.comm, rail, 0), r);
            assert_eq!((nccl.ncclTeamRankToWorld)(rank.comm, all, 2), -1);
            assert_eq!((nccl.ncclTeamWorld)(ptr::null_mut()), Team(0, -1, 0));
        }
        rank.destroy();
    });
}

#[test]
fn what_is_not_covered_says_so() {
    let nccl = nccl();
    let (null, team) = (ptr::null_mut(), Team(1, 0, 1));
    // SAFETY: the functions do not read their arguments.
    unsafe {
        let refused = |code| nccl.fails(code, INVALID_USAGE, "not covered");
        refused((nccl.ncclDevCommCreate)(null, null, null));
        refused((nccl.ncclDevCommDestroy)(null, null));
        refused((nccl.ncclLsaBarrierCreateRequirement)(team, 1, null, null));
        refused((nccl.ncclGinBarrierCreateRequirement)(null, team, 1, null, null));
        refused((nccl.ncclGinOutboxCreateRequirement)());
        refused((nccl.ncclGinInboxA2ACreateRequirement)());
        refused((nccl.ncclLLA2ACreateRequirement)(1, 1, null, null));
        refused((nccl.ncclCftBarrierCreateRequirement)(team, 1, null, null));
        let (mut at, mut id, mut offset) = (null, 0, 0);
        refused((nccl.ncclGetMultimemDevicePointer)(null, 0, 0, &raw mut at));
        refused((nccl.ncclGetMultimemDeviceLeInfo)(null, 0, &raw mut id, &raw mut offset));
        refused((nccl.ncclGetCftDeviceLeInfo)(null, 0, 0, team, &raw mut id, &raw mut offset));
        refused((nccl.ncclGetPeerDeviceLeInfo)(null, 0, 0, &raw mut id, &raw mut offset));
        assert_eq!((nccl.ncclTeamCft)(null, 0), Team(0, -1, 0));
        nccl.fails(INVALID_USAGE, INVALID_USAGE, "ncclTeamCft: not covered");
        assert_eq!((nccl.ncclTeamCftMultimem)(null), Team(0, -1, 0));
        nccl.fails(INVALID_USAGE, INVALID_USAGE, "ncclTeamCftMultimem: not covered");
        assert_eq!((nccl.ncclLLA2ACalcSlots)(1, 1), 0);
        nccl.fails(INVALID_USAGE, INVALID_USAGE, "ncclLLA2ACalcSlots: not covered");
        (nccl.ncclResetDebugInit)();
    }
}

#[test]
fn connections_are_never_encrypted() {
    let nccl = nccl();
    let with = |magic, mode| {
        let size = size_of::<EncryptionConfig>();
        let config = EncryptionConfig { size, magic, version: 23_203, mode, psk: c"a key".as_ptr() };
        // SAFETY: the struct has the size that it states.
        unsafe { (nccl.ncclSetEncryption)(&raw const config) }
    };
    nccl.ok(with(0xcafe_beef, 0));
    nccl.fails(with(0xcafe_beef, 1), INVALID_USAGE, "not covered: encrypted connections");
    nccl.fails(with(0xcafe_beef, 2), INVALID_ARGUMENT, "mode is 2");
    nccl.fails(with(1, 0), INVALID_ARGUMENT, "NCCL_ENCRYPTION_CONFIG_INITIALIZER");
}
