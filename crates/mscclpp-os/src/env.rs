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

/// Reads a variable that says yes or no, in small or large letters. An empty value counts as unset.
///
/// # Errors
/// Fails if the value is something else.
///
/// ```
/// # use mscclpp_os::env::switch;
/// assert_eq!(switch("A_SWITCH", Some("True".into())), Ok(Some(true)));
/// assert_eq!(switch("A_SWITCH", Some("0".into())), Ok(Some(false)));
/// assert_eq!(switch("A_SWITCH", Some("".into())), Ok(None));
/// let text = switch("A_SWITCH", Some("maybe".into())).unwrap_err().to_string();
/// assert_eq!(text, r#"A_SWITCH="maybe" is not valid: 0, 1, false or true"#);
/// ```
pub fn switch(variable: &'static str, value: Option<OsString>) -> Result<Option<bool>, BadVariable> {
    let is = |text: &str, words: [&str; 2]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
    let (yes, no) = (["1", "true"], ["0", "false"]);
    let value = value.filter(|value| !value.is_empty());
    let value = text(variable, value, "0, 1, false or true", |text| is(text, yes) || is(text, no))?;
    Ok(value.map(|text| is(&text, yes)))
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
