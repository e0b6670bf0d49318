//! Structs that the driver fills in or that hold enums, with integers in place of the enums.

use std::{ffi::c_void, mem::offset_of};

use cudarc::driver::sys;

use crate::IpcMemHandle;

/// `CUmemAllocationHandleType`: a POSIX file descriptor.
pub const HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: u32 = 1;
/// `CUmemAllocationHandleType`: a fabric handle.
pub const HANDLE_TYPE_FABRIC: u32 = 8;
/// `CU_MEMHOSTALLOC_PORTABLE`: pinned for every context.
pub const MEMHOSTALLOC_PORTABLE: u32 = 1;
/// `CU_MEMHOSTALLOC_DEVICEMAP`: mapped into the devices' address space.
pub const MEMHOSTALLOC_DEVICEMAP: u32 = 2;
/// `CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS` of the second version of these operations. Before CUDA 12 this
/// name stood for another number, so the number is written out here.
pub const CAN_USE_64_BIT_STREAM_MEM_OPS: u32 = 122;

/// `CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`, which the oldest headers do not have.
pub const DMA_BUF_SUPPORTED: u32 = 124;
/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX`
pub const FLUSH_TARGET_CURRENT_CONTEXT: u32 = 0;
/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER`
pub const FLUSH_TO_OWNER: u32 = 100;
/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES`
pub const FLUSH_TO_ALL_DEVICES: u32 = 200;
/// A bit of `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS`: the host may flush.
pub const FLUSH_OPTION_HOST: i32 = 1;
/// A bit of the same attribute: a stream's memory operations may flush.
pub const FLUSH_OPTION_MEMOPS: i32 = 2;
/// `CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER`
pub const WRITES_ORDERING_OWNER: i32 = 100;
/// `CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES`
pub const WRITES_ORDERING_ALL_DEVICES: i32 = 200;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Location {
    /// A `CUmemLocationType`.
    pub kind: u32,
    /// The device's number, if `kind` says that it is a device.
    pub id: i32,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct AllocationProp {
    /// A `CUmemAllocationType`.
    pub kind: u32,
    /// Bits of `CUmemAllocationHandleType`.
    pub requested_handle_types: u32,
    /// The place of the memory.
    pub location: Location,
    /// Metadata that only Windows uses; null elsewhere.
    pub win32_handle_metadata: *mut c_void,
    /// Properties that the memory must have.
    pub alloc_flags: AllocFlags,
}

/// `CUmemAllocationProp::allocFlags`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AllocFlags {
    /// 0: not compressible.
    pub compression_type: u8,
    /// 1: may be registered with an RDMA adapter.
    pub gpu_direct_rdma_capable: u8,
    /// 0, or a bit mask of special uses.
    pub usage: u16,
    /// Reserved bytes, which must be zero.
    pub reserved: [u8; 4],
}

impl Default for AllocationProp {
    fn default() -> Self {
        Self {
            kind: 0,
            requested_handle_types: 0,
            location: Location::default(),
            win32_handle_metadata: std::ptr::null_mut(),
            alloc_flags: AllocFlags::default(),
        }
    }
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AccessDesc {
    /// The device that gets access.
    pub location: Location,
    /// A `CUmemAccess_flags`.
    pub flags: u32,
}

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Debug)]
pub struct KernelLaunch {
    /// The number of blocks in x, y and z.
    pub grid: [u32; 3],
    /// The number of threads of a block in x, y and z.
    pub block: [u32; 3],
    /// The dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// The stream.
    pub stream: sys::CUstream,
    /// The attributes of the launch.
    pub attributes: *const LaunchAttribute,
    /// The number of attributes.
    pub attribute_count: u32,
}

/// `CUlaunchAttribute`, with one of two attributes.
#[repr(C)]
#[derive(Debug)]
pub struct LaunchAttribute {
    id: u64,
    event: sys::CUevent,
    flags: u32,
    reserved: [u32; 13],
}

impl LaunchAttribute {
    /// The version of the driver that has both, also in captures, as `cuDriverGetVersion` says it.
    pub const SINCE: i32 = 12_030;

    /// `CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT`: the event, which was made without timing, is recorded when all blocks of
    /// the kernel have begun.
    #[must_use]
    pub const fn completion(event: sys::CUevent) -> Self {
        Self { id: 12, event, flags: 0, reserved: [0; 13] }
    }

    /// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`: the kernel may begin before the launch in front of it on the
    /// stream is complete.
    #[must_use]
    pub const fn programmatic() -> Self {
        // The value is an int, in the first bytes of a pointer.
        Self { id: 6, event: std::ptr::without_provenance_mut(1), flags: 0, reserved: [0; 13] }
    }
}

// These layouts are those of the driver's header, as cudarc declares them.
const _: () = {
    assert!(size_of::<KernelLaunch>() == size_of::<sys::CUlaunchConfig>());
    assert!(size_of::<LaunchAttribute>() == size_of::<sys::CUlaunchAttribute>());
    assert!(offset_of!(LaunchAttribute, event) == offset_of!(sys::CUlaunchAttribute, value));
    assert!(size_of::<Location>() == size_of::<sys::CUmemLocation>());
    assert!(size_of::<AllocationProp>() == size_of::<sys::CUmemAllocationProp>());
    assert!(align_of::<AllocationProp>() == align_of::<sys::CUmemAllocationProp>());
    assert!(size_of::<AccessDesc>() == size_of::<sys::CUmemAccessDesc>());
    assert!(size_of::<IpcMemHandle>() == size_of::<sys::CUipcMemHandle>());
    assert!(size_of::<sys::CUuuid>() == 16);
};
