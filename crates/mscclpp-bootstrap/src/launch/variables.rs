//! A map of the environment variables of launchers.

use std::ffi::OsString;
use std::fmt;

use crate::{Error, Result};

/// Looks up variables. An empty value counts as unset.
pub(crate) struct Variables<'a> {
    lookup: &'a dyn Fn(&'static str) -> Option<OsString>,
}

/// A variable that is set, for messages: `RANK=3`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setting<T> {
    pub(crate) name: &'static str,
    pub(crate) value: T,
}

impl<T: fmt::Display> fmt::Display for Setting<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.value)
    }
}

impl<'a> Variables<'a> {
    pub(crate) fn new(lookup: &'a dyn Fn(&'static str) -> Option<OsString>) -> Self {
        Self { lookup }
    }

    /// Reads a text of printable characters.
    pub(crate) fn text(&self, name: &'static str) -> Result<Option<Setting<String>>> {
        const ALLOWED: &str = "1 to 512 printable characters";
        let value = (self.lookup)(name).filter(|value| !value.is_empty());
        let valid = |text: &str| text.len() <= 512 && !text.chars().any(char::is_control);
        let value = mscclpp_net::env::text(name, value, ALLOWED, valid)?;
        Ok(value.map(|value| Setting { name, value }))
    }

    /// Reads the first of several names that is set to a text.
    pub(crate) fn first_text(&self, names: &[&'static str]) -> Result<Option<Setting<String>>> {
        first(names.iter().map(|name| self.text(name)))
    }

    /// Reads a number from 0 on.
    pub(crate) fn number(&self, name: &'static str) -> Result<Option<Setting<usize>>> {
        let Some(Setting { value, .. }) = self.text(name)? else { return Ok(None) };
        match value.trim().parse() {
            Ok(value) => Ok(Some(Setting { name, value })),
            Err(_) => Err(Error::BadEnvironment { variable: name, value, allowed: "a number from 0" }),
        }
    }

    /// Reads the first of several names that is set to a number.
    pub(crate) fn first_number(&self, names: &[&'static str]) -> Result<Option<Setting<usize>>> {
        first(names.iter().map(|name| self.number(name)))
    }
}

fn first<T>(mut settings: impl Iterator<Item = Result<Option<T>>>) -> Result<Option<T>> {
    settings.find(|found| !matches!(found, Ok(None))).unwrap_or(Ok(None))
}

/// Returns the value on which all settings agree, if there is one.
pub(super) fn agreed<'a, T: PartialEq + Clone + fmt::Display + 'a>(
    what: &'static str,
    settings: impl Iterator<Item = &'a Setting<T>>,
) -> Result<Option<Setting<T>>> {
    let mut first: Option<&Setting<T>> = None;
    for setting in settings {
        match first {
            None => first = Some(setting),
            Some(first) if first.value == setting.value => {}
            Some(first) => {
                return Err(Error::EnvironmentConflict {
                    what: what.to_owned(),
                    first: first.to_string(),
                    second: setting.to_string(),
                });
            }
        }
    }
    Ok(first.cloned())
}
