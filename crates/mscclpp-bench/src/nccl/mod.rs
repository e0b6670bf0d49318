//! NCCL, loaded at run time, for the same collectives as the library's.

mod comm;
mod library;
mod rows;
mod windows;

use std::env;

use clap::Args;

pub(crate) use self::{comm::Comm, windows::Windows};
use crate::Result;
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
    /// Opens the library, if the user chose one. No other thread of this process may run yet: this sets an environment
    /// variable, which NCCL and the other ranks read later.
    pub(crate) fn open(&self) -> Result<Option<Library>> {
        let Some(name) = &self.compare else { return Ok(None) };
        if env::var_os(MULTICAST).is_none() {
            // SAFETY: workloads call this before they start a thread or open a device, so nobody reads the environment
            // meanwhile.
            unsafe { env::set_var(MULTICAST, "0") };
        }
        Library::open(name).map(Some)
    }
}
