//! Raw GPU driver entry points, resolved at run time.
//!
//! [`Functions`] has the functions that all drivers share. `cuda` (feature `cuda`) has a table of all functions of the CUDA
//! driver that are used, `hip` (feature `hip`) one of AMD's HIP, and [`rtc`] has the compilers of both. CUDA's handles and
//! input constants are those of `cudarc::driver::sys`. cudarc's own loader is never used, because it panics if a library or
//! a symbol is missing. Here a missing one is a [`LoadError`], which says what was looked for and where.
//!
//! The features, none of which is on by default:
//! - `cuda`: the CUDA driver and NVRTC;
//! - `cuda-12040` or `cuda-13000`: the CUDA version whose symbols cudarc declares. With `cuda` a program needs exactly one;
//! - `hip`: HIP and hiprtc.
//!
//! Nothing here is safe or checked, and no type owns a driver object: `mscclpp-gpu` adds safety, checks and ownership.
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
#[cfg(any(feature = "cuda", feature = "hip"))]
mod functions;
#[cfg(feature = "hip")]
pub mod hip;
#[cfg(any(feature = "cuda", feature = "hip"))]
mod library;
#[cfg(any(feature = "cuda", feature = "hip"))]
pub mod rtc;
#[cfg(any(feature = "cuda", feature = "hip"))]
mod table;

#[cfg(any(feature = "cuda", feature = "hip"))]
pub use self::{functions::*, library::LoadError, table::Entry};

/// A `CUipcMemHandle` or `hipIpcMemHandle_t`, which is passed by value.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpcMemHandle {
    /// Opaque bytes, which the driver fills in.
    pub reserved: [u8; 64],
}
