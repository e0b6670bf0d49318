/// What every driver function returns. Any value is valid: newer drivers have codes that this crate does not know.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
pub struct CuResult(pub u32);

macro_rules! codes {
    ($($name:ident = $code:literal, $driver_name:literal;)*) => {
        impl CuResult {
            $(#[doc = concat!("`", $driver_name, "`")] pub const $name: Self = Self($code);)*

            /// The name of a code that this crate knows, without asking the driver, which may not be there.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($code => Some($driver_name),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    SUCCESS = 0, "CUDA_SUCCESS";
    INVALID_VALUE = 1, "CUDA_ERROR_INVALID_VALUE";
    OUT_OF_MEMORY = 2, "CUDA_ERROR_OUT_OF_MEMORY";
    NOT_INITIALIZED = 3, "CUDA_ERROR_NOT_INITIALIZED";
    DEINITIALIZED = 4, "CUDA_ERROR_DEINITIALIZED";
    STUB_LIBRARY = 34, "CUDA_ERROR_STUB_LIBRARY";
    DEVICE_UNAVAILABLE = 46, "CUDA_ERROR_DEVICE_UNAVAILABLE";
    NO_DEVICE = 100, "CUDA_ERROR_NO_DEVICE";
    INVALID_DEVICE = 101, "CUDA_ERROR_INVALID_DEVICE";
    INVALID_IMAGE = 200, "CUDA_ERROR_INVALID_IMAGE";
    INVALID_CONTEXT = 201, "CUDA_ERROR_INVALID_CONTEXT";
    MAP_FAILED = 205, "CUDA_ERROR_MAP_FAILED";
    NO_BINARY_FOR_GPU = 209, "CUDA_ERROR_NO_BINARY_FOR_GPU";
    PEER_ACCESS_UNSUPPORTED = 217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED";
    INVALID_PTX = 218, "CUDA_ERROR_INVALID_PTX";
    JIT_COMPILER_NOT_FOUND = 221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND";
    UNSUPPORTED_PTX_VERSION = 222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION";
    JIT_COMPILATION_DISABLED = 223, "CUDA_ERROR_JIT_COMPILATION_DISABLED";
    INVALID_SOURCE = 300, "CUDA_ERROR_INVALID_SOURCE";
    SHARED_OBJECT_SYMBOL_NOT_FOUND = 302, "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND";
    OPERATING_SYSTEM = 304, "CUDA_ERROR_OPERATING_SYSTEM";
    INVALID_HANDLE = 400, "CUDA_ERROR_INVALID_HANDLE";
    ILLEGAL_STATE = 401, "CUDA_ERROR_ILLEGAL_STATE";
    NOT_FOUND = 500, "CUDA_ERROR_NOT_FOUND";
    NOT_READY = 600, "CUDA_ERROR_NOT_READY";
    ILLEGAL_ADDRESS = 700, "CUDA_ERROR_ILLEGAL_ADDRESS";
    LAUNCH_OUT_OF_RESOURCES = 701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES";
    PEER_ACCESS_ALREADY_ENABLED = 704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED";
    CONTEXT_IS_DESTROYED = 709, "CUDA_ERROR_CONTEXT_IS_DESTROYED";
    TOO_MANY_PEERS = 711, "CUDA_ERROR_TOO_MANY_PEERS";
    LAUNCH_FAILED = 719, "CUDA_ERROR_LAUNCH_FAILED";
    NOT_PERMITTED = 800, "CUDA_ERROR_NOT_PERMITTED";
    NOT_SUPPORTED = 801, "CUDA_ERROR_NOT_SUPPORTED";
    SYSTEM_NOT_READY = 802, "CUDA_ERROR_SYSTEM_NOT_READY";
    SYSTEM_DRIVER_MISMATCH = 803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH";
    COMPAT_NOT_SUPPORTED_ON_DEVICE = 804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE";
    STREAM_CAPTURE_UNSUPPORTED = 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
    STREAM_CAPTURE_INVALIDATED = 901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED";
    STREAM_CAPTURE_IMPLICIT = 906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT";
    UNKNOWN = 999, "CUDA_ERROR_UNKNOWN";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_codes_have_names_and_unknown_ones_are_harmless() {
        assert_eq!(CuResult::NOT_READY.name(), Some("CUDA_ERROR_NOT_READY"));
        assert_eq!(CuResult(2).name(), Some("CUDA_ERROR_OUT_OF_MEMORY"));
        assert_eq!(CuResult(123_456).name(), None);
    }

    #[test]
    fn codes_are_those_of_the_header() {
        use cudarc::driver::sys::CUresult as C;
        for (ours, theirs) in [
            (CuResult::STUB_LIBRARY, C::CUDA_ERROR_STUB_LIBRARY),
            (CuResult::DEVICE_UNAVAILABLE, C::CUDA_ERROR_DEVICE_UNAVAILABLE),
            (CuResult::UNSUPPORTED_PTX_VERSION, C::CUDA_ERROR_UNSUPPORTED_PTX_VERSION),
            (CuResult::PEER_ACCESS_ALREADY_ENABLED, C::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED),
            (CuResult::SYSTEM_NOT_READY, C::CUDA_ERROR_SYSTEM_NOT_READY),
            (CuResult::STREAM_CAPTURE_IMPLICIT, C::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT),
            (CuResult::NOT_FOUND, C::CUDA_ERROR_NOT_FOUND),
        ] {
            assert_eq!(ours.0, theirs as u32);
            assert_eq!(ours.name().map(str::to_owned), Some(format!("{theirs:?}")));
        }
    }
}
