//! The environment variable of this crate, read here and nowhere else.

use crate::{Error, Result};

/// `MSCCLPP_CHECK_CALLS`: whether ranks compare their calls, if the program does not say; unset or empty means no.
pub(crate) fn check_calls() -> Result<bool> {
    const NAME: &str = "MSCCLPP_CHECK_CALLS";
    let value = std::env::var_os(NAME).unwrap_or_default();
    match &*value.to_string_lossy() {
        "" | "0" | "false" => Ok(false),
        "1" | "true" => Ok(true),
        other => Err(Error::InvalidArgument(format!("{NAME}={other:?} is not valid: 0, 1, false or true"))),
    }
}
