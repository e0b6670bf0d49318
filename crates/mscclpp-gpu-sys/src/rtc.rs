//! The libraries that compile device code: CUDA's NVRTC, and HIP's hiprtc, which has the same functions. They need neither a
//! GPU nor a driver.

use std::{
    ffi::{c_char, c_int, c_void},
    path::PathBuf,
    sync::OnceLock,
};

use crate::{
    library::{Library, LoadError, Opened},
    table::shared_entry_points,
};

/// An `nvrtcProgram` or `hiprtcProgram`.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Program(pub *mut c_void);

/// The result of the compilers' functions. Any value is valid.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
pub struct RtcResult(pub u32);

impl RtcResult {
    /// The function succeeded.
    pub const SUCCESS: Self = Self(0);
    /// The program handle is invalid.
    pub const INVALID_PROGRAM: Self = Self(4);
    /// A compiler option is invalid.
    pub const INVALID_OPTION: Self = Self(5);
    /// The source does not compile.
    pub const COMPILATION: Self = Self(6);
}

type Texts = *const *const c_char;

shared_entry_points! {
    /// The compilers' functions. NVIDIA and AMD document each under the name in its entry.
    table RtcFunctions -> RtcResult, named by RtcNames;
    required {
        version: fn(*mut c_int, *mut c_int);
        get_error_string: fn(RtcResult) -> *const c_char;
        create_program: fn(*mut Program, *const c_char, *const c_char, c_int, Texts, Texts);
        destroy_program: fn(*mut Program);
        compile_program: fn(Program, c_int, Texts);
        get_code_size: fn(Program, *mut usize);
        get_code: fn(Program, *mut c_char);
        get_program_log_size: fn(Program, *mut usize);
        get_program_log: fn(Program, *mut c_char);
    }
    optional {}
}

/// A loaded compiler.
pub struct Rtc {
    /// The compiler's functions.
    pub functions: RtcFunctions,
    library: Opened,
}

const NVRTC: RtcNames = RtcNames {
    version: &[c"nvrtcVersion"],
    get_error_string: &[c"nvrtcGetErrorString"],
    create_program: &[c"nvrtcCreateProgram"],
    destroy_program: &[c"nvrtcDestroyProgram"],
    compile_program: &[c"nvrtcCompileProgram"],
    get_code_size: &[c"nvrtcGetPTXSize"],
    get_code: &[c"nvrtcGetPTX"],
    get_program_log_size: &[c"nvrtcGetProgramLogSize"],
    get_program_log: &[c"nvrtcGetProgramLog"],
};

const HIPRTC: RtcNames = RtcNames {
    version: &[c"hiprtcVersion"],
    get_error_string: &[c"hiprtcGetErrorString"],
    create_program: &[c"hiprtcCreateProgram"],
    destroy_program: &[c"hiprtcDestroyProgram"],
    compile_program: &[c"hiprtcCompileProgram"],
    get_code_size: &[c"hiprtcGetCodeSize"],
    get_code: &[c"hiprtcGetCode"],
    get_program_log_size: &[c"hiprtcGetProgramLogSize"],
    get_program_log: &[c"hiprtcGetProgramLog"],
};

const HIPRTC_LIBRARY: Library = Library {
    description: "the HIP run-time compiler libhiprtc.so",
    candidates: &[
        "libhiprtc.so.7",
        "libhiprtc.so.6",
        "libhiprtc.so",
        "/opt/rocm/lib/libhiprtc.so.7",
        "/opt/rocm/lib/libhiprtc.so.6",
    ],
    advice: "install ROCm 6 or 7 (package hip-runtime-amd)",
    since: "ROCm 6.0",
};

impl Rtc {
    /// The names under which the dynamic loader may know NVRTC, newest first.
    pub const NVRTC_NAMES: [&str; 4] =
        ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"];

    /// Loads the first of `candidates` (paths, or names for the dynamic loader) that exists.
    ///
    /// # Safety
    /// Each candidate must be NVRTC, if it exists.
    ///
    /// # Errors
    /// [`LoadError`] with every candidate that was tried.
    pub unsafe fn nvrtc(candidates: impl IntoIterator<Item = PathBuf>) -> Result<Self, LoadError> {
        const LIBRARY: &str = "the CUDA run-time compiler libnvrtc";
        const ADVICE: &str =
            "install the CUDA toolkit or the Python package nvidia-cuda-nvrtc, or name the file";
        // SAFETY: the caller vouches for the files.
        unsafe {
            let library = Opened::first(LIBRARY, candidates.into_iter().map(Into::into), ADVICE)?;
            Ok(Self { functions: RtcFunctions::resolve(&library, &NVRTC, "NVRTC 11.2")?, library })
        }
    }

    /// The process's hiprtc, found and resolved at the first call.
    ///
    /// # Errors
    /// [`LoadError`], the same at every call.
    pub fn hiprtc() -> Result<&'static Self, LoadError> {
        static HIPRTC_LOADED: OnceLock<Result<Rtc, LoadError>> = OnceLock::new();
        // SAFETY: every candidate is a name of hiprtc.
        let open = || unsafe {
            let library = HIPRTC_LIBRARY.open()?;
            Ok(Self { functions: RtcFunctions::resolve(&library, &HIPRTC, HIPRTC_LIBRARY.since)?, library })
        };
        HIPRTC_LOADED.get_or_init(open).as_ref().map_err(Clone::clone)
    }

    /// The name or path from which the library was loaded.
    #[must_use]
    pub fn path(&self) -> &str {
        self.library.path()
    }
}
