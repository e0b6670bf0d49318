//! The types of NCCL's headers `nccl.h` and `nccl_device/host.h`, version 2.32.

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    mem::offset_of,
};

/// A pointer to a type that C code does not see: `ncclComm_t`, `ncclWindow_t`, `cudaStream_t` and others.
pub type Handle = *mut c_void;

/// The version that `ncclGetVersion` returns if nothing else is set, as a `NCCL_VERSION_CODE`.
pub(crate) const VERSION: u32 = 23_203;
/// `NCCL_CONFIG_UNDEF_INT`.
pub(crate) const UNDEFINED: c_int = c_int::MIN;

/// `ncclResult_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Code(pub c_int);

impl Code {
    /// `ncclSuccess`
    pub const SUCCESS: Self = Self(0);
    /// `ncclUnhandledCudaError`
    pub const UNHANDLED_CUDA_ERROR: Self = Self(1);
    /// `ncclSystemError`
    pub const SYSTEM_ERROR: Self = Self(2);
    /// `ncclInternalError`
    pub const INTERNAL_ERROR: Self = Self(3);
    /// `ncclInvalidArgument`
    pub const INVALID_ARGUMENT: Self = Self(4);
    /// `ncclInvalidUsage`
    pub const INVALID_USAGE: Self = Self(5);
    /// `ncclRemoteError`
    pub const REMOTE_ERROR: Self = Self(6);
    /// `ncclInProgress`
    pub const IN_PROGRESS: Self = Self(7);
    /// `ncclTimeout`, which programs of 2.28 do not know, so no function returns it.
    pub const TIMEOUT: Self = Self(8);

    /// The text of `ncclGetErrorString`.
    pub(crate) fn text(self) -> &'static CStr {
        match self {
            Self::SUCCESS => c"no error",
            Self::UNHANDLED_CUDA_ERROR => {
                c"a call of the GPU's driver failed (ncclGetLastError and MSCCLPP_NCCL_DEBUG=WARN say which)"
            }
            Self::SYSTEM_ERROR => {
                c"a call of the operating system failed, or the network (ncclGetLastError says which)"
            }
            Self::INTERNAL_ERROR => c"internal error: a defect in mscclpp-nccl, please report it",
            Self::INVALID_ARGUMENT => c"invalid argument (ncclGetLastError says which)",
            Self::INVALID_USAGE => c"invalid usage, or not covered (ncclGetLastError says what)",
            Self::REMOTE_ERROR => {
                c"another rank was lost, gave up or did not come (ncclGetLastError says which)"
            }
            Self::IN_PROGRESS => c"the operation goes on; poll ncclCommGetAsyncError",
            Self::TIMEOUT => c"a wait took too long",
            _ => c"unknown result code",
        }
    }
}

impl From<()> for Code {
    fn from((): ()) -> Self {
        Self::SUCCESS
    }
}

/// `ncclUniqueId`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct UniqueId(pub [u8; 128]);

/// A struct that grows at its end from version to version, and begins with its size and a mark. The size is the number of bytes
/// that the caller's struct has: those of older headers end earlier.
pub(crate) trait Versioned {
    /// The name in C.
    const NAME: &'static str;
    /// The initialiser that sets size and mark.
    const INITIALIZER: &'static str;
    const MAGIC: c_uint = 0xcafe_beef;
    /// The size of the oldest version.
    const LEAST: usize;
}

/// `ncclConfig_t`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "NCCL's documentation has them")]
pub struct Config {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub blocking: c_int,
    pub cga_cluster_size: c_int,
    pub min_ctas: c_int,
    pub max_ctas: c_int,
    pub net_name: *const c_char,
    pub split_share: c_int,
    pub traffic_class: c_int,
    pub comm_name: *const c_char,
    pub collnet_enable: c_int,
    pub cta_policy: c_int,
    pub shrink_share: c_int,
    pub nvls_ctas: c_int,
    pub n_channels_per_net_peer: c_int,
    pub nvlink_centric_sched: c_int,
    pub graph_usage_mode: c_int,
    pub num_rma_ctx: c_int,
    pub max_p2p_peers: c_int,
    pub graph_stream_ordering: c_int,
    pub launch_order_implicit: c_int,
    pub num_rma_sig: c_int,
    pub rma_eager_init: c_int,
    pub host_cft_mode: c_int,
    pub nvls_host_mode: c_int,
}

impl Versioned for Config {
    const NAME: &'static str = "ncclConfig_t";
    const INITIALIZER: &'static str = "NCCL_CONFIG_INITIALIZER";
    const LEAST: usize = offset_of!(Self, blocking) + size_of::<c_int>();
}

/// `ncclConfigExt_t`: an option of a vendor's library. The value is a union in C, of this number and two pointers.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(8))]
#[allow(missing_docs, reason = "NCCL's documentation has them")]
pub struct ConfigExt {
    pub next: *const Self,
    pub vendor_id: c_int,
    pub option_id: c_int,
    pub value: c_int,
}

/// `ncclCollConfig_t`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "NCCL's documentation has them")]
pub struct CollConfig {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub ext: *const ConfigExt,
    pub min_ctas: c_int,
    pub max_ctas: c_int,
    pub nvls_ctas: c_int,
    pub cga_cluster_size: c_int,
    pub alg_selection: *const c_char,
    pub force_alg_selection: c_int,
    pub cta_policy: c_int,
    pub user_profiler_tag: u64,
    pub launch_completion_event: Handle,
}

impl Versioned for CollConfig {
    const NAME: &'static str = "ncclCollConfig_t";
    const INITIALIZER: &'static str = "NCCL_COLLCONFIG_INITIALIZER";
    const LEAST: usize = offset_of!(Self, ext);
}

/// `ncclEncryptionConfig_t`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "NCCL's documentation has them")]
pub struct EncryptionConfig {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub mode: c_int,
    pub psk: *const c_char,
}

impl EncryptionConfig {
    /// No encryption.
    pub(crate) const NONE: Self = Self { size: 0, magic: 0, version: 0, mode: 0, psk: std::ptr::null() };
}

impl Versioned for EncryptionConfig {
    const NAME: &'static str = "ncclEncryptionConfig_t";
    const INITIALIZER: &'static str = "NCCL_ENCRYPTION_CONFIG_INITIALIZER";
    const LEAST: usize = offset_of!(Self, psk);
}

/// `ncclSimInfo_t`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "NCCL's documentation has them")]
pub struct SimInfo {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub estimated_time: f32,
}

impl Versioned for SimInfo {
    const NAME: &'static str = "ncclSimInfo_t";
    const INITIALIZER: &'static str = "NCCL_SIM_INFO_INITIALIZER";
    const MAGIC: c_uint = 0x7468_5283;
    const LEAST: usize = offset_of!(Self, estimated_time) + size_of::<f32>();
}

/// `ncclCommProperties_t`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "NCCL's documentation has them")]
pub struct CommProperties {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub rank: c_int,
    pub n_ranks: c_int,
    pub cuda_dev: c_int,
    pub nvml_dev: c_int,
    pub device_api_support: bool,
    pub multimem_support: bool,
    pub gin_type: c_int,
    pub n_lsa_teams: c_int,
    pub host_rma_support: bool,
    pub railed_gin_type: c_int,
    pub comm_hash: u64,
    pub gin_min_stride: c_int,
    pub gin_connection_type: c_int,
    pub gin_support: [bool; 64],
    pub dev_comm_runtime_version_size: usize,
    pub cft_support: bool,
    pub cft_multicast_support: bool,
    pub cft_counted_support: bool,
}

impl Versioned for CommProperties {
    const NAME: &'static str = "ncclCommProperties_t";
    const INITIALIZER: &'static str = "NCCL_COMM_PROPERTIES_INITIALIZER";
    const LEAST: usize = offset_of!(Self, rank);
}

/// `ncclWaitSignalDesc_t`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "NCCL's documentation has them")]
pub struct WaitSignal {
    pub op_cnt: c_int,
    pub peer: c_int,
    pub sig_idx: c_int,
    pub ctx: c_int,
}

/// `ncclTeam_t`: the ranks `rank + i * stride` of a communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
#[allow(missing_docs, reason = "NCCL's documentation has them")]
pub struct Team {
    pub n_ranks: c_int,
    pub rank: c_int,
    pub stride: c_int,
}
