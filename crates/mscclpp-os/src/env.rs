//! Environment variables whose values have a form, and the one that identifies the node.

use std::ffi::OsString;

/// An environment variable has a value that is not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable}={value:?} is not valid: {allowed}")]
pub struct BadVariable {
    /// The variable's name.
    pub variable: &'static str,
    /// The variable's value.
    pub value: String,
    /// The values that are allowed.
    pub allowed: &'static str,
}

/// Reads `MSCCLPP_HOSTID`. An empty value counts as unset.
///
/// # Errors
/// Fails if the value is malformed.
pub fn host_id(lookup: impl FnOnce(&'static str) -> Option<OsString>) -> Result<Option<String>, BadVariable> {
    const NAME: &str = "MSCCLPP_HOSTID";
    let allowed = "1 to 256 printable characters, the same in all processes of one node";
    let value = lookup(NAME).filter(|value| !value.is_empty());
    text(NAME, value, allowed, |v| v.len() <= 256 && !v.chars().any(char::is_control))
}

/// Reads a variable whose value is a text of a certain form.
///
/// # Errors
/// Fails if the value is not UTF-8 or not `valid`.
pub fn text(
    variable: &'static str,
    value: Option<OsString>,
    allowed: &'static str,
    valid: impl Fn(&str) -> bool,
) -> Result<Option<String>, BadVariable> {
    let Some(value) = value else { return Ok(None) };
    match value.into_string() {
        Ok(text) if valid(&text) => Ok(Some(text)),
        Ok(value) => Err(BadVariable { variable, value, allowed }),
        Err(value) => Err(BadVariable { variable, value: value.to_string_lossy().into_owned(), allowed }),
    }
}
