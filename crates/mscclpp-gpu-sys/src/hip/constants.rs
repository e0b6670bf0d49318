//! The values of HIP's enumerations and flags that are passed to HIP.

/// `hipDeviceAttributeMultiprocessorCount`: compute units.
pub const ATTRIBUTE_MULTIPROCESSOR_COUNT: u32 = 63;
/// `hipDeviceAttributeDmaBufSupported`. Releases before ROCm 7 do not know it.
pub const ATTRIBUTE_DMA_BUF_SUPPORTED: u32 = 93;
/// `hipDevP2PAttrNativeAtomicSupported`
pub const P2P_NATIVE_ATOMIC_SUPPORTED: u32 = 2;
/// `HIP_POINTER_ATTRIBUTE_MEMORY_TYPE`: a `hipMemoryType`.
pub const POINTER_MEMORY_TYPE: u32 = 2;
/// `HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL`: an `int`.
pub const POINTER_DEVICE_ORDINAL: u32 = 9;
/// `hipMemoryTypeDevice`
pub const MEMORY_TYPE_DEVICE: u32 = 2;
/// `hipDeviceMallocFinegrained`: coherent with other devices and the host while kernels run.
pub const DEVICE_MALLOC_FINE_GRAINED: u32 = 1;
/// `hipDeviceMallocUncached`: the same, and not in the device's L2 cache.
pub const DEVICE_MALLOC_UNCACHED: u32 = 3;
/// `hipHostMallocPortable`: pinned for every device.
pub const HOST_MALLOC_PORTABLE: u32 = 1;
/// `hipHostMallocMapped`: mapped into the devices' address space.
pub const HOST_MALLOC_MAPPED: u32 = 2;
/// `hipHostMallocCoherent`: coherent while kernels run.
pub const HOST_MALLOC_COHERENT: u32 = 0x4000_0000;
/// `hipIpcMemLazyEnablePeerAccess`
pub const IPC_LAZY_ENABLE_PEER_ACCESS: u32 = 1;
/// `hipStreamNonBlocking`
pub const STREAM_NON_BLOCKING: u32 = 1;
/// `hipEventDefault`: with timing.
pub const EVENT_DEFAULT: u32 = 0;
/// `hipEventDisableTiming`
pub const EVENT_DISABLE_TIMING: u32 = 2;
/// `hipMemcpyDefault`: the direction follows from the addresses.
pub const MEMCPY_DEFAULT: u32 = 4;
/// `hipStreamCaptureModeThreadLocal`
pub const CAPTURE_MODE_THREAD_LOCAL: u32 = 1;
/// `hipStreamCaptureModeRelaxed`
pub const CAPTURE_MODE_RELAXED: u32 = 2;
/// `hipStreamCaptureStatusNone`
pub const CAPTURE_STATUS_NONE: u32 = 0;
/// `hipStreamCaptureStatusActive`
pub const CAPTURE_STATUS_ACTIVE: u32 = 1;
/// `hipUserObjectNoDestructorSync`
pub const USER_OBJECT_NO_DESTRUCTOR_SYNC: u32 = 1;
/// `hipGraphUserObjectMove`
pub const GRAPH_USER_OBJECT_MOVE: u32 = 1;
/// `hipMemRangeHandleTypeDmaBufFd`
pub const RANGE_HANDLE_DMA_BUF: u32 = 1;
