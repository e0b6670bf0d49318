//! HIP, AMD's interface to its GPUs, and its run-time compiler hiprtc. One table serves ROCm 6 and 7.
//!
//! Building needs nothing of ROCm. Values and layouts are declared here, and a test compares them with published
//! bindings; none of it has been run on an AMD GPU. What HIP returns is never a Rust enum, because a newer release may
//! return values that this build does not know.

mod compiler;
mod constants;
mod result;
mod runtime;

pub use crate::{IpcMemHandle, Program};
pub use compiler::Hiprtc;
pub use constants::*;
pub use result::{HipResult, HiprtcResult};
pub use runtime::{DeviceProperties, Hip};
pub use std::ffi::c_void as Opaque;

/// A `hipStream_t`; null is the default stream.
pub type Stream = *mut Opaque;
/// A `hipEvent_t`.
pub type Event = *mut Opaque;
/// A `hipGraph_t`.
pub type Graph = *mut Opaque;
/// A `hipGraphExec_t`.
pub type GraphExec = *mut Opaque;
/// A `hipUserObject_t`.
pub type UserObject = *mut Opaque;
/// A `hipHostFn_t`.
pub type HostFn = Option<unsafe extern "C" fn(*mut Opaque)>;
/// A `hipModule_t`.
pub type Module = *mut Opaque;
/// A `hipFunction_t`.
pub type Function = *mut Opaque;
/// A `hipDeviceptr_t`, or a pointer to host memory that devices can access.
pub type Pointer = *mut Opaque;
