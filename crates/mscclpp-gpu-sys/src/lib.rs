//! Raw GPU driver entry points, resolved at run time.
//!
//! `cuda` (feature `cuda`) is a table of the CUDA driver's functions, and `nvrtc` one of the functions of its run-time
//! compiler; `hip` (feature `hip`) has both for AMD's HIP. CUDA's handles and input constants are those of
//! `cudarc::driver::sys`. cudarc's own loader is never used, because it panics if a library or a symbol is missing.
//! Here that is a [`LoadError`], which says what was looked for and where.
//!
//! Nothing here is safe or checked, no type owns a driver object, and there is no policy: all of that is in
//! `mscclpp-gpu`.
//!
#![cfg_attr(feature = "cuda", doc = "```")]
#![cfg_attr(not(feature = "cuda"), doc = "```ignore")]
//! use mscclpp_gpu_sys::cuda::{CuResult, Driver};
//!
//! match Driver::load() {
//!     Ok(driver) => {
//!         let mut version = 0;
//!         // SAFETY: `version` is valid for the write; this function needs no initialisation.
//!         let result = unsafe { (driver.driver_get_version)(&raw mut version) };
//!         println!("CUDA {version}, {result:?}");
//!         assert_eq!(result, CuResult::SUCCESS);
//!     }
//!     Err(error) => println!("{error}"),
//! }
//! ```

#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(feature = "hip")]
pub mod hip;
#[cfg(any(feature = "cuda", feature = "hip"))]
mod library;
#[cfg(feature = "cuda")]
pub mod nvrtc;
#[cfg(any(feature = "cuda", feature = "hip"))]
mod table;

#[cfg(any(feature = "cuda", feature = "hip"))]
pub use library::LoadError;

/// A `CUipcMemHandle` or `hipIpcMemHandle_t`, which is passed by value.
#[cfg(any(feature = "cuda", feature = "hip"))]
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpcMemHandle {
    /// Opaque.
    pub reserved: [u8; 64],
}

/// An `nvrtcProgram` or `hiprtcProgram`.
#[cfg(any(feature = "cuda", feature = "hip"))]
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Program(pub *mut std::ffi::c_void);
