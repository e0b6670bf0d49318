//! `ncclConfig_t`: a communicator's settings, in structs of old and new headers.

use std::{ffi::c_int, ops::RangeInclusive};

use crate::{
    abi::{Config, UNDEFINED, Versioned},
    env::{Env, MOST_CTAS},
    failure::Failure,
    pointers::{text, versioned},
};

/// The settings of a communicator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Whether calls in which other ranks take part block until those ranks have called.
    pub(crate) blocking: bool,
    /// The fewest and the most blocks that a call may have.
    pub(crate) min_blocks: Option<u32>,
    pub(crate) max_blocks: Option<u32>,
    /// The communicator's name in messages.
    pub(crate) name: Option<String>,
}

impl Settings {
    /// The settings from the environment, for communicators that are made without a configuration.
    pub(crate) fn of(env: &Env) -> Self {
        Self { blocking: env.blocking, min_blocks: env.min_ctas, max_blocks: env.max_ctas, name: None }
    }
}

/// Reads a configuration. Fields that are not set take their values from `usual`.
///
/// # Safety
/// `config` is null, or points to as many bytes as its first field says.
///
/// # Errors
/// [`Code::INVALID_ARGUMENT`](crate::abi::Code::INVALID_ARGUMENT) if the struct was not initialised, or a field has a value
/// that is not allowed.
pub(crate) unsafe fn read(config: *const Config, usual: &Settings, env: &Env) -> Result<Settings, Failure> {
    if config.is_null() {
        return Ok(usual.clone());
    }
    // SAFETY: the caller's promise; the fields are numbers and pointers.
    let given = unsafe { versioned(config)? };
    // SAFETY: in an initialised configuration the name is NULL or a C string.
    let name = unsafe { text(given.comm_name) };
    settings(&given, name, usual, env)
}

fn settings(given: &Config, name: Option<String>, usual: &Settings, env: &Env) -> Result<Settings, Failure> {
    let checked = checked::<Config>;
    let blocking = checked("blocking", given.blocking, 0..=1)?.map(|blocking| blocking == 1);
    checked("cgaClusterSize", given.cga_cluster_size, CLUSTERS)?;
    checked("splitShare", given.split_share, 0..=1)?;
    checked("shrinkShare", given.shrink_share, 0..=1)?;
    checked("collnetEnable", given.collnet_enable, 0..=1)?;
    checked("CTAPolicy", given.cta_policy, CTA_POLICIES)?;
    checked("graphUsageMode", given.graph_usage_mode, 0..=2)?;
    checked("numRmaCtx", given.num_rma_ctx, 0..=c_int::MAX)?;
    checked("maxP2pPeers", given.max_p2p_peers, 0..=c_int::MAX)?;
    checked("graphStreamOrdering", given.graph_stream_ordering, 0..=1)?;
    checked("launchOrderImplicit", given.launch_order_implicit, 0..=1)?;
    checked("numRmaSig", given.num_rma_sig, 0..=c_int::MAX)?;
    checked("rmaEagerInit", given.rma_eager_init, 0..=1)?;
    checked("hostCftMode", given.host_cft_mode, 1..=3)?;
    checked("nvlsHostMode", given.nvls_host_mode, 0..=c_int::MAX)?;
    let (least, most) = blocks::<Config>(given.min_ctas, given.max_ctas)?;
    Ok(Settings {
        blocking: blocking.unwrap_or(usual.blocking),
        // The environment takes precedence over the program, as in NCCL.
        min_blocks: env.min_ctas.or(least).or(usual.min_blocks),
        max_blocks: env.max_ctas.or(most).or(usual.max_blocks),
        name: name.or_else(|| usual.name.clone()),
    })
}

/// The values of `cgaClusterSize`.
pub(crate) const CLUSTERS: RangeInclusive<c_int> = 0..=8;
/// The values of `CTAPolicy`, which has two bits.
pub(crate) const CTA_POLICIES: RangeInclusive<c_int> = 0..=3;

/// The value of a field of a configuration, if it is set.
///
/// # Errors
/// [`Code::INVALID_ARGUMENT`](crate::abi::Code::INVALID_ARGUMENT) for a value that is not allowed.
pub(crate) fn checked<T: Versioned>(
    field: &str,
    value: c_int,
    allowed: RangeInclusive<c_int>,
) -> Result<Option<c_int>, Failure> {
    match value {
        UNDEFINED => Ok(None),
        value if allowed.contains(&value) => Ok(Some(value)),
        value => Err(Failure::argument(format!(
            "{field} is {value} in {}; {} to {} are allowed",
            T::NAME,
            allowed.start(),
            allowed.end()
        ))),
    }
}

/// The fewest and the most blocks that a configuration gives.
///
/// # Errors
/// The same as of [`checked`].
pub(crate) fn blocks<T: Versioned>(least: c_int, most: c_int) -> Result<(Option<u32>, Option<u32>), Failure> {
    let [least, most] =
        [checked::<T>("minCTAs", least, 1..=c_int::MAX)?, checked::<T>("maxCTAs", most, 1..=c_int::MAX)?]
            .map(|blocks| blocks.map(|blocks| blocks.unsigned_abs().min(MOST_CTAS)));
    match (least, most) {
        (Some(least), Some(most)) if least > most => {
            Err(Failure::argument(format!("minCTAs is {least} and maxCTAs {most} in {}", T::NAME)))
        }
        both => Ok(both),
    }
}

#[cfg(test)]
mod tests {
    use std::{mem::offset_of, ptr};

    use super::*;

    fn usual() -> Settings {
        Settings { blocking: true, min_blocks: None, max_blocks: None, name: None }
    }

    fn initial() -> Config {
        Config { size: size_of::<Config>(), magic: Config::MAGIC, version: 22_809, ..Config::INITIAL }
    }

    fn given(config: &Config) -> Result<Settings, Failure> {
        let env = Env::of_process().unwrap();
        // SAFETY: the pointer is to a configuration of at least the size that it states.
        unsafe { read(config, &usual(), env) }
    }

    #[test]
    fn what_is_not_given_is_as_usual() {
        assert_eq!(given(&initial()).unwrap(), usual());
        let settings =
            given(&Config { blocking: 0, max_ctas: 8, comm_name: c"tp".as_ptr(), ..initial() }).unwrap();
        let name = Some("tp".to_owned());
        assert_eq!(settings, Settings { blocking: false, max_blocks: Some(8), name, ..usual() });
    }

    #[test]
    fn more_blocks_than_nccl_has_are_as_many() {
        let settings = given(&Config { min_ctas: 65, max_ctas: c_int::MAX, ..initial() }).unwrap();
        assert_eq!(settings, Settings { min_blocks: Some(64), max_blocks: Some(64), ..usual() });
    }

    #[test]
    fn a_struct_of_an_older_header_ends_earlier() {
        // The struct of NCCL 2.17 ends with netName; the bytes behind it are not the struct's, and must not be read.
        let size = offset_of!(Config, split_share);
        let old = Config {
            size,
            version: 21_700,
            blocking: 0,
            split_share: 77,
            comm_name: ptr::dangling(),
            ..initial()
        };
        assert_eq!(given(&old).unwrap(), Settings { blocking: false, ..usual() });
        // The struct of 2.28 ends before graphUsageMode.
        let size = offset_of!(Config, graph_usage_mode);
        assert_eq!(given(&Config { size, nvls_host_mode: -9, ..initial() }).unwrap(), usual());
    }

    #[test]
    fn one_of_a_newer_header_is_longer() {
        let longer: [Config; 2] = [Config { size: 2 * size_of::<Config>(), ..initial() }; 2];
        assert_eq!(given(&longer[0]).unwrap(), usual());
    }

    #[test]
    fn what_was_not_initialised_and_what_is_not_allowed_is_named() {
        for (config, said) in [
            (Config { size: 0, ..initial() }, "the size in ncclConfig_t is 0"),
            (Config { magic: 1, ..initial() }, "the mark in ncclConfig_t is 0x1"),
            (Config { blocking: 2, ..initial() }, "blocking is 2"),
            (Config { min_ctas: 4, max_ctas: 2, ..initial() }, "minCTAs is 4 and maxCTAs 2"),
            (Config { max_ctas: 0, ..initial() }, "maxCTAs is 0"),
            (Config { split_share: -1, ..initial() }, "splitShare is -1"),
            (
                Config { host_cft_mode: 4, ..initial() },
                "hostCftMode is 4 in ncclConfig_t; 1 to 3 are allowed",
            ),
        ] {
            let text = given(&config).unwrap_err().text;
            assert!(text.contains(said), "{text}");
        }
    }
}
