use std::fmt;

/// Which build of this library this is. Printed, it is `0.1.0`, or `0.1.0 (1a2b3c4)`.
///
/// ```
/// println!("mscclpp {}", mscclpp::version());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Version {
    /// The version of this crate, as in `0.1.0`.
    pub version: &'static str,
    /// The commit that it was built from, if it is known: the value of the environment variable `MSCCLPP_GIT_COMMIT` when
    /// this crate was compiled. git itself is not asked.
    pub git_commit: Option<&'static str>,
}

/// The version of this library.
#[must_use]
pub const fn version() -> Version {
    Version { version: env!("CARGO_PKG_VERSION"), git_commit: given(option_env!("MSCCLPP_GIT_COMMIT")) }
}

/// Returns the value of a variable; an empty one counts as unset.
const fn given(value: Option<&'static str>) -> Option<&'static str> {
    match value {
        Some(value) if !value.is_empty() => Some(value),
        _ => None,
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.version)?;
        match self.git_commit {
            Some(commit) => write!(f, " ({commit})"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_text_has_the_commit_where_there_is_one() {
        let of = |git_commit| Version { version: "1.2.3", git_commit: given(git_commit) }.to_string();
        assert_eq!([of(None), of(Some("")), of(Some("1a2b3c4"))], ["1.2.3", "1.2.3", "1.2.3 (1a2b3c4)"]);
        let parts = version().version.split('.').map(str::parse::<u32>);
        assert!(parts.clone().count() == 3 && parts.into_iter().all(|part| part.is_ok()), "{}", version());
    }
}
