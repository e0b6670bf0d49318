use std::{
    ffi::{c_char, c_int, c_uint, c_ulonglong, c_void},
    sync::OnceLock,
};

use super::{Event, Function, Graph, GraphExec, HipResult, HostFn, Module, Pointer, Stream, UserObject};
use crate::{
    IpcMemHandle,
    library::{LoadError, Opened},
    table::entry_points,
};

const LIBRARY: &str = "the HIP runtime libamdhip64.so";
const ADVICE: &str = "install ROCm 6 or 7 (package hip-runtime-amd), or in a container pass the GPUs in \
     (`--device /dev/kfd --device /dev/dri`) and use an image that has ROCm";

/// Names without a folder go through the dynamic loader (`LD_LIBRARY_PATH`, the loader's cache).
const CANDIDATES: [&str; 5] = [
    "libamdhip64.so.7",
    "libamdhip64.so.6",
    "libamdhip64.so",
    "/opt/rocm/lib/libamdhip64.so.7",
    "/opt/rocm/lib/libamdhip64.so.6",
];

/// The oldest release that has every function which is needed.
const SINCE: &str = "ROCm 6.0";

/// `hipDeviceProp_tR0600`. Only the name of the architecture is used, because no attribute gives it. HIP keeps this
/// layout under this name. The struct has more room than any release writes.
#[repr(C, align(8))]
pub struct DeviceProperties {
    /// The fields before the name.
    pub before: [u8; 1160],
    /// `gcnArchName`: such as `gfx942:sramecc+:xnack-`, NUL-terminated.
    pub gcn_arch_name: [u8; 256],
    /// The fields after the name, and spare room.
    pub behind: [u8; 2680],
}

impl Default for DeviceProperties {
    fn default() -> Self {
        Self { before: [0; 1160], gcn_arch_name: [0; 256], behind: [0; 2680] }
    }
}

impl Hip {
    /// The runtime of this process: found and resolved at the first call, but not initialised.
    ///
    /// # Errors
    /// [`LoadError`], the same at every call.
    pub fn load() -> Result<&'static Self, LoadError> {
        static HIP: OnceLock<Result<Hip, LoadError>> = OnceLock::new();
        HIP.get_or_init(|| {
            // SAFETY: every candidate is a name of the HIP runtime.
            let library = unsafe { Opened::first(LIBRARY, CANDIDATES.map(Into::into), ADVICE)? };
            // SAFETY: it is the HIP runtime.
            unsafe { Self::resolve(library) }
        })
        .as_ref()
        .map_err(Clone::clone)
    }
}

entry_points! {
    /// HIP's functions. Each is documented by HIP, under the name given.
    ///
    /// Optional functions are `None` if the release is too old to have them.
    table Hip -> HipResult, since SINCE;
    required {
        init: "hipInit" => fn(c_uint);
        runtime_get_version: "hipRuntimeGetVersion" => fn(*mut c_int);
        get_last_error: "hipGetLastError" => fn();
        get_error_name: "hipDrvGetErrorName" => fn(HipResult, *mut *const c_char);
        get_error_string: "hipDrvGetErrorString" => fn(HipResult, *mut *const c_char);

        get_device_count: "hipGetDeviceCount" => fn(*mut c_int);
        get_device: "hipGetDevice" => fn(*mut c_int);
        set_device: "hipSetDevice" => fn(c_int);
        device_get_name: "hipDeviceGetName" => fn(*mut c_char, c_int, c_int);
        device_get_uuid: "hipDeviceGetUuid" => fn(*mut [u8; 16], c_int);
        device_get_pci_bus_id: "hipDeviceGetPCIBusId" => fn(*mut c_char, c_int, c_int);
        device_get_attribute: "hipDeviceGetAttribute" => fn(*mut c_int, c_uint, c_int);
        get_device_properties: "hipGetDevicePropertiesR0600" => fn(*mut DeviceProperties, c_int);
        device_can_access_peer: "hipDeviceCanAccessPeer" => fn(*mut c_int, c_int, c_int);
        device_get_p2p_attribute: "hipDeviceGetP2PAttribute" => fn(*mut c_int, c_uint, c_int, c_int);
        device_enable_peer_access: "hipDeviceEnablePeerAccess" => fn(c_int, c_uint);
        device_synchronize: "hipDeviceSynchronize" => fn();

        mem_get_info: "hipMemGetInfo" => fn(*mut usize, *mut usize);
        ext_malloc_with_flags: "hipExtMallocWithFlags" => fn(*mut Pointer, usize, c_uint);
        free: "hipFree" => fn(Pointer);
        host_malloc: "hipHostMalloc" => fn(*mut *mut c_void, usize, c_uint);
        host_free: "hipHostFree" => fn(*mut c_void);
        host_get_device_pointer: "hipHostGetDevicePointer" => fn(*mut Pointer, *mut c_void, c_uint);
        memcpy_async: "hipMemcpyAsync" => fn(*mut c_void, *const c_void, usize, c_uint, Stream);
        memset_d8_async: "hipMemsetD8Async" => fn(Pointer, u8, usize, Stream);
        mem_get_address_range: "hipMemGetAddressRange" => fn(*mut Pointer, *mut usize, Pointer);
        pointer_get_attribute: "hipPointerGetAttribute" => fn(*mut c_void, c_uint, Pointer);
        ipc_get_mem_handle: "hipIpcGetMemHandle" => fn(*mut IpcMemHandle, Pointer);
        ipc_open_mem_handle: "hipIpcOpenMemHandle" => fn(*mut Pointer, IpcMemHandle, c_uint);
        ipc_close_mem_handle: "hipIpcCloseMemHandle" => fn(Pointer);

        stream_create_with_flags: "hipStreamCreateWithFlags" => fn(*mut Stream, c_uint);
        stream_destroy: "hipStreamDestroy" => fn(Stream);
        stream_synchronize: "hipStreamSynchronize" => fn(Stream);
        stream_query: "hipStreamQuery" => fn(Stream);
        stream_wait_event: "hipStreamWaitEvent" => fn(Stream, Event, c_uint);
        stream_get_device: "hipStreamGetDevice" => fn(Stream, *mut c_int);
        stream_write_value64: "hipStreamWriteValue64" => fn(Stream, Pointer, u64, c_uint);
        stream_is_capturing: "hipStreamIsCapturing" => fn(Stream, *mut c_uint);
        stream_get_capture_info: "hipStreamGetCaptureInfo_v2"
            => fn(
                Stream, *mut c_uint, *mut c_ulonglong, *mut Graph, *mut *const *mut c_void, *mut usize,
            );
        stream_begin_capture: "hipStreamBeginCapture" => fn(Stream, c_uint);
        stream_end_capture: "hipStreamEndCapture" => fn(Stream, *mut Graph);
        thread_exchange_stream_capture_mode: "hipThreadExchangeStreamCaptureMode" => fn(*mut c_uint);

        event_create_with_flags: "hipEventCreateWithFlags" => fn(*mut Event, c_uint);
        event_destroy: "hipEventDestroy" => fn(Event);
        event_record: "hipEventRecord" => fn(Event, Stream);
        event_query: "hipEventQuery" => fn(Event);
        event_elapsed_time: "hipEventElapsedTime" => fn(*mut f32, Event, Event);

        graph_instantiate_with_flags: "hipGraphInstantiateWithFlags" => fn(*mut GraphExec, Graph, c_ulonglong);
        graph_launch: "hipGraphLaunch" => fn(GraphExec, Stream);
        graph_destroy: "hipGraphDestroy" => fn(Graph);
        graph_exec_destroy: "hipGraphExecDestroy" => fn(GraphExec);
        user_object_create: "hipUserObjectCreate"
            => fn(*mut UserObject, *mut c_void, HostFn, c_uint, c_uint);
        user_object_release: "hipUserObjectRelease" => fn(UserObject, c_uint);
        graph_retain_user_object: "hipGraphRetainUserObject" => fn(Graph, UserObject, c_uint, c_uint);

        module_load_data: "hipModuleLoadData" => fn(*mut Module, *const c_void);
        module_unload: "hipModuleUnload" => fn(Module);
        module_get_function: "hipModuleGetFunction" => fn(*mut Function, Module, *const c_char);
        module_get_global: "hipModuleGetGlobal" => fn(*mut Pointer, *mut usize, Module, *const c_char);
        module_launch_kernel: "hipModuleLaunchKernel"
            => fn(
                Function, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Stream, *mut *mut c_void,
                *mut *mut c_void,
            );
        module_launch_cooperative_kernel: "hipModuleLaunchCooperativeKernel"
            => fn(
                Function, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Stream, *mut *mut c_void,
            );
        occupancy_max_active_blocks_per_multiprocessor: "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor"
            => fn(*mut c_int, Function, c_int, usize);
    }
    optional {
        mem_get_handle_for_address_range: "hipMemGetHandleForAddressRange"
            => fn(*mut c_void, Pointer, usize, c_uint, c_ulonglong);
        stream_get_id: "hipStreamGetId" => fn(Stream, *mut c_ulonglong);
    }
}
