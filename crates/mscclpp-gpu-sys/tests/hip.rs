//! HIP's values and layouts, as declared here, are those of published bindings.

use std::mem::offset_of;

use cubecl_hip_sys as published;
use mscclpp_gpu_sys::hip::{self, HipResult, HiprtcResult};

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
