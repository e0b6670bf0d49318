//! Numbers and structs of `nccl.h`, as programs have them.

use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    ptr,
};

pub(crate) type Handle = *mut c_void;

pub(crate) const SUCCESS: c_int = 0;
pub(crate) const SYSTEM_ERROR: c_int = 2;
pub(crate) const INVALID_ARGUMENT: c_int = 4;
pub(crate) const INVALID_USAGE: c_int = 5;
pub(crate) const REMOTE_ERROR: c_int = 6;
pub(crate) const IN_PROGRESS: c_int = 7;

pub(crate) const UNDEFINED: c_int = c_int::MIN;

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct UniqueId(pub(crate) [u8; 128]);

/// `ncclConfig_t` of NCCL 2.28.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Config {
    pub(crate) size: usize,
    pub(crate) magic: c_uint,
    pub(crate) version: c_uint,
    pub(crate) blocking: c_int,
    pub(crate) cga_cluster_size: c_int,
    pub(crate) min_ctas: c_int,
    pub(crate) max_ctas: c_int,
    pub(crate) net_name: *const c_char,
    pub(crate) split_share: c_int,
    pub(crate) traffic_class: c_int,
    pub(crate) comm_name: *const c_char,
    pub(crate) rest: [c_int; 6],
}

impl Config {
    pub(crate) const INITIAL: Self = Self {
        size: size_of::<Self>(),
        magic: 0xcafe_beef,
        version: 22_809,
        blocking: UNDEFINED,
        cga_cluster_size: UNDEFINED,
        min_ctas: UNDEFINED,
        max_ctas: UNDEFINED,
        net_name: ptr::null(),
        split_share: UNDEFINED,
        traffic_class: UNDEFINED,
        comm_name: ptr::null(),
        rest: [UNDEFINED; 6],
    };

    pub(crate) const NOT_BLOCKING: Self = Self { blocking: 0, ..Self::INITIAL };
}

/// `ncclConfigExt_t`, with the number of its union, and the rest of that.
#[repr(C)]
pub(crate) struct ConfigExt {
    pub(crate) next: *const Self,
    pub(crate) vendor_id: c_int,
    pub(crate) option_id: c_int,
    pub(crate) value: (c_int, c_int),
}

/// `ncclCollConfig_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CollConfig {
    pub(crate) size: usize,
    pub(crate) magic: c_uint,
    pub(crate) version: c_uint,
    pub(crate) ext: *const ConfigExt,
    pub(crate) min_ctas: c_int,
    pub(crate) max_ctas: c_int,
    pub(crate) nvls_ctas: c_int,
    pub(crate) cga_cluster_size: c_int,
    pub(crate) alg_selection: *const c_char,
    pub(crate) force_alg_selection: c_int,
    pub(crate) cta_policy: c_int,
    pub(crate) user_profiler_tag: u64,
    pub(crate) launch_completion_event: Handle,
}

impl CollConfig {
    pub(crate) const INITIAL: Self = Self {
        size: size_of::<Self>(),
        magic: 0xcafe_beef,
        version: 23_203,
        ext: ptr::null(),
        min_ctas: UNDEFINED,
        max_ctas: UNDEFINED,
        nvls_ctas: UNDEFINED,
        cga_cluster_size: UNDEFINED,
        alg_selection: ptr::null(),
        force_alg_selection: 1,
        cta_policy: UNDEFINED,
        user_profiler_tag: 0,
        launch_completion_event: ptr::null_mut(),
    };
}

/// `ncclEncryptionConfig_t`.
#[repr(C)]
pub(crate) struct EncryptionConfig {
    pub(crate) size: usize,
    pub(crate) magic: c_uint,
    pub(crate) version: c_uint,
    pub(crate) mode: c_int,
    pub(crate) psk: *const c_char,
}

/// `ncclWaitSignalDesc_t`: how many signals, of which peer, which signal, in which context.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct WaitSignal(pub(crate) c_int, pub(crate) c_int, pub(crate) c_int, pub(crate) c_int);

/// `ncclCommProperties_t`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct CommProperties {
    pub(crate) size: usize,
    pub(crate) magic: c_uint,
    pub(crate) version: c_uint,
    pub(crate) rank: c_int,
    pub(crate) n_ranks: c_int,
    pub(crate) cuda_dev: c_int,
    pub(crate) nvml_dev: c_int,
    pub(crate) device_api_support: bool,
    pub(crate) multimem_support: bool,
    pub(crate) gin_type: c_int,
    pub(crate) n_lsa_teams: c_int,
    pub(crate) host_rma_support: bool,
    pub(crate) railed_gin_type: c_int,
    pub(crate) comm_hash: u64,
    pub(crate) gin_min_stride: c_int,
    pub(crate) gin_connection_type: c_int,
    pub(crate) gin_support: [bool; 64],
    pub(crate) dev_comm_runtime_version_size: usize,
    pub(crate) cft: [bool; 3],
}

#[repr(C)]
pub(crate) struct SimInfo {
    pub(crate) size: usize,
    pub(crate) magic: c_uint,
    pub(crate) version: c_uint,
    pub(crate) estimated_time: f32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Team(pub(crate) c_int, pub(crate) c_int, pub(crate) c_int);
