//! The environment variables of this crate, read here and nowhere else.

use std::ffi::OsString;

use crate::{Family, error::Error};

/// What the environment says. Values given to the builder go before these.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Env {
    /// `MSCCLPP_SOCKET_IFNAME`
    pub(crate) interface: Option<String>,
    /// `MSCCLPP_SOCKET_FAMILY`
    pub(crate) family: Option<Family>,
}

impl Env {
    pub(crate) fn read() -> Result<Self, Error> {
        Self::from_lookup(std::env::var_os)
    }

    fn from_lookup(lookup: impl Fn(&'static str) -> Option<OsString>) -> Result<Self, Error> {
        let text = |variable, expected, valid: fn(&str) -> bool| {
            let Some(value) = lookup(variable).filter(|value| !value.is_empty()) else { return Ok(None) };
            match value.to_str() {
                Some(text) if valid(text) => Ok(Some(text.to_owned())),
                _ => Err(Error::Environment {
                    variable,
                    value: value.to_string_lossy().into_owned(),
                    expected,
                }),
            }
        };
        let interface =
            text("MSCCLPP_SOCKET_IFNAME", "the name of one network interface, such as eth0", |name| {
                (1..=15).contains(&name.len())
                    && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-@".contains(c))
            })?;
        let family =
            text("MSCCLPP_SOCKET_FAMILY", "AF_INET or AF_INET6", |v| v == "AF_INET" || v == "AF_INET6")?;
        let family = family.map(|name| if name == "AF_INET" { Family::V4 } else { Family::V6 });
        Ok(Self { interface, family })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &'static str, value: &str) -> Result<Env, Error> {
        let value = OsString::from(value);
        Env::from_lookup(move |asked| (asked == name).then(|| value.clone()))
    }

    #[test]
    fn good_values() {
        assert_eq!(Env::from_lookup(|_| None).unwrap(), Env::default());
        assert_eq!(Env::from_lookup(|_| Some(OsString::new())).unwrap(), Env::default(), "none if empty");
        assert_eq!(env("MSCCLPP_SOCKET_FAMILY", "AF_INET6").unwrap().family, Some(Family::V6));
        assert_eq!(env("MSCCLPP_SOCKET_IFNAME", "eth0.12").unwrap().interface.as_deref(), Some("eth0.12"));
    }

    #[test]
    fn bad_values_name_the_variable_and_what_is_allowed() {
        for (name, value, allowed) in
            [("MSCCLPP_SOCKET_FAMILY", "ipv4", "AF_INET6"), ("MSCCLPP_SOCKET_IFNAME", "^docker0", "eth0")]
        {
            let message = env(name, value).unwrap_err().to_string();
            assert!(message.contains(name) && message.contains(allowed), "{message}");
        }
    }
}
