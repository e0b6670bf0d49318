//! HIP's values and layouts, as declared here, are those of published bindings.

use std::mem::offset_of;

use cubecl_hip_sys as published;
use mscclpp_gpu_sys::hip::{self, Hip, HipResult, Hiprtc, HiprtcResult};

#[test]
fn layouts_are_those_of_the_header() {
    assert_eq!(
        offset_of!(hip::DeviceProperties, gcn_arch_name),
        offset_of!(published::hipDeviceProp_tR0600, gcnArchName)
    );
    assert!(size_of::<hip::DeviceProperties>() >= size_of::<published::hipDeviceProp_tR0600>() + 1024);
    assert!(align_of::<hip::DeviceProperties>() >= align_of::<published::hipDeviceProp_tR0600>());
    assert_eq!(size_of::<hip::IpcMemHandle>(), size_of::<published::hipIpcMemHandle_t>());
    assert_eq!(align_of::<hip::IpcMemHandle>(), align_of::<published::hipIpcMemHandle_t>());
    assert_eq!(size_of::<published::hipUUID>(), 16);
}

macro_rules! same {
    ($($ours:expr => $theirs:ident),* $(,)?) => { $(
        assert_eq!($ours, published::$theirs, stringify!($theirs));
    )* };
}

#[test]
fn constants_are_those_of_the_header() {
    same! {
        hip::ATTRIBUTE_MULTIPROCESSOR_COUNT => hipDeviceAttribute_t_hipDeviceAttributeMultiprocessorCount,
        hip::ATTRIBUTE_DMA_BUF_SUPPORTED => hipDeviceAttribute_t_hipDeviceAttributeDmaBufSupported,
        hip::P2P_NATIVE_ATOMIC_SUPPORTED => hipDeviceP2PAttr_hipDevP2PAttrNativeAtomicSupported,
        hip::POINTER_MEMORY_TYPE => hipPointer_attribute_HIP_POINTER_ATTRIBUTE_MEMORY_TYPE,
        hip::POINTER_DEVICE_ORDINAL => hipPointer_attribute_HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        hip::MEMORY_TYPE_DEVICE => hipMemoryType_hipMemoryTypeDevice,
        hip::DEVICE_MALLOC_FINE_GRAINED => hipDeviceMallocFinegrained,
        hip::DEVICE_MALLOC_UNCACHED => hipDeviceMallocUncached,
        hip::HOST_MALLOC_PORTABLE => hipHostMallocPortable,
        hip::HOST_MALLOC_MAPPED => hipHostMallocMapped,
        hip::HOST_MALLOC_COHERENT => hipHostMallocCoherent,
        hip::IPC_LAZY_ENABLE_PEER_ACCESS => hipIpcMemLazyEnablePeerAccess,
        hip::STREAM_NON_BLOCKING => hipStreamNonBlocking,
        hip::EVENT_DEFAULT => hipEventDefault,
        hip::EVENT_DISABLE_TIMING => hipEventDisableTiming,
        hip::MEMCPY_DEFAULT => hipMemcpyKind_hipMemcpyDefault,
        hip::CAPTURE_MODE_THREAD_LOCAL => hipStreamCaptureMode_hipStreamCaptureModeThreadLocal,
        hip::CAPTURE_MODE_RELAXED => hipStreamCaptureMode_hipStreamCaptureModeRelaxed,
        hip::CAPTURE_STATUS_NONE => hipStreamCaptureStatus_hipStreamCaptureStatusNone,
        hip::CAPTURE_STATUS_ACTIVE => hipStreamCaptureStatus_hipStreamCaptureStatusActive,
        hip::USER_OBJECT_NO_DESTRUCTOR_SYNC => hipUserObjectFlags_hipUserObjectNoDestructorSync,
        hip::GRAPH_USER_OBJECT_MOVE => hipUserObjectRetainFlags_hipGraphUserObjectMove,
        hip::RANGE_HANDLE_DMA_BUF => hipMemRangeHandleType_hipMemRangeHandleTypeDmaBufFd,
    }
}

#[test]
fn codes_are_those_of_the_header() {
    same! {
        HipResult::SUCCESS.0 => hipError_t_hipSuccess,
        HipResult::INVALID_VALUE.0 => hipError_t_hipErrorInvalidValue,
        HipResult::OUT_OF_MEMORY.0 => hipError_t_hipErrorOutOfMemory,
        HipResult::NOT_INITIALIZED.0 => hipError_t_hipErrorNotInitialized,
        HipResult::DEINITIALIZED.0 => hipError_t_hipErrorDeinitialized,
        HipResult::INVALID_DEVICE_POINTER.0 => hipError_t_hipErrorInvalidDevicePointer,
        HipResult::INSUFFICIENT_DRIVER.0 => hipError_t_hipErrorInsufficientDriver,
        HipResult::NO_DEVICE.0 => hipError_t_hipErrorNoDevice,
        HipResult::INVALID_DEVICE.0 => hipError_t_hipErrorInvalidDevice,
        HipResult::INVALID_IMAGE.0 => hipError_t_hipErrorInvalidImage,
        HipResult::NO_BINARY_FOR_GPU.0 => hipError_t_hipErrorNoBinaryForGpu,
        HipResult::PEER_ACCESS_UNSUPPORTED.0 => hipError_t_hipErrorPeerAccessUnsupported,
        HipResult::INVALID_KERNEL_FILE.0 => hipError_t_hipErrorInvalidKernelFile,
        HipResult::INVALID_HANDLE.0 => hipError_t_hipErrorInvalidHandle,
        HipResult::NOT_FOUND.0 => hipError_t_hipErrorNotFound,
        HipResult::NOT_READY.0 => hipError_t_hipErrorNotReady,
        HipResult::ILLEGAL_ADDRESS.0 => hipError_t_hipErrorIllegalAddress,
        HipResult::PEER_ACCESS_ALREADY_ENABLED.0 => hipError_t_hipErrorPeerAccessAlreadyEnabled,
        HipResult::LAUNCH_FAILURE.0 => hipError_t_hipErrorLaunchFailure,
        HipResult::COOPERATIVE_LAUNCH_TOO_LARGE.0 => hipError_t_hipErrorCooperativeLaunchTooLarge,
        HipResult::NOT_SUPPORTED.0 => hipError_t_hipErrorNotSupported,
        HipResult::UNKNOWN.0 => hipError_t_hipErrorUnknown,
        HiprtcResult::SUCCESS.0 => hiprtcResult_HIPRTC_SUCCESS,
        HiprtcResult::OUT_OF_MEMORY.0 => hiprtcResult_HIPRTC_ERROR_OUT_OF_MEMORY,
        HiprtcResult::INVALID_PROGRAM.0 => hiprtcResult_HIPRTC_ERROR_INVALID_PROGRAM,
        HiprtcResult::INVALID_OPTION.0 => hiprtcResult_HIPRTC_ERROR_INVALID_OPTION,
        HiprtcResult::COMPILATION.0 => hiprtcResult_HIPRTC_ERROR_COMPILATION,
        HiprtcResult::INTERNAL_ERROR.0 => hiprtcResult_HIPRTC_ERROR_INTERNAL_ERROR,
    }
    assert_eq!(HipResult::NOT_READY.name(), Some("hipErrorNotReady"));
    assert_eq!(HiprtcResult::COMPILATION.name(), Some("HIPRTC_ERROR_COMPILATION"));
    assert_eq!(HipResult(123_456).name(), None);
}

/// The sizes of a function's parameters, and of its result behind them.
trait Shape {
    const SIZES: &'static [usize];
}

macro_rules! shapes {
    ($(($($parameter:ident)*))*) => { $(
        impl<$($parameter,)* Output> Shape for unsafe extern "C" fn($($parameter),*) -> Output {
            const SIZES: &'static [usize] = &[$(size_of::<$parameter>(),)* size_of::<Output>()];
        }
    )* };
}
shapes! {
    () (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) (A B C D E F G H I J) (A B C D E F G H I J K)
}

fn shape_of<F: Shape>(_function: F) -> &'static [usize] {
    F::SIZES
}

/// Of a function in a table, which need not be loaded.
fn shape_in<T, F: Shape>(_function: fn(&T) -> F) -> &'static [usize] {
    F::SIZES
}

macro_rules! same_shapes {
    ($($table:ident.$field:ident($($parameter:tt),*) => $theirs:ident),* $(,)?) => { $(
        let theirs = shape_of(published::$theirs as unsafe extern "C" fn($($parameter),*) -> _);
        assert_eq!(shape_in(|table: &$table| table.$field), theirs, stringify!($theirs));
    )* };
}

#[test]
fn functions_take_what_the_header_says() {
    same_shapes! {
        Hip.init(_) => hipInit,
        Hip.runtime_get_version(_) => hipRuntimeGetVersion,
        Hip.get_last_error() => hipGetLastError,
        Hip.get_error_name(_, _) => hipDrvGetErrorName,
        Hip.get_error_string(_, _) => hipDrvGetErrorString,
        Hip.get_device_count(_) => hipGetDeviceCount,
        Hip.get_device(_) => hipGetDevice,
        Hip.set_device(_) => hipSetDevice,
        Hip.device_get_name(_, _, _) => hipDeviceGetName,
        Hip.device_get_uuid(_, _) => hipDeviceGetUuid,
        Hip.device_get_pci_bus_id(_, _, _) => hipDeviceGetPCIBusId,
        Hip.device_get_attribute(_, _, _) => hipDeviceGetAttribute,
        Hip.get_device_properties(_, _) => hipGetDevicePropertiesR0600,
        Hip.device_can_access_peer(_, _, _) => hipDeviceCanAccessPeer,
        Hip.device_get_p2p_attribute(_, _, _, _) => hipDeviceGetP2PAttribute,
        Hip.device_enable_peer_access(_, _) => hipDeviceEnablePeerAccess,
        Hip.device_synchronize() => hipDeviceSynchronize,
        Hip.mem_get_info(_, _) => hipMemGetInfo,
        Hip.ext_malloc_with_flags(_, _, _) => hipExtMallocWithFlags,
        Hip.free(_) => hipFree,
        Hip.host_malloc(_, _, _) => hipHostMalloc,
        Hip.host_free(_) => hipHostFree,
        Hip.host_get_device_pointer(_, _, _) => hipHostGetDevicePointer,
        Hip.memcpy_async(_, _, _, _, _) => hipMemcpyAsync,
        Hip.memset_d8_async(_, _, _, _) => hipMemsetD8Async,
        Hip.mem_get_address_range(_, _, _) => hipMemGetAddressRange,
        Hip.pointer_get_attribute(_, _, _) => hipPointerGetAttribute,
        Hip.ipc_get_mem_handle(_, _) => hipIpcGetMemHandle,
        Hip.ipc_open_mem_handle(_, _, _) => hipIpcOpenMemHandle,
        Hip.ipc_close_mem_handle(_) => hipIpcCloseMemHandle,
        Hip.stream_create_with_flags(_, _) => hipStreamCreateWithFlags,
        Hip.stream_destroy(_) => hipStreamDestroy,
        Hip.stream_synchronize(_) => hipStreamSynchronize,
        Hip.stream_query(_) => hipStreamQuery,
        Hip.stream_wait_event(_, _, _) => hipStreamWaitEvent,
        Hip.stream_get_device(_, _) => hipStreamGetDevice,
        Hip.stream_write_value64(_, _, _, _) => hipStreamWriteValue64,
        Hip.stream_is_capturing(_, _) => hipStreamIsCapturing,
        Hip.stream_get_capture_info(_, _, _, _, _, _) => hipStreamGetCaptureInfo_v2,
        Hip.stream_begin_capture(_, _) => hipStreamBeginCapture,
        Hip.stream_end_capture(_, _) => hipStreamEndCapture,
        Hip.thread_exchange_stream_capture_mode(_) => hipThreadExchangeStreamCaptureMode,
        Hip.event_create_with_flags(_, _) => hipEventCreateWithFlags,
        Hip.event_destroy(_) => hipEventDestroy,
        Hip.event_record(_, _) => hipEventRecord,
        Hip.event_query(_) => hipEventQuery,
        Hip.event_elapsed_time(_, _, _) => hipEventElapsedTime,
        Hip.graph_instantiate_with_flags(_, _, _) => hipGraphInstantiateWithFlags,
        Hip.graph_launch(_, _) => hipGraphLaunch,
        Hip.graph_destroy(_) => hipGraphDestroy,
        Hip.graph_exec_destroy(_) => hipGraphExecDestroy,
        Hip.user_object_create(_, _, _, _, _) => hipUserObjectCreate,
        Hip.user_object_release(_, _) => hipUserObjectRelease,
        Hip.graph_retain_user_object(_, _, _, _) => hipGraphRetainUserObject,
        Hip.module_load_data(_, _) => hipModuleLoadData,
        Hip.module_unload(_) => hipModuleUnload,
        Hip.module_get_function(_, _, _) => hipModuleGetFunction,
        Hip.module_get_global(_, _, _, _) => hipModuleGetGlobal,
        Hip.module_launch_kernel(_, _, _, _, _, _, _, _, _, _, _) => hipModuleLaunchKernel,
        Hip.module_launch_cooperative_kernel(_, _, _, _, _, _, _, _, _, _) => hipModuleLaunchCooperativeKernel,
        Hip.occupancy_max_active_blocks_per_multiprocessor(_, _, _, _) => hipModuleOccupancyMaxActiveBlocksPerMultiprocessor,
        Hiprtc.version(_, _) => hiprtcVersion,
        Hiprtc.create_program(_, _, _, _, _, _) => hiprtcCreateProgram,
        Hiprtc.destroy_program(_) => hiprtcDestroyProgram,
        Hiprtc.compile_program(_, _, _) => hiprtcCompileProgram,
        Hiprtc.get_code_size(_, _) => hiprtcGetCodeSize,
        Hiprtc.get_code(_, _) => hiprtcGetCode,
        Hiprtc.get_program_log_size(_, _) => hiprtcGetProgramLogSize,
        Hiprtc.get_program_log(_, _) => hiprtcGetProgramLog,
    }
}

/// Where there is no ROCm, the error says what is missing.
#[test]
fn a_machine_without_rocm_gets_a_clean_error() {
    if let Err(error) = hip::Hip::load() {
        let message = error.to_string();
        assert!(message.contains("libamdhip64.so.7") && message.contains("ROCm"), "{message}");
    }
    if let Err(error) = hip::Hiprtc::load() {
        let message = error.to_string();
        assert!(message.contains("libhiprtc.so.7") && message.contains("ROCm"), "{message}");
    }
}
