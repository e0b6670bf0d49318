use std::ffi::{c_int, c_uint, c_void};

use super::{
    AccessDesc, AllocationProp, CUcontext, CUdevice, CUdeviceptr, CUevent_st, CUfunc_st, CUfunction,
    CUgraph_st, CUgraphExec_st, CUgraphNode_st, CUmemGenericAllocationHandle, CUmemoryPool, CUmod_st,
    CUmodule, CUstream, CUstream_st, CUstreamBatchMemOpParams, CUuserObject_st, CuResult, KernelLaunch,
    Location,
};
use crate::{library::Library, table::entry_points};

const LIBRARY: Library = Library {
    description: "the CUDA driver library libcuda.so.1",
    // The folders are those of common containers, where the loader's cache often misses the driver.
    candidates: &[
        "libcuda.so.1",
        "libcuda.so",
        "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
        "/usr/lib/aarch64-linux-gnu/libcuda.so.1",
        "/usr/lib64/libcuda.so.1",
        "/usr/local/nvidia/lib64/libcuda.so.1",
        "/usr/lib/wsl/lib/libcuda.so.1",
    ],
    advice: "install the NVIDIA driver, or in a container pass the GPUs in (`--gpus all`); libcuda.so.1 comes with the \
             driver, not with the CUDA toolkit",
    since: "NVIDIA driver 470 (CUDA 11.4)",
};

entry_points! {
    /// The driver's functions. NVIDIA documents each under the name given.
    ///
    /// Optional functions are `None` if the driver is too old to have them.
    table Driver -> CuResult, of LIBRARY;
    types {
        Context = CUcontext, Stream = CUstream_st, Event = CUevent_st, Graph = CUgraph_st,
        GraphNode = CUgraphNode_st, GraphExec = CUgraphExec_st, UserObject = CUuserObject_st,
        Module = CUmod_st, Function = CUfunc_st,
    }
    common {
        init: c"cuInit", get_error_name: c"cuGetErrorName", get_error_string: c"cuGetErrorString",
        get_device_count: c"cuDeviceGetCount", device_get_name: c"cuDeviceGetName",
        device_get_uuid: c"cuDeviceGetUuid_v2" | c"cuDeviceGetUuid",
        device_get_pci_bus_id: c"cuDeviceGetPCIBusId", device_get_attribute: c"cuDeviceGetAttribute",
        device_can_access_peer: c"cuDeviceCanAccessPeer",
        device_get_p2p_attribute: c"cuDeviceGetP2PAttribute", get_current: c"cuCtxGetCurrent",
        set_current: c"cuCtxSetCurrent", synchronize: c"cuCtxSynchronize",
        enable_peer_access: c"cuCtxEnablePeerAccess", mem_get_info: c"cuMemGetInfo_v2",
        host_alloc: c"cuMemHostAlloc", host_free: c"cuMemFreeHost",
        host_get_device_pointer: c"cuMemHostGetDevicePointer_v2", memset_d8_async: c"cuMemsetD8Async",
        mem_get_address_range: c"cuMemGetAddressRange_v2", pointer_get_attribute: c"cuPointerGetAttribute",
        ipc_get_mem_handle: c"cuIpcGetMemHandle", ipc_open_mem_handle: c"cuIpcOpenMemHandle_v2",
        ipc_close_mem_handle: c"cuIpcCloseMemHandle", stream_create: c"cuStreamCreate",
        stream_destroy: c"cuStreamDestroy_v2", stream_synchronize: c"cuStreamSynchronize",
        stream_query: c"cuStreamQuery", stream_get_context: c"cuStreamGetCtx",
        stream_wait_event: c"cuStreamWaitEvent", stream_is_capturing: c"cuStreamIsCapturing",
        stream_get_capture_info: c"cuStreamGetCaptureInfo_v2",
        stream_begin_capture: c"cuStreamBeginCapture_v2", stream_end_capture: c"cuStreamEndCapture",
        thread_exchange_stream_capture_mode: c"cuThreadExchangeStreamCaptureMode",
        event_create: c"cuEventCreate", event_destroy: c"cuEventDestroy_v2", event_record: c"cuEventRecord",
        event_query: c"cuEventQuery", event_elapsed_time: c"cuEventElapsedTime_v2" | c"cuEventElapsedTime",
        graph_instantiate: c"cuGraphInstantiateWithFlags", graph_launch: c"cuGraphLaunch",
        graph_destroy: c"cuGraphDestroy", graph_exec_destroy: c"cuGraphExecDestroy",
        user_object_create: c"cuUserObjectCreate", user_object_release: c"cuUserObjectRelease",
        graph_retain_user_object: c"cuGraphRetainUserObject", module_unload: c"cuModuleUnload",
        module_get_function: c"cuModuleGetFunction", module_get_global: c"cuModuleGetGlobal_v2",
        launch_kernel: c"cuLaunchKernel", launch_cooperative_kernel: c"cuLaunchCooperativeKernel",
        occupancy_max_active_blocks_per_multiprocessor: c"cuOccupancyMaxActiveBlocksPerMultiprocessor",
        mem_get_handle_for_address_range: c"cuMemGetHandleForAddressRange", stream_get_id: c"cuStreamGetId",
    }
    required {
        driver_get_version: c"cuDriverGetVersion" => fn(*mut c_int);
        device_get: c"cuDeviceGet" => fn(*mut CUdevice, c_int);
        device_primary_ctx_retain: c"cuDevicePrimaryCtxRetain" => fn(*mut CUcontext, CUdevice);
        device_primary_ctx_release: c"cuDevicePrimaryCtxRelease_v2" => fn(CUdevice);
        ctx_get_device: c"cuCtxGetDevice" => fn(*mut CUdevice);
        ctx_get_limit: c"cuCtxGetLimit" => fn(*mut usize, c_uint);
        ctx_set_limit: c"cuCtxSetLimit" => fn(c_uint, usize);

        mem_alloc: c"cuMemAlloc_v2" => fn(*mut CUdeviceptr, usize);
        mem_free: c"cuMemFree_v2" => fn(CUdeviceptr);
        memcpy_async: c"cuMemcpyAsync" => fn(CUdeviceptr, CUdeviceptr, usize, CUstream);
        memcpy_htod_async: c"cuMemcpyHtoDAsync_v2" => fn(CUdeviceptr, *const c_void, usize, CUstream);
        memcpy_dtoh_async: c"cuMemcpyDtoHAsync_v2" => fn(*mut c_void, CUdeviceptr, usize, CUstream);

        mem_create: c"cuMemCreate"
            => fn(*mut CUmemGenericAllocationHandle, usize, *const AllocationProp, u64);
        mem_release: c"cuMemRelease" => fn(CUmemGenericAllocationHandle);
        mem_address_reserve: c"cuMemAddressReserve"
            => fn(*mut CUdeviceptr, usize, usize, CUdeviceptr, u64);
        mem_address_free: c"cuMemAddressFree" => fn(CUdeviceptr, usize);
        mem_map: c"cuMemMap"
            => fn(CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, u64);
        mem_unmap: c"cuMemUnmap" => fn(CUdeviceptr, usize);
        mem_set_access: c"cuMemSetAccess" => fn(CUdeviceptr, usize, *const AccessDesc, usize);
        mem_get_access: c"cuMemGetAccess" => fn(*mut u64, *const Location, CUdeviceptr);
        mem_retain_allocation_handle: c"cuMemRetainAllocationHandle"
            => fn(*mut CUmemGenericAllocationHandle, *mut c_void);
        mem_export_to_shareable_handle: c"cuMemExportToShareableHandle"
            => fn(*mut c_void, CUmemGenericAllocationHandle, c_uint, u64);
        mem_import_from_shareable_handle: c"cuMemImportFromShareableHandle"
            => fn(*mut CUmemGenericAllocationHandle, *mut c_void, c_uint);
        mem_get_allocation_granularity: c"cuMemGetAllocationGranularity"
            => fn(*mut usize, *const AllocationProp, c_uint);
        mem_get_allocation_properties_from_handle: c"cuMemGetAllocationPropertiesFromHandle"
            => fn(*mut AllocationProp, CUmemGenericAllocationHandle);

        module_load_data_ex: c"cuModuleLoadDataEx"
            => fn(*mut CUmodule, *const c_void, c_uint, *mut c_uint, *mut *mut c_void);
        func_get_attribute: c"cuFuncGetAttribute" => fn(*mut c_int, c_uint, CUfunction);
        func_set_attribute: c"cuFuncSetAttribute" => fn(CUfunction, c_uint, c_int);
    }
    optional {
        launch_kernel_ex: c"cuLaunchKernelEx"
            => fn(*const KernelLaunch, CUfunction, *mut *mut c_void, *mut *mut c_void);
        flush_gpu_direct_rdma_writes: c"cuFlushGPUDirectRDMAWrites" => fn(c_uint, c_uint);
        func_get_param_info: c"cuFuncGetParamInfo" => fn(CUfunction, usize, *mut usize, *mut usize);
        func_load: c"cuFuncLoad" => fn(CUfunction);
        mem_pool_set_access: c"cuMemPoolSetAccess" => fn(CUmemoryPool, *const AccessDesc, usize);
        stream_batch_mem_op: c"cuStreamBatchMemOp_v2"
            => fn(CUstream, c_uint, *mut CUstreamBatchMemOpParams, c_uint);
        stream_write_value64: c"cuStreamWriteValue64_v2" => fn(CUstream, CUdeviceptr, u64, c_uint);
    }
}
