//! The environment variables of this crate, read here and nowhere else.

use crate::{Error, Result};

/// `MSCCLPP_HOSTID`: 1 to 256 printable characters. An empty value counts as none.
pub(crate) fn host_id() -> Result<Option<String>> {
    let Some(value) = std::env::var_os("MSCCLPP_HOSTID") else { return Ok(None) };
    if value.is_empty() {
        return Ok(None);
    }
    let value = value.to_string_lossy().into_owned();
    if value.len() > 256 || value.chars().any(char::is_control) {
        return Err(Error::Environment {
            variable: "MSCCLPP_HOSTID",
            value,
            expected: "1 to 256 printable characters, the same in all processes of one host",
        });
    }
    Ok(Some(value))
}
