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
    CUcontext, CUctx_st, CUdevice, CUdevice_P2PAttribute, CUdevice_attribute, CUdeviceptr, CUevent_st,
    CUfunc_st, CUfunction, CUfunction_attribute, CUgraph_st, CUgraphExec_st, CUgraphNode_st, CUjit_option,
    CUmemAccess_flags, CUmemAllocationGranularity_flags, CUmemAllocationType, CUmemGenericAllocationHandle,
    CUmemLocationType, CUmemoryPool, CUmod_st, CUmodule, CUpointer_attribute, CUstream, CUstream_flags,
    CUstream_st, CUstreamBatchMemOpParams, CUstreamBatchMemOpType, CUstreamCaptureMode,
    CUstreamWriteValue_flags, CUuserObject_st,
};
pub use driver::Driver;
pub use result::CuResult;
pub use types::*;
