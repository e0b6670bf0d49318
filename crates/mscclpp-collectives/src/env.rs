//! The environment variables of this crate, read here and nowhere else.

use crate::{Error, Result};

/// `MSCCLPP_CHECK_CALLS`: whether ranks compare their calls, if the program does not say; unset or empty means no.
pub(crate) fn check_calls() -> Result<bool> {
    switch("MSCCLPP_CHECK_CALLS", false)
}

/// `MSCCLPP_GRAPH_REGISTER`: whether captured calls publish the memory that they take data into; unset or empty means yes.
pub(crate) fn graph_register() -> Result<bool> {
    switch("MSCCLPP_GRAPH_REGISTER", true)
}

fn switch(name: &str, default: bool) -> Result<bool> {
    let value = std::env::var_os(name).unwrap_or_default();
    match &*value.to_string_lossy() {
        "" => Ok(default),
        "0" | "false" => Ok(false),
        "1" | "true" => Ok(true),
        other => Err(Error::InvalidArgument(format!("{name}={other:?} is not valid: 0, 1, false or true"))),
    }
}
