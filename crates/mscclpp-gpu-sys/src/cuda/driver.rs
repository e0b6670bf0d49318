use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    sync::OnceLock,
};

use super::{
    AccessDesc, AllocationProp, CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec,
    CUgraphNode, CUhostFn, CUmemGenericAllocationHandle, CUmemoryPool, CUmodule, CUstream,
    CUstreamBatchMemOpParams, CUuserObject, CuResult, IpcMemHandle, Location,
};
use crate::{
    library::{LoadError, Opened},
    table::entry_points,
};

const LIBRARY: &str = "the CUDA driver library libcuda.so.1";
const ADVICE: &str = "install the NVIDIA driver, or in a container pass the GPUs in (`--gpus all`); \
     libcuda.so.1 comes with the driver, not with the CUDA toolkit";

/// Names without a folder go through the dynamic loader (`LD_LIBRARY_PATH`, the loader's cache); the folders after
/// them are those of common containers, where the cache often misses the driver.
const CANDIDATES: [&str; 7] = [
    "libcuda.so.1",
    "libcuda.so",
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "/usr/lib/aarch64-linux-gnu/libcuda.so.1",
    "/usr/lib64/libcuda.so.1",
    "/usr/local/nvidia/lib64/libcuda.so.1",
    "/usr/lib/wsl/lib/libcuda.so.1",
];

/// The oldest driver that has every function which is needed.
const SINCE: &str = "NVIDIA driver 470 (CUDA 11.4)";

impl Driver {
    /// The driver of this process: found and resolved at the first call, but not initialised.
    ///
    /// # Errors
    /// [`LoadError`], the same at every call.
    pub fn load() -> Result<&'static Self, LoadError> {
        static DRIVER: OnceLock<Result<Driver, LoadError>> = OnceLock::new();
        DRIVER
            .get_or_init(|| {
                // SAFETY: every candidate is a name of libcuda.
                let library = unsafe { Opened::first(LIBRARY, CANDIDATES.map(Into::into), ADVICE)? };
                // SAFETY: it is libcuda.
                unsafe { Self::resolve(library) }
            })
            .as_ref()
            .map_err(Clone::clone)
    }
}

entry_points! {
    /// The driver's functions. Each is documented by the driver, under the name given.
    ///
    /// Optional functions are `None` if the driver is too old to have them.
    table Driver -> CuResult, since SINCE;
    required {
        init: "cuInit" => fn(c_uint);
        driver_get_version: "cuDriverGetVersion" => fn(*mut c_int);
        get_error_name: "cuGetErrorName" => fn(CuResult, *mut *const c_char);
        get_error_string: "cuGetErrorString" => fn(CuResult, *mut *const c_char);

        device_get_count: "cuDeviceGetCount" => fn(*mut c_int);
        device_get: "cuDeviceGet" => fn(*mut CUdevice, c_int);
        device_get_name: "cuDeviceGetName" => fn(*mut c_char, c_int, CUdevice);
        device_get_uuid: "cuDeviceGetUuid_v2" | "cuDeviceGetUuid" => fn(*mut [u8; 16], CUdevice);
        device_get_pci_bus_id: "cuDeviceGetPCIBusId" => fn(*mut c_char, c_int, CUdevice);
        device_get_attribute: "cuDeviceGetAttribute" => fn(*mut c_int, c_uint, CUdevice);
        device_can_access_peer: "cuDeviceCanAccessPeer" => fn(*mut c_int, CUdevice, CUdevice);
        device_get_p2p_attribute: "cuDeviceGetP2PAttribute"
            => fn(*mut c_int, c_uint, CUdevice, CUdevice);
        device_primary_ctx_retain: "cuDevicePrimaryCtxRetain" => fn(*mut CUcontext, CUdevice);
        device_primary_ctx_release: "cuDevicePrimaryCtxRelease_v2" => fn(CUdevice);

        ctx_get_current: "cuCtxGetCurrent" => fn(*mut CUcontext);
        ctx_set_current: "cuCtxSetCurrent" => fn(CUcontext);
        ctx_get_device: "cuCtxGetDevice" => fn(*mut CUdevice);
        ctx_synchronize: "cuCtxSynchronize" => fn();
        ctx_enable_peer_access: "cuCtxEnablePeerAccess" => fn(CUcontext, c_uint);

        mem_get_info: "cuMemGetInfo_v2" => fn(*mut usize, *mut usize);
        mem_alloc: "cuMemAlloc_v2" => fn(*mut CUdeviceptr, usize);
        mem_free: "cuMemFree_v2" => fn(CUdeviceptr);
        mem_host_alloc: "cuMemHostAlloc" => fn(*mut *mut c_void, usize, c_uint);
        mem_free_host: "cuMemFreeHost" => fn(*mut c_void);
        mem_host_get_device_pointer: "cuMemHostGetDevicePointer_v2"
            => fn(*mut CUdeviceptr, *mut c_void, c_uint);
        mem_get_address_range: "cuMemGetAddressRange_v2"
            => fn(*mut CUdeviceptr, *mut usize, CUdeviceptr);
        pointer_get_attribute: "cuPointerGetAttribute" => fn(*mut c_void, c_uint, CUdeviceptr);
        memcpy_async: "cuMemcpyAsync" => fn(CUdeviceptr, CUdeviceptr, usize, CUstream);
        memcpy_htod_async: "cuMemcpyHtoDAsync_v2" => fn(CUdeviceptr, *const c_void, usize, CUstream);
        memcpy_dtoh_async: "cuMemcpyDtoHAsync_v2" => fn(*mut c_void, CUdeviceptr, usize, CUstream);
        memset_d8_async: "cuMemsetD8Async" => fn(CUdeviceptr, u8, usize, CUstream);

        mem_create: "cuMemCreate"
            => fn(*mut CUmemGenericAllocationHandle, usize, *const AllocationProp, u64);
        mem_release: "cuMemRelease" => fn(CUmemGenericAllocationHandle);
        mem_address_reserve: "cuMemAddressReserve"
            => fn(*mut CUdeviceptr, usize, usize, CUdeviceptr, u64);
        mem_address_free: "cuMemAddressFree" => fn(CUdeviceptr, usize);
        mem_map: "cuMemMap"
            => fn(CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, u64);
        mem_unmap: "cuMemUnmap" => fn(CUdeviceptr, usize);
        mem_set_access: "cuMemSetAccess" => fn(CUdeviceptr, usize, *const AccessDesc, usize);
        mem_get_access: "cuMemGetAccess" => fn(*mut u64, *const Location, CUdeviceptr);
        mem_retain_allocation_handle: "cuMemRetainAllocationHandle"
            => fn(*mut CUmemGenericAllocationHandle, *mut c_void);
        mem_export_to_shareable_handle: "cuMemExportToShareableHandle"
            => fn(*mut c_void, CUmemGenericAllocationHandle, c_uint, u64);
        mem_import_from_shareable_handle: "cuMemImportFromShareableHandle"
            => fn(*mut CUmemGenericAllocationHandle, *mut c_void, c_uint);
        mem_get_allocation_granularity: "cuMemGetAllocationGranularity"
            => fn(*mut usize, *const AllocationProp, c_uint);
        mem_get_allocation_properties_from_handle: "cuMemGetAllocationPropertiesFromHandle"
            => fn(*mut AllocationProp, CUmemGenericAllocationHandle);

        ipc_get_mem_handle: "cuIpcGetMemHandle" => fn(*mut IpcMemHandle, CUdeviceptr);
        ipc_open_mem_handle: "cuIpcOpenMemHandle_v2" => fn(*mut CUdeviceptr, IpcMemHandle, c_uint);
        ipc_close_mem_handle: "cuIpcCloseMemHandle" => fn(CUdeviceptr);

        stream_create: "cuStreamCreate" => fn(*mut CUstream, c_uint);
        stream_destroy: "cuStreamDestroy_v2" => fn(CUstream);
        stream_synchronize: "cuStreamSynchronize" => fn(CUstream);
        stream_query: "cuStreamQuery" => fn(CUstream);
        stream_get_ctx: "cuStreamGetCtx" => fn(CUstream, *mut CUcontext);
        stream_wait_event: "cuStreamWaitEvent" => fn(CUstream, CUevent, c_uint);
        stream_is_capturing: "cuStreamIsCapturing" => fn(CUstream, *mut c_uint);
        stream_get_capture_info: "cuStreamGetCaptureInfo_v2"
            => fn(CUstream, *mut c_uint, *mut u64, *mut CUgraph, *mut *const CUgraphNode, *mut usize);
        stream_begin_capture: "cuStreamBeginCapture_v2" => fn(CUstream, c_uint);
        stream_end_capture: "cuStreamEndCapture" => fn(CUstream, *mut CUgraph);
        thread_exchange_stream_capture_mode: "cuThreadExchangeStreamCaptureMode" => fn(*mut c_uint);

        event_create: "cuEventCreate" => fn(*mut CUevent, c_uint);
        event_destroy: "cuEventDestroy_v2" => fn(CUevent);
        event_record: "cuEventRecord" => fn(CUevent, CUstream);
        event_query: "cuEventQuery" => fn(CUevent);
        event_elapsed_time: "cuEventElapsedTime_v2" | "cuEventElapsedTime"
            => fn(*mut f32, CUevent, CUevent);

        graph_instantiate_with_flags: "cuGraphInstantiateWithFlags"
            => fn(*mut CUgraphExec, CUgraph, u64);
        graph_launch: "cuGraphLaunch" => fn(CUgraphExec, CUstream);
        graph_destroy: "cuGraphDestroy" => fn(CUgraph);
        graph_exec_destroy: "cuGraphExecDestroy" => fn(CUgraphExec);
        user_object_create: "cuUserObjectCreate"
            => fn(*mut CUuserObject, *mut c_void, CUhostFn, c_uint, c_uint);
        user_object_release: "cuUserObjectRelease" => fn(CUuserObject, c_uint);
        graph_retain_user_object: "cuGraphRetainUserObject" => fn(CUgraph, CUuserObject, c_uint, c_uint);

        module_load_data_ex: "cuModuleLoadDataEx"
            => fn(*mut CUmodule, *const c_void, c_uint, *mut c_uint, *mut *mut c_void);
        module_unload: "cuModuleUnload" => fn(CUmodule);
        module_get_function: "cuModuleGetFunction" => fn(*mut CUfunction, CUmodule, *const c_char);
        module_get_global: "cuModuleGetGlobal_v2"
            => fn(*mut CUdeviceptr, *mut usize, CUmodule, *const c_char);
        func_get_attribute: "cuFuncGetAttribute" => fn(*mut c_int, c_uint, CUfunction);
        func_set_attribute: "cuFuncSetAttribute" => fn(CUfunction, c_uint, c_int);
        launch_kernel: "cuLaunchKernel"
            => fn(
                CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream,
                *mut *mut c_void, *mut *mut c_void,
            );
        launch_cooperative_kernel: "cuLaunchCooperativeKernel"
            => fn(
                CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream,
                *mut *mut c_void,
            );
        occupancy_max_active_blocks_per_multiprocessor: "cuOccupancyMaxActiveBlocksPerMultiprocessor"
            => fn(*mut c_int, CUfunction, c_int, usize);
    }
    optional {
        flush_gpu_direct_rdma_writes: "cuFlushGPUDirectRDMAWrites" => fn(c_uint, c_uint);
        mem_get_handle_for_address_range: "cuMemGetHandleForAddressRange"
            => fn(*mut c_void, CUdeviceptr, usize, c_uint, u64);
        func_get_param_info: "cuFuncGetParamInfo" => fn(CUfunction, usize, *mut usize, *mut usize);
        func_load: "cuFuncLoad" => fn(CUfunction);
        mem_pool_set_access: "cuMemPoolSetAccess" => fn(CUmemoryPool, *const AccessDesc, usize);
        stream_batch_mem_op: "cuStreamBatchMemOp_v2"
            => fn(CUstream, c_uint, *mut CUstreamBatchMemOpParams, c_uint);
        stream_get_id: "cuStreamGetId" => fn(CUstream, *mut u64);
        stream_write_value64: "cuStreamWriteValue64_v2" => fn(CUstream, CUdeviceptr, u64, c_uint);
    }
}
