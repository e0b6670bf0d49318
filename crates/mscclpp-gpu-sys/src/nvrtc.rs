//! NVRTC, the CUDA C++ compiler as a library. It needs no GPU and no driver.

use std::{
    ffi::{c_char, c_int},
    path::PathBuf,
};

use crate::{
    Program,
    library::{LoadError, Opened},
};

const LIBRARY: &str = "the CUDA run-time compiler libnvrtc";
const ADVICE: &str = "install the CUDA toolkit or the Python package nvidia-cuda-nvrtc, or name the file";

/// What every NVRTC function returns. Any value is valid.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
pub struct NvrtcResult(pub u32);

impl NvrtcResult {
    /// `NVRTC_SUCCESS`
    pub const SUCCESS: Self = Self(0);
    /// `NVRTC_ERROR_INVALID_OPTION`
    pub const INVALID_OPTION: Self = Self(5);
    /// `NVRTC_ERROR_COMPILATION`
    pub const COMPILATION: Self = Self(6);
}

/// NVRTC's functions. Each is documented by NVRTC, under the name given.
#[derive(Debug)]
#[non_exhaustive]
pub struct Nvrtc {
    /// `nvrtcVersion`
    pub version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> NvrtcResult,
    /// `nvrtcGetErrorString`
    pub get_error_string: unsafe extern "C" fn(NvrtcResult) -> *const c_char,
    /// `nvrtcCreateProgram`
    pub create_program: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> NvrtcResult,
    /// `nvrtcDestroyProgram`
    pub destroy_program: unsafe extern "C" fn(*mut Program) -> NvrtcResult,
    /// `nvrtcCompileProgram`
    pub compile_program: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> NvrtcResult,
    /// `nvrtcGetPTXSize`
    pub get_ptx_size: unsafe extern "C" fn(Program, *mut usize) -> NvrtcResult,
    /// `nvrtcGetPTX`
    pub get_ptx: unsafe extern "C" fn(Program, *mut c_char) -> NvrtcResult,
    /// `nvrtcGetProgramLogSize`
    pub get_program_log_size: unsafe extern "C" fn(Program, *mut usize) -> NvrtcResult,
    /// `nvrtcGetProgramLog`
    pub get_program_log: unsafe extern "C" fn(Program, *mut c_char) -> NvrtcResult,
    library: Opened,
}

impl Nvrtc {
    /// The names under which the dynamic loader may know NVRTC, newest first.
    pub const NAMES: [&str; 4] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"];

    /// Loads the first of `candidates` (paths, or names for the dynamic loader) that exists.
    ///
    /// # Safety
    /// Each candidate must be NVRTC, if it exists.
    ///
    /// # Errors
    /// [`LoadError`] with everything that was tried.
    pub unsafe fn load(candidates: impl IntoIterator<Item = PathBuf>) -> Result<Self, LoadError> {
        const SINCE: &str = "NVRTC 11.2";
        // SAFETY: the caller vouches for the files.
        let library = unsafe { Opened::first(LIBRARY, candidates.into_iter().map(Into::into), ADVICE)? };
        // SAFETY: the signatures are those of nvrtc.h; the table keeps the library open.
        unsafe {
            Ok(Self {
                version: library.required(&[c"nvrtcVersion"], SINCE)?,
                get_error_string: library.required(&[c"nvrtcGetErrorString"], SINCE)?,
                create_program: library.required(&[c"nvrtcCreateProgram"], SINCE)?,
                destroy_program: library.required(&[c"nvrtcDestroyProgram"], SINCE)?,
                compile_program: library.required(&[c"nvrtcCompileProgram"], SINCE)?,
                get_ptx_size: library.required(&[c"nvrtcGetPTXSize"], SINCE)?,
                get_ptx: library.required(&[c"nvrtcGetPTX"], SINCE)?,
                get_program_log_size: library.required(&[c"nvrtcGetProgramLogSize"], SINCE)?,
                get_program_log: library.required(&[c"nvrtcGetProgramLog"], SINCE)?,
                library,
            })
        }
    }

    /// The name under which it was found.
    #[must_use]
    pub fn path(&self) -> &str {
        self.library.path()
    }
}
