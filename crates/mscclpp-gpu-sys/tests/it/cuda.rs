//! Checks the numbers that CUDA and HIP share against CUDA's header; `hip.rs` checks them against HIP's.

use cudarc::driver::sys;
use mscclpp_gpu_sys as ours;

macro_rules! same {
    ($($ours:ident => $kind:ident::$theirs:ident),* $(,)?) => { $(
        assert_eq!(ours::$ours, sys::$kind::$theirs as u32, stringify!($theirs));
    )* };
}

#[test]
fn constants_are_those_of_the_header() {
    same! {
        STREAM_NON_BLOCKING => CUstream_flags::CU_STREAM_NON_BLOCKING,
        EVENT_DEFAULT => CUevent_flags::CU_EVENT_DEFAULT,
        EVENT_DISABLE_TIMING => CUevent_flags::CU_EVENT_DISABLE_TIMING,
        CAPTURE_MODE_THREAD_LOCAL => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        CAPTURE_MODE_RELAXED => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
        CAPTURE_STATUS_NONE => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE,
        CAPTURE_STATUS_ACTIVE => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE,
        USER_OBJECT_NO_DESTRUCTOR_SYNC => CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC,
        GRAPH_USER_OBJECT_MOVE => CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE,
        IPC_LAZY_ENABLE_PEER_ACCESS => CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS,
        POINTER_MEMORY_TYPE => CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        POINTER_BUFFER_ID => CUpointer_attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID,
        POINTER_DEVICE_ORDINAL => CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        MEMORY_TYPE_DEVICE => CUmemorytype::CU_MEMORYTYPE_DEVICE,
        RANGE_HANDLE_DMA_BUF => CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
    }
}
