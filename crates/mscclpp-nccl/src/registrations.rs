//! Memory that is registered with a communicator.

use std::{collections::HashMap, ffi::c_void};

use mscclpp_collectives::{Published, Registered};
use parking_lot::Mutex;

/// The registrations of a communicator, by handle.
#[derive(Default)]
pub(crate) struct Registrations {
    /// The memory of `ncclCommRegister`, which each rank publishes for itself; `None` for memory that cannot be shared.
    pub(crate) buffers: Mutex<HashMap<usize, Option<Published>>>,
    /// The windows of `ncclCommWindowRegister`, which all ranks call.
    pub(crate) windows: Mutex<HashMap<usize, Window>>,
}

/// A window of `ncclCommWindowRegister`.
pub(crate) struct Window {
    /// This rank's memory, and its bytes.
    pub(crate) at: *mut c_void,
    pub(crate) bytes: usize,
    /// The registration; `None` for memory that cannot be shared, and while the ranks are registering it.
    pub(crate) registered: Option<Registered>,
}

// SAFETY: the address is only given back to the program, and never used here.
unsafe impl Send for Window {}
