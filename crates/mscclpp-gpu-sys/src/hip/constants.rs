//! Values of enumerations and flags that only HIP has.

/// `hipDeviceAttributeMultiprocessorCount`: the number of compute units.
pub const ATTRIBUTE_MULTIPROCESSOR_COUNT: u32 = 63;
/// `hipDeviceAttributeDmaBufSupported`. Releases before ROCm 7 do not know it.
pub const ATTRIBUTE_DMA_BUF_SUPPORTED: u32 = 93;
/// `hipDevP2PAttrNativeAtomicSupported`
pub const P2P_NATIVE_ATOMIC_SUPPORTED: u32 = 2;
/// `hipDeviceMallocFinegrained`: coherent with other devices and the host while kernels run.
pub const DEVICE_MALLOC_FINE_GRAINED: u32 = 1;
/// `hipDeviceMallocUncached`: coherent like fine-grained memory, and not kept in the device's L2 cache.
pub const DEVICE_MALLOC_UNCACHED: u32 = 3;
/// `hipHostMallocPortable`: pinned for every device.
pub const HOST_MALLOC_PORTABLE: u32 = 1;
/// `hipHostMallocMapped`: mapped into the devices' address space.
pub const HOST_MALLOC_MAPPED: u32 = 2;
/// `hipHostMallocCoherent`: coherent while kernels run.
pub const HOST_MALLOC_COHERENT: u32 = 0x4000_0000;
/// `hipMemcpyDefault`: the direction follows from the addresses.
pub const MEMCPY_DEFAULT: u32 = 4;
