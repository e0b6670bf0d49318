//! The types of NCCL's headers `nccl.h` and `nccl_device/host.h`, version 2.32.

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    fmt,
    mem::offset_of,
    ptr,
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
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct UniqueId(pub [u8; 128]);

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UniqueId(hidden, it has a key)")
    }
}

/// A struct that grows at its end from version to version, and begins with its size and a mark. The size is the number of bytes
/// that the caller's struct has: those of older headers end earlier.
pub(crate) trait Versioned: Copy {
    /// The name in C.
    const NAME: &'static str;
    /// The initialiser that sets size and mark.
    const INITIALIZER: &'static str;
    const MAGIC: c_uint;
    /// The size of the oldest version.
    const LEAST: usize;
    /// The values that the initialiser gives, except for size, mark and version.
    const INITIAL: Self;
}

/// Defines structs that are [`Versioned`], with the initial values of their fields.
macro_rules! versioned {
    ($($(#[$doc:meta])* $name:ident, $initializer:literal, $magic:literal, $least:expr, {
        $($field:ident: $type:ty = $initial:expr,)*
    })*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy)]
            #[repr(C)]
            #[allow(missing_docs, reason = "NCCL's documentation has them")]
            pub struct $name {
                pub size: usize,
                pub magic: c_uint,
                pub version: c_uint,
                $(pub $field: $type,)*
            }

            impl Versioned for $name {
                const NAME: &'static str = concat!("nccl", stringify!($name), "_t");
                const INITIALIZER: &'static str = $initializer;
                const MAGIC: c_uint = $magic;
                const LEAST: usize = $least;
                const INITIAL: Self = Self { size: 0, magic: 0, version: 0, $($field: $initial,)* };
            }
        )*
    };
}

versioned! {
    /// `ncclConfig_t`.
    Config, "NCCL_CONFIG_INITIALIZER", 0xcafe_beef, offset_of!(Self, blocking) + size_of::<c_int>(), {
        blocking: c_int = UNDEFINED,
        cga_cluster_size: c_int = UNDEFINED,
        min_ctas: c_int = UNDEFINED,
        max_ctas: c_int = UNDEFINED,
        net_name: *const c_char = ptr::null(),
        split_share: c_int = UNDEFINED,
        traffic_class: c_int = UNDEFINED,
        comm_name: *const c_char = ptr::null(),
        collnet_enable: c_int = UNDEFINED,
        cta_policy: c_int = UNDEFINED,
        shrink_share: c_int = UNDEFINED,
        nvls_ctas: c_int = UNDEFINED,
        n_channels_per_net_peer: c_int = UNDEFINED,
        nvlink_centric_sched: c_int = UNDEFINED,
        graph_usage_mode: c_int = UNDEFINED,
        num_rma_ctx: c_int = UNDEFINED,
        max_p2p_peers: c_int = UNDEFINED,
        graph_stream_ordering: c_int = UNDEFINED,
        launch_order_implicit: c_int = UNDEFINED,
        num_rma_sig: c_int = UNDEFINED,
        rma_eager_init: c_int = UNDEFINED,
        host_cft_mode: c_int = UNDEFINED,
        nvls_host_mode: c_int = UNDEFINED,
    }

    /// `ncclCollConfig_t`.
    CollConfig, "NCCL_COLLCONFIG_INITIALIZER", 0xcafe_beef, offset_of!(Self, ext), {
        ext: *const ConfigExt = ptr::null(),
        min_ctas: c_int = UNDEFINED,
        max_ctas: c_int = UNDEFINED,
        nvls_ctas: c_int = UNDEFINED,
        cga_cluster_size: c_int = UNDEFINED,
        alg_selection: *const c_char = ptr::null(),
        force_alg_selection: c_int = 1,
        cta_policy: c_int = UNDEFINED,
        user_profiler_tag: u64 = 0,
        launch_completion_event: Handle = ptr::null_mut(),
    }

    /// `ncclEncryptionConfig_t`.
    EncryptionConfig, "NCCL_ENCRYPTION_CONFIG_INITIALIZER", 0xcafe_beef, offset_of!(Self, psk), {
        mode: c_int = 0,
        psk: *const c_char = ptr::null(),
    }

    /// `ncclSimInfo_t`.
    SimInfo, "NCCL_SIM_INFO_INITIALIZER", 0x7468_5283, offset_of!(Self, estimated_time) + size_of::<f32>(), {
        estimated_time: f32 = 0.0,
    }

    /// `ncclCommProperties_t`.
    CommProperties, "NCCL_COMM_PROPERTIES_INITIALIZER", 0xcafe_beef, offset_of!(Self, rank), {
        rank: c_int = 0,
        n_ranks: c_int = 0,
        cuda_dev: c_int = 0,
        nvml_dev: c_int = 0,
        device_api_support: bool = false,
        multimem_support: bool = false,
        gin_type: c_int = 0,
        n_lsa_teams: c_int = 0,
        host_rma_support: bool = false,
        railed_gin_type: c_int = 0,
        comm_hash: u64 = 0,
        gin_min_stride: c_int = 0,
        gin_connection_type: c_int = 0,
        gin_support: [bool; 64] = [false; 64],
        dev_comm_runtime_version_size: usize = 0,
        cft_support: bool = false,
        cft_multicast_support: bool = false,
        cft_counted_support: bool = false,
    }
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
