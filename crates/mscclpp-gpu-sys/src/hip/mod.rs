//! HIP, AMD's interface to its GPUs. One table serves ROCm 6 and 7.
//!
//! Building needs nothing of ROCm. Values and layouts are declared here, and a test compares them with published
//! bindings; none of this has been run on an AMD GPU. A result of HIP is never a Rust enum, because a newer release may
//! return values that this build does not know.

mod constants;
mod result;
mod runtime;

pub use crate::IpcMemHandle;
pub use constants::*;
pub use result::HipResult;
pub use runtime::{DeviceProperties, Hip};
