//! This crate's environment variable, read here and nowhere else. `mscclpp_net` reads those of everything that uses TCP.

use mscclpp_net::env::{self, BadVariable};

/// `MSCCLPP_ETHERNET_CHECKSUMS`: whether data that this process sends has checksums; none if it is not set.
pub(crate) fn checksums() -> Result<Option<bool>, BadVariable> {
    const CHECKSUMS: &str = "MSCCLPP_ETHERNET_CHECKSUMS";
    env::switch(CHECKSUMS, std::env::var_os(CHECKSUMS))
}
