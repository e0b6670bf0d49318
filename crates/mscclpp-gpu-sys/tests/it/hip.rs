//! Checks the values and layouts declared for HIP against published bindings.

use std::mem::offset_of;

use cubecl_hip_sys as published;
use mscclpp_gpu_sys::{
    self as ours, Code,
    hip::{self, Hip, HipResult},
    rtc::{Rtc, RtcResult},
};

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
        ours::POINTER_MEMORY_TYPE => hipPointer_attribute_HIP_POINTER_ATTRIBUTE_MEMORY_TYPE,
        ours::POINTER_BUFFER_ID => hipPointer_attribute_HIP_POINTER_ATTRIBUTE_BUFFER_ID,
        ours::POINTER_DEVICE_ORDINAL => hipPointer_attribute_HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        ours::MEMORY_TYPE_DEVICE => hipMemoryType_hipMemoryTypeDevice,
        hip::DEVICE_MALLOC_FINE_GRAINED => hipDeviceMallocFinegrained,
        hip::DEVICE_MALLOC_UNCACHED => hipDeviceMallocUncached,
        hip::HOST_MALLOC_PORTABLE => hipHostMallocPortable,
        hip::HOST_MALLOC_MAPPED => hipHostMallocMapped,
        hip::HOST_MALLOC_COHERENT => hipHostMallocCoherent,
        ours::IPC_LAZY_ENABLE_PEER_ACCESS => hipIpcMemLazyEnablePeerAccess,
        ours::STREAM_NON_BLOCKING => hipStreamNonBlocking,
        ours::EVENT_DEFAULT => hipEventDefault,
        ours::EVENT_DISABLE_TIMING => hipEventDisableTiming,
        hip::MEMCPY_DEFAULT => hipMemcpyKind_hipMemcpyDefault,
        ours::CAPTURE_MODE_THREAD_LOCAL => hipStreamCaptureMode_hipStreamCaptureModeThreadLocal,
        ours::CAPTURE_MODE_RELAXED => hipStreamCaptureMode_hipStreamCaptureModeRelaxed,
        ours::CAPTURE_STATUS_NONE => hipStreamCaptureStatus_hipStreamCaptureStatusNone,
        ours::CAPTURE_STATUS_ACTIVE => hipStreamCaptureStatus_hipStreamCaptureStatusActive,
        ours::USER_OBJECT_NO_DESTRUCTOR_SYNC => hipUserObjectFlags_hipUserObjectNoDestructorSync,
        ours::GRAPH_USER_OBJECT_MOVE => hipUserObjectRetainFlags_hipGraphUserObjectMove,
        ours::RANGE_HANDLE_DMA_BUF => hipMemRangeHandleType_hipMemRangeHandleTypeDmaBufFd,
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
    RtcResult::SUCCESS.0 => hiprtcResult_HIPRTC_SUCCESS,
    RtcResult::INVALID_PROGRAM.0 => hiprtcResult_HIPRTC_ERROR_INVALID_PROGRAM,
    RtcResult::INVALID_OPTION.0 => hiprtcResult_HIPRTC_ERROR_INVALID_OPTION,
    RtcResult::COMPILATION.0 => hiprtcResult_HIPRTC_ERROR_COMPILATION,
    }
    assert_eq!(HipResult::NOT_READY.name(), Some("hipErrorNotReady"));
    assert_eq!(HipResult(123_456).name(), None);
}

/// The sizes of a function's parameters, followed by that of its result.
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

/// The shape of a function in a table, which need not be loaded.
fn shape_in<T, F: Shape>(_function: fn(&T) -> F) -> &'static [usize] {
    F::SIZES
}

macro_rules! same_shapes {
    ($($table:ident$(.$field:tt)+($($parameter:tt),*) => $theirs:ident),* $(,)?) => { $(
        let theirs = shape_of(published::$theirs as unsafe extern "C" fn($($parameter),*) -> _);
        assert_eq!(shape_in(|table: &$table| table$(.$field)+), theirs, stringify!($theirs));
    )* };
}

#[test]
fn functions_take_what_the_header_says() {
    same_shapes! {
        Hip.common.init.1(_) => hipInit,
        Hip.runtime_get_version(_) => hipRuntimeGetVersion,
        Hip.get_last_error() => hipGetLastError,
        Hip.common.get_error_name.1(_, _) => hipDrvGetErrorName,
        Hip.common.get_error_string.1(_, _) => hipDrvGetErrorString,
        Hip.common.get_device_count.1(_) => hipGetDeviceCount,
        Hip.common.get_current.1(_) => hipGetDevice,
        Hip.common.set_current.1(_) => hipSetDevice,
        Hip.common.device_get_name.1(_, _, _) => hipDeviceGetName,
        Hip.common.device_get_uuid.1(_, _) => hipDeviceGetUuid,
        Hip.common.device_get_pci_bus_id.1(_, _, _) => hipDeviceGetPCIBusId,
        Hip.common.device_get_attribute.1(_, _, _) => hipDeviceGetAttribute,
        Hip.get_device_properties(_, _) => hipGetDevicePropertiesR0600,
        Hip.common.device_can_access_peer.1(_, _, _) => hipDeviceCanAccessPeer,
        Hip.common.device_get_p2p_attribute.1(_, _, _, _) => hipDeviceGetP2PAttribute,
        Hip.common.enable_peer_access.1(_, _) => hipDeviceEnablePeerAccess,
        Hip.common.synchronize.1() => hipDeviceSynchronize,
        Hip.common.mem_get_info.1(_, _) => hipMemGetInfo,
        Hip.ext_malloc_with_flags(_, _, _) => hipExtMallocWithFlags,
        Hip.free(_) => hipFree,
        Hip.common.host_alloc.1(_, _, _) => hipHostMalloc,
        Hip.common.host_free.1(_) => hipHostFree,
        Hip.common.host_get_device_pointer.1(_, _, _) => hipHostGetDevicePointer,
        Hip.memcpy_async(_, _, _, _, _) => hipMemcpyAsync,
        Hip.common.memset_d8_async.1(_, _, _, _) => hipMemsetD8Async,
        Hip.common.mem_get_address_range.1(_, _, _) => hipMemGetAddressRange,
        Hip.common.pointer_get_attribute.1(_, _, _) => hipPointerGetAttribute,
        Hip.common.ipc_get_mem_handle.1(_, _) => hipIpcGetMemHandle,
        Hip.common.ipc_open_mem_handle.1(_, _, _) => hipIpcOpenMemHandle,
        Hip.common.ipc_close_mem_handle.1(_) => hipIpcCloseMemHandle,
        Hip.common.stream_create.1(_, _) => hipStreamCreateWithFlags,
        Hip.common.stream_destroy.1(_) => hipStreamDestroy,
        Hip.common.stream_synchronize.1(_) => hipStreamSynchronize,
        Hip.common.stream_query.1(_) => hipStreamQuery,
        Hip.common.stream_wait_event.1(_, _, _) => hipStreamWaitEvent,
        Hip.common.stream_get_context.1(_, _) => hipStreamGetDevice,
        Hip.stream_write_value64(_, _, _, _) => hipStreamWriteValue64,
        Hip.common.stream_is_capturing.1(_, _) => hipStreamIsCapturing,
        Hip.common.stream_get_capture_info.1(_, _, _, _, _, _) => hipStreamGetCaptureInfo_v2,
        Hip.common.stream_begin_capture.1(_, _) => hipStreamBeginCapture,
        Hip.common.stream_end_capture.1(_, _) => hipStreamEndCapture,
        Hip.common.thread_exchange_stream_capture_mode.1(_) => hipThreadExchangeStreamCaptureMode,
        Hip.common.event_create.1(_, _) => hipEventCreateWithFlags,
        Hip.common.event_destroy.1(_) => hipEventDestroy,
        Hip.common.event_record.1(_, _) => hipEventRecord,
        Hip.common.event_query.1(_) => hipEventQuery,
        Hip.common.event_elapsed_time.1(_, _, _) => hipEventElapsedTime,
        Hip.common.graph_instantiate.1(_, _, _) => hipGraphInstantiateWithFlags,
        Hip.common.graph_launch.1(_, _) => hipGraphLaunch,
        Hip.common.graph_destroy.1(_) => hipGraphDestroy,
        Hip.common.graph_exec_destroy.1(_) => hipGraphExecDestroy,
        Hip.common.user_object_create.1(_, _, _, _, _) => hipUserObjectCreate,
        Hip.common.user_object_release.1(_, _) => hipUserObjectRelease,
        Hip.common.graph_retain_user_object.1(_, _, _, _) => hipGraphRetainUserObject,
        Hip.module_load_data(_, _) => hipModuleLoadData,
        Hip.common.module_unload.1(_) => hipModuleUnload,
        Hip.common.module_get_function.1(_, _, _) => hipModuleGetFunction,
        Hip.common.module_get_global.1(_, _, _, _) => hipModuleGetGlobal,
        Hip.common.launch_kernel.1(_, _, _, _, _, _, _, _, _, _, _) => hipModuleLaunchKernel,
        Hip.common.launch_cooperative_kernel.1(_, _, _, _, _, _, _, _, _, _) => hipModuleLaunchCooperativeKernel,
        Hip.common.occupancy_max_active_blocks_per_multiprocessor.1(_, _, _, _) => hipModuleOccupancyMaxActiveBlocksPerMultiprocessor,
        Rtc.functions.version.1(_, _) => hiprtcVersion,
        Rtc.functions.get_error_string.1(_) => hiprtcGetErrorString,
        Rtc.functions.create_program.1(_, _, _, _, _, _) => hiprtcCreateProgram,
        Rtc.functions.destroy_program.1(_) => hiprtcDestroyProgram,
        Rtc.functions.compile_program.1(_, _, _) => hiprtcCompileProgram,
        Rtc.functions.get_code_size.1(_, _) => hiprtcGetCodeSize,
        Rtc.functions.get_code.1(_, _) => hiprtcGetCode,
        Rtc.functions.get_program_log_size.1(_, _) => hiprtcGetProgramLogSize,
        Rtc.functions.get_program_log.1(_, _) => hiprtcGetProgramLog,
    }
}

/// Where there is no ROCm, the error says what is missing.
#[test]
fn a_machine_without_rocm_gets_a_clean_error() {
    if let Err(error) = hip::Hip::load() {
        let message = error.to_string();
        assert!(message.contains("libamdhip64.so.7") && message.contains("ROCm"), "{message}");
    }
    if let Err(error) = Rtc::hiprtc() {
        let message = error.to_string();
        assert!(message.contains("libhiprtc.so.7") && message.contains("ROCm"), "{message}");
    }
}
