//! The environment variables of this crate, read in one place.

use std::ffi::OsString;

use mscclpp_net::env::{self, BadVariable};

use crate::{Family, Result};

/// The environment variables about a bootstrap. Values given to the builder take precedence. An empty value counts as
/// unset, except for the secret, for which it is an error.
///
/// | variable | meaning | default |
/// | --- | --- | --- |
/// | `MSCCLPP_SOCKET_IFNAME` | name of the one interface to use | all, loopback and container bridges last |
/// | `MSCCLPP_SOCKET_FAMILY` | `AF_INET` or `AF_INET6` | both |
/// | `MSCCLPP_BOOTSTRAP_SECRET` | a text that all ranks of a job given by address share | none: unauthenticated |
/// | `MSCCLPP_HOSTID` | equal in two processes if they are on one node | boot id and network namespace |
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Env {
    /// `MSCCLPP_SOCKET_IFNAME`
    pub interface: Option<String>,
    /// `MSCCLPP_SOCKET_FAMILY`
    pub family: Option<Family>,
    /// `MSCCLPP_BOOTSTRAP_SECRET`
    pub secret: Option<String>,
    /// `MSCCLPP_HOSTID`
    pub host_id: Option<String>,
}

const SECRET: &str = "MSCCLPP_BOOTSTRAP_SECRET";
/// The name of the variable of [`Env::interface`].
pub(crate) const INTERFACE: &str = "MSCCLPP_SOCKET_IFNAME";

impl Env {
    /// Reads the process's environment. A malformed value is [`Error::BadEnvironment`](crate::Error::BadEnvironment).
    pub fn read() -> Result<Self> {
        Self::from_lookup(std::env::var_os)
    }

    /// Reads variables through a function, for tests and for programs with settings of their own.
    pub fn from_lookup(lookup: impl Fn(&'static str) -> Option<OsString>) -> Result<Self> {
        let net = env::Env::from_lookup(&lookup)?;
        // An empty secret is not unset: that would leave a job open if its secret got lost on the way here.
        let secret = env::text(SECRET, lookup(SECRET), "a text of 1 to 1024 bytes in UTF-8", |text| {
            (1..=1024).contains(&text.len())
        })
        .map_err(|bad| BadVariable { value: "(hidden)".to_owned(), ..bad })?;
        Ok(Self { interface: net.interface, family: net.family, secret, host_id: net.host_id })
    }
}

mscclpp_os::debug_fields!(Env, |this|
    interface: this.interface, family: this.family, secret: this.secret.as_ref().map(|_| "(hidden)"),
    host_id: this.host_id
);
