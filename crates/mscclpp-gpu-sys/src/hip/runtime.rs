use std::ffi::{c_int, c_uint, c_void};

use super::HipResult;
use crate::{library::Library, table::entry_points};

const LIBRARY: Library = Library {
    description: "the HIP runtime libamdhip64.so",
    candidates: &[
        "libamdhip64.so.7",
        "libamdhip64.so.6",
        "libamdhip64.so",
        "/opt/rocm/lib/libamdhip64.so.7",
        "/opt/rocm/lib/libamdhip64.so.6",
    ],
    advice: "install ROCm 6 or 7 (package hip-runtime-amd), or in a container pass the GPUs in (`--device /dev/kfd \
             --device /dev/dri`) and use an image that has ROCm",
    since: "ROCm 6.0",
};

/// `hipDeviceProp_tR0600`. Only the name of the architecture is used, because no attribute gives it. HIP keeps this
/// layout under this name. The struct is larger than any release of HIP fills.
#[repr(C, align(8))]
pub struct DeviceProperties {
    /// The fields before the name.
    pub before: [u8; 1160],
    /// `gcnArchName`: such as `gfx942:sramecc+:xnack-`, NUL-terminated.
    pub gcn_arch_name: [u8; 256],
    /// The fields after the name, and spare space.
    pub behind: [u8; 2680],
}

impl Default for DeviceProperties {
    fn default() -> Self {
        Self { before: [0; 1160], gcn_arch_name: [0; 256], behind: [0; 2680] }
    }
}

entry_points! {
    /// HIP's functions. AMD documents each under the name given.
    ///
    /// Optional functions are `None` if the release is too old to have them.
    table Hip -> HipResult, of LIBRARY;
    types {
        Context = c_int, Stream = c_void, Event = c_void, Graph = c_void, GraphNode = c_void,
        GraphExec = c_void, UserObject = c_void, Module = c_void, Function = c_void,
    }
    common {
        init: c"hipInit", get_error_name: c"hipDrvGetErrorName", get_error_string: c"hipDrvGetErrorString",
        get_device_count: c"hipGetDeviceCount", device_get_name: c"hipDeviceGetName",
        device_get_uuid: c"hipDeviceGetUuid", device_get_pci_bus_id: c"hipDeviceGetPCIBusId",
        device_get_attribute: c"hipDeviceGetAttribute", device_can_access_peer: c"hipDeviceCanAccessPeer",
        device_get_p2p_attribute: c"hipDeviceGetP2PAttribute", get_current: c"hipGetDevice",
        set_current: c"hipSetDevice", synchronize: c"hipDeviceSynchronize",
        enable_peer_access: c"hipDeviceEnablePeerAccess", mem_get_info: c"hipMemGetInfo",
        host_alloc: c"hipHostMalloc", host_free: c"hipHostFree",
        host_get_device_pointer: c"hipHostGetDevicePointer", memset_d8_async: c"hipMemsetD8Async",
        mem_get_address_range: c"hipMemGetAddressRange", pointer_get_attribute: c"hipPointerGetAttribute",
        ipc_get_mem_handle: c"hipIpcGetMemHandle", ipc_open_mem_handle: c"hipIpcOpenMemHandle",
        ipc_close_mem_handle: c"hipIpcCloseMemHandle", stream_create: c"hipStreamCreateWithFlags",
        stream_destroy: c"hipStreamDestroy", stream_synchronize: c"hipStreamSynchronize",
        stream_query: c"hipStreamQuery", stream_get_context: c"hipStreamGetDevice",
        stream_wait_event: c"hipStreamWaitEvent", stream_is_capturing: c"hipStreamIsCapturing",
        stream_get_capture_info: c"hipStreamGetCaptureInfo_v2",
        stream_begin_capture: c"hipStreamBeginCapture", stream_end_capture: c"hipStreamEndCapture",
        thread_exchange_stream_capture_mode: c"hipThreadExchangeStreamCaptureMode",
        event_create: c"hipEventCreateWithFlags", event_destroy: c"hipEventDestroy",
        event_record: c"hipEventRecord", event_query: c"hipEventQuery",
        event_elapsed_time: c"hipEventElapsedTime", graph_instantiate: c"hipGraphInstantiateWithFlags",
        graph_launch: c"hipGraphLaunch", graph_destroy: c"hipGraphDestroy",
        graph_exec_destroy: c"hipGraphExecDestroy", user_object_create: c"hipUserObjectCreate",
        user_object_release: c"hipUserObjectRelease", graph_retain_user_object: c"hipGraphRetainUserObject",
        module_unload: c"hipModuleUnload", module_get_function: c"hipModuleGetFunction",
        module_get_global: c"hipModuleGetGlobal", launch_kernel: c"hipModuleLaunchKernel",
        launch_cooperative_kernel: c"hipModuleLaunchCooperativeKernel",
        occupancy_max_active_blocks_per_multiprocessor: c"hipModuleOccupancyMaxActiveBlocksPerMultiprocessor",
        mem_get_handle_for_address_range: c"hipMemGetHandleForAddressRange", stream_get_id: c"hipStreamGetId",
    }
    required {
        runtime_get_version: c"hipRuntimeGetVersion" => fn(*mut c_int);
        get_last_error: c"hipGetLastError" => fn();
        get_device_properties: c"hipGetDevicePropertiesR0600" => fn(*mut DeviceProperties, c_int);
        ext_malloc_with_flags: c"hipExtMallocWithFlags" => fn(*mut *mut c_void, usize, c_uint);
        free: c"hipFree" => fn(*mut c_void);
        memcpy_async: c"hipMemcpyAsync" => fn(*mut c_void, *const c_void, usize, c_uint, *mut c_void);
        stream_write_value64: c"hipStreamWriteValue64" => fn(*mut c_void, *mut c_void, u64, c_uint);
        module_load_data: c"hipModuleLoadData" => fn(*mut *mut c_void, *const c_void);
    }
    optional {}
}
