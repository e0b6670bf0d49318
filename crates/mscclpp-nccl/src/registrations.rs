//! Memory that is registered with a communicator.

use std::{collections::HashMap, ffi::c_void};

use mscclpp_collectives::Registered;
use parking_lot::Mutex;

/// The registrations of a communicator, by handle.
#[derive(Default)]
pub(crate) struct Registrations {
    /// The handles of `ncclCommRegister`, which has no effect on calls: each rank registers on its own, and all ranks must
    /// choose the same algorithm.
    pub(crate) buffers: Mutex<Vec<usize>>,
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
