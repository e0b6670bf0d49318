//! The settings made by the environment and the builder.

use std::ffi::OsString;

use mscclpp_core::IbMode;
use mscclpp_net::env::{BadVariable, text};

/// The environment variables about this transport. An empty value counts as unset.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Env {
    /// `MSCCLPP_HCA_DEVICES`: the devices, in the order of `IB0`, `IB1`, ...
    pub(crate) devices: Option<Vec<String>>,
    /// `MSCCLPP_IBV_MODE`.
    pub(crate) mode: Option<IbMode>,
    /// `MSCCLPP_IB_GID_INDEX`.
    pub(crate) gid_index: Option<u32>,
    /// `MSCCLPP_IB_TRAFFIC_CLASS`.
    pub(crate) traffic_class: Option<u8>,
    /// `MSCCLPP_IB_SERVICE_LEVEL`.
    pub(crate) service_level: Option<u8>,
    /// `MSCCLPP_IB_PKEY_INDEX`.
    pub(crate) pkey_index: Option<u16>,
    /// `MSCCLPP_IB_TIMEOUT`.
    pub(crate) timeout: Option<u8>,
    /// `MSCCLPP_IB_RETRY_COUNT`.
    pub(crate) retry_count: Option<u8>,
    /// `MSCCLPP_IB_RNR_RETRY`.
    pub(crate) rnr_retry: Option<u8>,
    /// `MSCCLPP_IB_RELAXED_ORDERING`.
    pub(crate) relaxed_ordering: Option<bool>,
}

impl Env {
    pub(crate) fn read() -> Result<Self, BadVariable> {
        Self::from_lookup(std::env::var_os)
    }

    fn from_lookup(lookup: impl Fn(&'static str) -> Option<OsString>) -> Result<Self, BadVariable> {
        let value = |name| lookup(name).filter(|value| !value.is_empty());
        let number = |name, allowed, most: u32| {
            let valid = |v: &str| v.parse::<u32>().is_ok_and(|n| n <= most);
            let text = text(name, value(name), allowed, valid)?;
            Ok::<_, BadVariable>(text.and_then(|text| text.parse::<u32>().ok()))
        };
        let byte = |name, allowed, most: u8| {
            Ok::<_, BadVariable>(number(name, allowed, most.into())?.map(|n| n as u8))
        };
        let devices = text(
            "MSCCLPP_HCA_DEVICES",
            value("MSCCLPP_HCA_DEVICES"),
            "1 to 8 names of devices with commas between them, such as mlx5_0,mlx5_1",
            |v| (1..=8).contains(&v.split(',').count()) && v.split(',').all(is_device_name),
        )?;
        let mode = text("MSCCLPP_IBV_MODE", value("MSCCLPP_IBV_MODE"), "host or host-no-atomic", |v| {
            v == "host" || v == "host-no-atomic"
        })?;
        Ok(Self {
            devices: devices.map(|names| names.split(',').map(str::to_owned).collect()),
            mode: mode.map(|mode| if mode == "host" { IbMode::Host } else { IbMode::HostNoAtomic }),
            gid_index: number("MSCCLPP_IB_GID_INDEX", "an index of the port's GID table, from 0 on", 0xffff)?,
            traffic_class: byte("MSCCLPP_IB_TRAFFIC_CLASS", "0 to 255", 255)?,
            service_level: byte("MSCCLPP_IB_SERVICE_LEVEL", "0 to 15", 15)?,
            pkey_index: number("MSCCLPP_IB_PKEY_INDEX", "0 to 65535", 0xffff)?.map(|n| n as u16),
            timeout: byte(
                "MSCCLPP_IB_TIMEOUT",
                "0 to 31: an acknowledgement is waited for 4.096 us times 2 to this power",
                31,
            )?,
            retry_count: byte("MSCCLPP_IB_RETRY_COUNT", "0 to 7", 7)?,
            rnr_retry: byte("MSCCLPP_IB_RNR_RETRY", "0 to 7, where 7 means without an end", 7)?,
            relaxed_ordering: byte("MSCCLPP_IB_RELAXED_ORDERING", "0 or 1", 1)?.map(|n| n == 1),
        })
    }
}

fn is_device_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() < 64
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &'static str, value: &str) -> Result<Env, BadVariable> {
        let value = OsString::from(value);
        Env::from_lookup(move |asked| (asked == name).then(|| value.clone()))
    }

    #[test]
    fn good_values() {
        assert_eq!(Env::from_lookup(|_| Some(OsString::new())).unwrap(), Env::default(), "unset if empty");
        let devices = env("MSCCLPP_HCA_DEVICES", "mlx5_1,mlx5_0").unwrap().devices.unwrap();
        assert_eq!(devices, ["mlx5_1", "mlx5_0"]);
        assert_eq!(env("MSCCLPP_IBV_MODE", "host-no-atomic").unwrap().mode, Some(IbMode::HostNoAtomic));
        assert_eq!(env("MSCCLPP_IB_GID_INDEX", "3").unwrap().gid_index, Some(3));
        assert_eq!(env("MSCCLPP_IB_TIMEOUT", "31").unwrap().timeout, Some(31));
        assert_eq!(env("MSCCLPP_IB_RELAXED_ORDERING", "0").unwrap().relaxed_ordering, Some(false));
    }

    #[test]
    fn bad_values_name_the_variable_and_what_is_allowed() {
        for (name, value, allowed) in [
            ("MSCCLPP_HCA_DEVICES", "a,,b", "commas"),
            ("MSCCLPP_HCA_DEVICES", "../../etc", "names"),
            ("MSCCLPP_IBV_MODE", "gpu", "host-no-atomic"),
            ("MSCCLPP_IB_GID_INDEX", "-1", "from 0 on"),
            ("MSCCLPP_IB_TIMEOUT", "32", "0 to 31"),
            ("MSCCLPP_IB_RETRY_COUNT", "8", "0 to 7"),
            ("MSCCLPP_IB_SERVICE_LEVEL", "16", "0 to 15"),
            ("MSCCLPP_IB_RELAXED_ORDERING", "yes", "0 or 1"),
        ] {
            let message = env(name, value).unwrap_err().to_string();
            assert!(message.contains(name) && message.contains(allowed), "{message}");
        }
    }
}
