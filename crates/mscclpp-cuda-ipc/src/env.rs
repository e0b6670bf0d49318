//! The environment variables of this crate, read here and nowhere else.

use crate::error::{Error, Result};

/// `MSCCLPP_CUDAIPC_USE_DEFAULT_STREAM`: `1` or `true` makes links copy on the device's default stream instead of one
/// of their own.
pub(crate) fn use_default_stream() -> Result<bool> {
    let variable = "MSCCLPP_CUDAIPC_USE_DEFAULT_STREAM";
    let value = std::env::var_os(variable).unwrap_or_default().to_string_lossy().into_owned();
    match value.to_ascii_lowercase().as_str() {
        "" | "0" | "false" => Ok(false),
        "1" | "true" => Ok(true),
        _ => Err(Error::Environment { variable, value, expected: "0, 1, false or true" }),
    }
}
