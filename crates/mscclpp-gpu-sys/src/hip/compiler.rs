use std::{
    ffi::{c_char, c_int},
    sync::OnceLock,
};

use super::HiprtcResult;
use crate::{
    Program,
    library::{LoadError, Opened},
    table::entry_points,
};

const LIBRARY: &str = "the HIP run-time compiler libhiprtc.so";
const ADVICE: &str = "install ROCm 6 or 7 (package hip-runtime-amd)";
const CANDIDATES: [&str; 5] = [
    "libhiprtc.so.7",
    "libhiprtc.so.6",
    "libhiprtc.so",
    "/opt/rocm/lib/libhiprtc.so.7",
    "/opt/rocm/lib/libhiprtc.so.6",
];
const SINCE: &str = "ROCm 6.0";

impl Hiprtc {
    /// The compiler of this process: found and resolved at the first call.
    ///
    /// # Errors
    /// [`LoadError`], the same at every call.
    pub fn load() -> Result<&'static Self, LoadError> {
        static HIPRTC: OnceLock<Result<Hiprtc, LoadError>> = OnceLock::new();
        HIPRTC
            .get_or_init(|| {
                // SAFETY: every candidate is a name of hiprtc.
                let library = unsafe { Opened::first(LIBRARY, CANDIDATES.map(Into::into), ADVICE)? };
                // SAFETY: it is hiprtc.
                unsafe { Self::resolve(library) }
            })
            .as_ref()
            .map_err(Clone::clone)
    }
}

entry_points! {
    /// hiprtc's functions. Each is documented by hiprtc, under the name given.
    table Hiprtc -> HiprtcResult, since SINCE;
    required {
        version: "hiprtcVersion" => fn(*mut c_int, *mut c_int);
        create_program: "hiprtcCreateProgram"
            => fn(
                *mut Program, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char,
            );
        destroy_program: "hiprtcDestroyProgram" => fn(*mut Program);
        compile_program: "hiprtcCompileProgram" => fn(Program, c_int, *const *const c_char);
        get_code_size: "hiprtcGetCodeSize" => fn(Program, *mut usize);
        get_code: "hiprtcGetCode" => fn(Program, *mut c_char);
        get_program_log_size: "hiprtcGetProgramLogSize" => fn(Program, *mut usize);
        get_program_log: "hiprtcGetProgramLog" => fn(Program, *mut c_char);
    }
    optional {}
}
