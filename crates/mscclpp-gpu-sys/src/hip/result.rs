use crate::table::codes;

codes! {
    /// The result of every HIP function. Any value is valid: newer releases have codes that this crate does not know.
    HipResult:
    SUCCESS = 0, "hipSuccess";
    INVALID_VALUE = 1, "hipErrorInvalidValue";
    OUT_OF_MEMORY = 2, "hipErrorOutOfMemory";
    NOT_INITIALIZED = 3, "hipErrorNotInitialized";
    DEINITIALIZED = 4, "hipErrorDeinitialized";
    INVALID_DEVICE_POINTER = 17, "hipErrorInvalidDevicePointer";
    INSUFFICIENT_DRIVER = 35, "hipErrorInsufficientDriver";
    NO_DEVICE = 100, "hipErrorNoDevice";
    INVALID_DEVICE = 101, "hipErrorInvalidDevice";
    INVALID_IMAGE = 200, "hipErrorInvalidImage";
    NO_BINARY_FOR_GPU = 209, "hipErrorNoBinaryForGpu";
    PEER_ACCESS_UNSUPPORTED = 217, "hipErrorPeerAccessUnsupported";
    INVALID_KERNEL_FILE = 218, "hipErrorInvalidKernelFile";
    INVALID_HANDLE = 400, "hipErrorInvalidHandle";
    NOT_FOUND = 500, "hipErrorNotFound";
    NOT_READY = 600, "hipErrorNotReady";
    ILLEGAL_ADDRESS = 700, "hipErrorIllegalAddress";
    PEER_ACCESS_ALREADY_ENABLED = 704, "hipErrorPeerAccessAlreadyEnabled";
    LAUNCH_FAILURE = 719, "hipErrorLaunchFailure";
    COOPERATIVE_LAUNCH_TOO_LARGE = 720, "hipErrorCooperativeLaunchTooLarge";
    NOT_SUPPORTED = 801, "hipErrorNotSupported";
    UNKNOWN = 999, "hipErrorUnknown";
}
