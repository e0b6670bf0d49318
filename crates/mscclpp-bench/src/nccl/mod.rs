//! NCCL, loaded at run time, for the same collectives as the library's.

mod comm;
mod library;
mod windows;

use std::env;

pub(crate) use self::{comm::Comm, windows::Windows};
use crate::prelude::*;
use library::Library;

/// The choice of a library to compare with.
#[derive(Args)]
pub(crate) struct Compare {
    /// Measure NCCL in turns with the library, in the same run: the file of NCCL's library, or its name if the dynamic
    /// loader finds it. NCCL_NVLS_ENABLE is set to 0 unless you have set it.
    #[arg(long, value_name = "LIB", num_args = 0..=1, default_missing_value = "libnccl.so.2")]
    compare: Option<String>,
}

/// The variable that turns NCCL's multicast over NVLink on or off. Multicast can put GPUs out of service for others.
const MULTICAST: &str = "NCCL_NVLS_ENABLE";

impl Compare {
    /// Opens the library, if the user chose one. `on_sim`: the devices are simulated.
    pub(crate) fn open(&self, on_sim: bool) -> Result<Option<Library>> {
        self.compare.as_deref().map(|name| Library::open(name, on_sim)).transpose()
    }
}

/// Sets an environment variable, which NCCL and the other ranks read later, for a comparison with NCCL. No other thread of this
/// process may run yet.
pub(crate) fn set_environment() {
    if env::var_os(MULTICAST).is_none() {
        // SAFETY: the program calls this before it starts a thread or opens a device, so nobody reads the environment meanwhile.
        unsafe { env::set_var(MULTICAST, "0") };
    }
}
