//! This crate's environment variable, read here and nowhere else. `mscclpp_net` reads those of everything that uses TCP.

use std::ffi::OsString;

use mscclpp_net::env::{self, BadVariable};

const CHECKSUMS: &str = "MSCCLPP_ETHERNET_CHECKSUMS";

/// `MSCCLPP_ETHERNET_CHECKSUMS`: whether data that this process sends has checksums; none if it is not set.
pub(crate) fn checksums() -> Result<Option<bool>, BadVariable> {
    parse(std::env::var_os(CHECKSUMS))
}

fn parse(value: Option<OsString>) -> Result<Option<bool>, BadVariable> {
    let is = |text: &str, words: [&str; 2]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
    let (yes, no) = (["1", "true"], ["0", "false"]);
    let value = value.filter(|value| !value.is_empty());
    let value = env::text(CHECKSUMS, value, "0, 1, false or true", |text| is(text, yes) || is(text, no))?;
    Ok(value.map(|text| is(&text, yes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_says_yes_no_or_nothing() {
        for (value, meaning) in [
            (None, None),
            (Some(""), None),
            (Some("1"), Some(true)),
            (Some("True"), Some(true)),
            (Some("0"), Some(false)),
            (Some("false"), Some(false)),
        ] {
            assert_eq!(parse(value.map(OsString::from)), Ok(meaning), "{value:?}");
        }
        let error = parse(Some("crc32".into())).unwrap_err().to_string();
        assert!(error.contains("MSCCLPP_ETHERNET_CHECKSUMS") && error.contains("true"), "{error}");
    }
}
