//! The CUDA driver.
//!
//! What the driver returns is never a Rust enum or a struct that holds one, because a newer driver may return values
//! that this build does not know. Results are [`CuResult`], codes are integers, and the few structs that the driver
//! fills in are declared here. cudarc's enums are used only for input, cast to `u32`.

mod driver;
mod result;
mod types;

pub use crate::IpcMemHandle;
pub use cudarc::driver::sys::{
    CUcontext, CUctx_st, CUdevice, CUdevice_P2PAttribute, CUdevice_attribute, CUdeviceptr, CUevent,
    CUevent_flags, CUevent_st, CUfunc_st, CUfunction, CUfunction_attribute, CUgraph, CUgraph_st, CUgraphExec,
    CUgraphExec_st, CUgraphNode, CUgraphNode_st, CUhostFn, CUipcMem_flags, CUjit_option, CUmemAccess_flags,
    CUmemAllocationGranularity_flags, CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocationType,
    CUmemoryPool, CUmod_st, CUmodule, CUpointer_attribute, CUstream, CUstream_flags, CUstream_st,
    CUstreamBatchMemOpParams, CUstreamBatchMemOpType, CUstreamCaptureMode, CUstreamCaptureStatus,
    CUstreamWriteValue_flags, CUuserObject, CUuserObject_flags, CUuserObject_st, CUuserObjectRetain_flags,
};
pub use driver::Driver;
pub use result::CuResult;
pub use types::{
    AccessDesc, AllocFlags, AllocationProp, CAN_USE_64_BIT_STREAM_MEM_OPS, DMA_BUF_SUPPORTED,
    FLUSH_OPTION_HOST, FLUSH_OPTION_MEMOPS, FLUSH_TARGET_CURRENT_CONTEXT, FLUSH_TO_ALL_DEVICES,
    FLUSH_TO_OWNER, HANDLE_TYPE_FABRIC, HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, Location, MEMHOSTALLOC_DEVICEMAP,
    MEMHOSTALLOC_PORTABLE, WRITES_ORDERING_ALL_DEVICES, WRITES_ORDERING_OWNER,
};
