//! The environment variables of this crate, read in one place. `docs/src/environment.md` has them in a table.

use std::{ffi::OsString, path::PathBuf, sync::OnceLock, time::Duration};

use mscclpp::bootstrap::Family;

use crate::{
    abi::VERSION,
    failure::Failure,
    files::{self, Files},
    interface::Pattern,
};

/// Which lines are written to standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// No lines.
    Nothing,
    /// The version of the library.
    Version,
    /// Failures.
    Warn,
    /// Failures, a line for each communicator, and one at its end with statistics of its calls.
    Info,
}

impl Level {
    /// The level that the environment of this process sets, also if other variables are malformed.
    pub(crate) fn of_process() -> Self {
        Self::from_lookup(files::lookup)
    }

    /// The level that the environment sets. NCCL's other levels map to the nearest of these. Other values mean no lines, as in
    /// NCCL.
    fn from_lookup(lookup: impl Fn(&'static str) -> Option<OsString>) -> Self {
        let set = |name| lookup(name).filter(|value| !value.is_empty());
        let Some(value) = set("MSCCLPP_NCCL_DEBUG").or_else(|| set("NCCL_DEBUG")) else {
            return Level::Nothing;
        };
        match value.to_string_lossy().to_ascii_uppercase().as_str() {
            "INFO" | "ABORT" | "TRACE" => Level::Info,
            "WARN" => Level::Warn,
            "VERSION" => Level::Version,
            _ => Level::Nothing,
        }
    }
}

/// The values of the environment variables. A variable that is empty counts as not set.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Env {
    /// `MSCCLPP_NCCL_FALLBACK`: the path of an NCCL that gets the communicators that are not covered, or have several nodes.
    pub(crate) fallback: Option<PathBuf>,
    /// `MSCCLPP_NCCL_DUMP`: the file whose appearance makes the process write its last calls.
    pub(crate) dump: Option<PathBuf>,
    /// `MSCCLPP_NCCL_NETWORK`: whether RDMA adapters connect nodes, and not Ethernet.
    pub(crate) adapters: bool,
    /// `MSCCLPP_NCCL_SAME_GPU`: whether two ranks may be on one GPU.
    pub(crate) same_gpu: bool,
    /// `MSCCLPP_NCCL_TIMEOUT`: how long a communicator may take to form.
    pub(crate) timeout: Duration,
    /// `MSCCLPP_NCCL_CALLS_AT_ONCE`: how many communicators' calls have room on a device at the same time.
    pub(crate) calls_at_once: u32,
    /// `MSCCLPP_NCCL_VERSION`: the version that `ncclGetVersion` returns.
    pub(crate) version: u32,
    /// `MSCCLPP_NCCL_SCRATCH`, else what follows from `NCCL_BUFFSIZE`: how many MiB of device memory a communicator takes.
    pub(crate) scratch: Option<u32>,
    /// `NCCL_COMM_ID`: where rank 0 listens, in place of a unique id.
    pub(crate) address: Option<String>,
    /// `NCCL_COMM_BLOCKING`: whether calls block if the communicator's configuration does not say.
    pub(crate) blocking: bool,
    /// `NCCL_SOCKET_IFNAME`: the network interfaces that may be used.
    pub(crate) interface: Option<Pattern>,
    /// `NCCL_SOCKET_FAMILY`: the version of IP.
    pub(crate) family: Option<Family>,
    /// `NCCL_HOSTID`: the name of this node. Processes with the same name count as processes of one node.
    pub(crate) host_id: Option<String>,
    /// `NCCL_MIN_CTAS` and `NCCL_MAX_CTAS`: the fewest and the most blocks that a call may have.
    pub(crate) min_ctas: Option<u32>,
    pub(crate) max_ctas: Option<u32>,
    /// The lines for the user about values that were changed.
    pub(crate) notes: Vec<String>,
    /// `NCCL_P2P_DISABLE`: whether devices must not reach each other's memory.
    pub(crate) p2p_disabled: bool,
    /// `NCCL_GRAPH_REGISTER`: whether captured calls publish the memory that they take data into. None if it is not set.
    pub(crate) graph_register: Option<bool>,
}

/// The value of a variable. A number is `None` if the variable is not set and has no default. A text is empty if it is not set.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Number(Option<i64>),
    Text(String),
}

/// The way in which the value of a variable that counts follows; `None` for texts.
type Of = Option<fn(&Env) -> Value>;

/// The variables that have an effect on this library.
const VARIABLES: [(&str, Of); 22] = [
    ("NCCL_COMM_BLOCKING", Some(|env| number(Some(env.blocking)))),
    ("NCCL_MIN_CTAS", Some(|env| number(env.min_ctas))),
    ("NCCL_MAX_CTAS", Some(|env| number(env.max_ctas))),
    ("NCCL_P2P_DISABLE", Some(|env| number(Some(env.p2p_disabled)))),
    ("NCCL_GRAPH_REGISTER", Some(|env| number(env.graph_register))),
    ("NCCL_BUFFSIZE", None),
    ("NCCL_CONF_FILE", None),
    ("NCCL_DEBUG", None),
    ("NCCL_DEBUG_FILE", None),
    ("NCCL_COMM_ID", None),
    ("NCCL_SOCKET_IFNAME", None),
    ("NCCL_SOCKET_FAMILY", None),
    ("NCCL_HOSTID", None),
    ("MSCCLPP_NCCL_CALLS_AT_ONCE", Some(|env| number(Some(env.calls_at_once)))),
    ("MSCCLPP_NCCL_SAME_GPU", Some(|env| number(Some(env.same_gpu)))),
    ("MSCCLPP_NCCL_SCRATCH", Some(|env| number(env.scratch))),
    ("MSCCLPP_NCCL_VERSION", Some(|env| number(Some(env.version)))),
    ("MSCCLPP_NCCL_TIMEOUT", Some(|env| Value::Number(i64::try_from(env.timeout.as_secs()).ok()))),
    ("MSCCLPP_NCCL_DEBUG", None),
    ("MSCCLPP_NCCL_DUMP", None),
    ("MSCCLPP_NCCL_FALLBACK", None),
    ("MSCCLPP_NCCL_NETWORK", None),
];

fn number(number: Option<impl Into<i64>>) -> Value {
    Value::Number(number.map(Into::into))
}

impl Env {
    /// The environment of this process, read at the first call, as NCCL does.
    ///
    /// # Errors
    /// [`Code::INVALID_USAGE`](crate::abi::Code::INVALID_USAGE) for a malformed value.
    pub(crate) fn of_process() -> Result<&'static Self, Failure> {
        static ENV: OnceLock<Result<Env, Failure>> = OnceLock::new();
        let env = ENV.get_or_init(|| Self::from_lookup(files::lookup));
        env.as_ref().map_err(Clone::clone)
    }

    /// The names of NCCL's variables that are set and have no effect on this library.
    pub(crate) fn ignored() -> Vec<String> {
        let set = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
        let set = set.chain(Files::of_process().names().map(str::to_owned));
        let known = |name: &str| VARIABLES.iter().any(|(known, _)| *known == name);
        let mut ignored: Vec<String> = set.filter(|name| name.starts_with("NCCL_") && !known(name)).collect();
        ignored.sort();
        ignored.dedup();
        ignored
    }

    /// The variables that have an effect on this library, with the values that count.
    pub(crate) fn parameters() -> Result<Vec<(&'static str, Value)>, Failure> {
        let env = Self::of_process()?;
        let text = |name| {
            let value = files::lookup(name).unwrap_or_default();
            Value::Text(value.to_string_lossy().into_owned())
        };
        let value = VARIABLES.iter().map(|(name, of)| (*name, of.map_or_else(|| text(name), |of| of(env))));
        Ok(value.collect())
    }

    fn from_lookup(lookup: impl Fn(&'static str) -> Option<OsString>) -> Result<Self, Failure> {
        let reader = Reader(&lookup);
        if let Some(level) = reader.text("MSCCLPP_NCCL_DEBUG")?
            && !["VERSION", "WARN", "INFO"].contains(&level.to_ascii_uppercase().as_str())
        {
            return Err(bad("MSCCLPP_NCCL_DEBUG", &level, "VERSION, WARN or INFO"));
        }
        let mut notes = Vec::new();
        let seconds = reader.number("MSCCLPP_NCCL_TIMEOUT", 1..=31_536_000)?.unwrap_or(1800);
        Ok(Self {
            fallback: lookup("MSCCLPP_NCCL_FALLBACK").filter(|path| !path.is_empty()).map(PathBuf::from),
            dump: lookup("MSCCLPP_NCCL_DUMP").filter(|path| !path.is_empty()).map(PathBuf::from),
            adapters: reader.adapters()?,
            same_gpu: reader.flag("MSCCLPP_NCCL_SAME_GPU")?.unwrap_or(false),
            timeout: Duration::from_secs(seconds.into()),
            calls_at_once: reader.number("MSCCLPP_NCCL_CALLS_AT_ONCE", 1..=32)?.unwrap_or(4),
            version: reader.number("MSCCLPP_NCCL_VERSION", 20_900..=99_999)?.unwrap_or(VERSION),
            scratch: reader.scratch()?,
            address: reader.text("NCCL_COMM_ID")?,
            blocking: reader.flag("NCCL_COMM_BLOCKING")?.unwrap_or(true),
            interface: reader.text("NCCL_SOCKET_IFNAME")?.map(|text| Pattern::parse(&text)),
            family: match reader.text("NCCL_SOCKET_FAMILY")?.as_deref() {
                None => None,
                Some("AF_INET") => Some(Family::V4),
                Some("AF_INET6") => Some(Family::V6),
                Some(other) => return Err(bad("NCCL_SOCKET_FAMILY", other, "AF_INET or AF_INET6")),
            },
            host_id: reader.text("NCCL_HOSTID")?,
            min_ctas: reader.blocks("NCCL_MIN_CTAS", &mut notes)?,
            max_ctas: reader.blocks("NCCL_MAX_CTAS", &mut notes)?,
            notes,
            p2p_disabled: reader.flag("NCCL_P2P_DISABLE")?.unwrap_or(false),
            graph_register: reader.flag("NCCL_GRAPH_REGISTER")?,
        })
    }
}

struct Reader<'a>(&'a dyn Fn(&'static str) -> Option<OsString>);

impl Reader<'_> {
    fn text(&self, name: &'static str) -> Result<Option<String>, Failure> {
        let Some(value) = (self.0)(name).filter(|value| !value.is_empty()) else { return Ok(None) };
        match value.into_string() {
            Ok(text) => Ok(Some(text)),
            Err(value) => Err(bad(name, &value.to_string_lossy(), "a text in UTF-8")),
        }
    }

    fn flag(&self, name: &'static str) -> Result<Option<bool>, Failure> {
        match self.text(name)?.as_deref() {
            None => Ok(None),
            Some("0" | "false") => Ok(Some(false)),
            Some("1" | "true") => Ok(Some(true)),
            Some(other) => Err(bad(name, other, "0, 1, false or true")),
        }
    }

    fn adapters(&self) -> Result<bool, Failure> {
        const NAME: &str = "MSCCLPP_NCCL_NETWORK";
        match self.text(NAME)?.as_deref() {
            None | Some("ethernet") => Ok(false),
            Some("ib") => Ok(true),
            Some(other) => Err(bad(NAME, other, "ethernet or ib")),
        }
    }

    /// A number of blocks. One that is out of range is cut, with a note.
    fn blocks(&self, name: &'static str, notes: &mut Vec<String>) -> Result<Option<u32>, Failure> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let Ok(number) = text.parse::<i64>() else {
            return Err(bad(name, &text, &format!("a number from 1 to {MOST_CTAS}")));
        };
        let cut = number.clamp(1, MOST_CTAS.into());
        if cut != number {
            notes.push(format!("{name}={text} counts as {cut}: 1 to {MOST_CTAS} are allowed"));
        }
        Ok(u32::try_from(cut).ok())
    }

    /// The scratch in MiB. That of `NCCL_BUFFSIZE` is 32 times as much, as NCCL's usual 4 MiB stand for the usual 128, but at
    /// least 16, with which any number of ranks of a node can communicate.
    fn scratch(&self) -> Result<Option<u32>, Failure> {
        if let Some(mebibytes) = self.number("MSCCLPP_NCCL_SCRATCH", 1..=4096)? {
            return Ok(Some(mebibytes));
        }
        let Some(text) = self.text("NCCL_BUFFSIZE")? else { return Ok(None) };
        let bytes: i64 = text.parse().map_err(|_| bad("NCCL_BUFFSIZE", &text, "a number of bytes"))?;
        Ok(u32::try_from((bytes / (4 << 20 >> 7)).clamp(16, 4096)).ok())
    }

    fn number(
        &self,
        name: &'static str,
        allowed: std::ops::RangeInclusive<u32>,
    ) -> Result<Option<u32>, Failure> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        match text.parse() {
            Ok(number) if allowed.contains(&number) => Ok(Some(number)),
            _ => Err(bad(name, &text, &format!("a number from {} to {}", allowed.start(), allowed.end()))),
        }
    }
}

/// The most blocks that a call may have. Larger numbers count as this one, as in NCCL.
pub(crate) const MOST_CTAS: u32 = 64;

fn bad(name: &str, value: &str, allowed: &str) -> Failure {
    Failure::usage(format!("{name}={value:?} is not valid: {allowed}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &'static str, value: &'static str) -> Result<Env, Failure> {
        Env::from_lookup(move |asked| (asked == name).then(|| value.into()))
    }

    #[test]
    fn what_is_not_set_has_its_default() {
        let env = Env::from_lookup(|_| None).unwrap();
        assert!(env.blocking && !env.same_gpu && !env.p2p_disabled && !env.adapters);
        assert_eq!(env.timeout, Duration::from_secs(1800));
        assert_eq!(env, Env::from_lookup(|_| Some(OsString::new())).unwrap(), "empty counts as not set");
    }

    #[test]
    fn values_mean_what_they_mean_to_nccl() {
        assert!(!env("NCCL_COMM_BLOCKING", "0").unwrap().blocking);
        assert_eq!(env("NCCL_MAX_CTAS", "16").unwrap().max_ctas, Some(16));
        assert_eq!(env("NCCL_GRAPH_REGISTER", "0").unwrap().graph_register, Some(false));
        assert!(env("MSCCLPP_NCCL_NETWORK", "ib").unwrap().adapters);
        assert_eq!(env("NCCL_SOCKET_FAMILY", "AF_INET6").unwrap().family, Some(Family::V6));
        for (bytes, mebibytes) in [("4194304", 128), ("2097153", 64), ("1", 16), ("99999999999", 4096)] {
            assert_eq!(env("NCCL_BUFFSIZE", bytes).unwrap().scratch, Some(mebibytes));
        }
        let both = Env::from_lookup(|name| match name {
            "NCCL_BUFFSIZE" => Some("4194304".into()),
            _ => (name == "MSCCLPP_NCCL_SCRATCH").then(|| "3".into()),
        });
        assert_eq!(both.unwrap().scratch, Some(3));
        assert_eq!(env("NCCL_COMM_ID", "10.0.0.1:4000").unwrap().address.as_deref(), Some("10.0.0.1:4000"));
    }

    #[test]
    fn a_number_of_blocks_that_is_out_of_range_is_cut_with_a_line() {
        for (name, value, cut) in
            [("NCCL_MAX_CTAS", "128", 64), ("NCCL_MIN_CTAS", "0", 1), ("NCCL_MIN_CTAS", "-3", 1)]
        {
            let env = env(name, value).unwrap();
            assert_eq!(env.max_ctas.or(env.min_ctas), Some(cut));
            assert!(env.notes[0].contains(&format!("{name}={value} counts as {cut}")), "{:?}", env.notes);
        }
        assert_eq!(env("NCCL_MAX_CTAS", "64").unwrap().notes, [""; 0]);
    }

    #[test]
    fn a_malformed_value_is_named_with_what_is_allowed() {
        for (name, value, allowed) in [
            ("MSCCLPP_NCCL_TIMEOUT", "0", "from 1 to"),
            ("MSCCLPP_NCCL_SAME_GPU", "yes", "0, 1, false or true"),
            ("MSCCLPP_NCCL_NETWORK", "roce", "ethernet or ib"),
            ("NCCL_SOCKET_FAMILY", "ipv4", "AF_INET6"),
            ("NCCL_MIN_CTAS", "many", "from 1 to 64"),
            ("NCCL_BUFFSIZE", "4M", "a number of bytes"),
            ("MSCCLPP_NCCL_VERSION", "2.32.3", "a number from 20900 to 99999"),
            ("MSCCLPP_NCCL_DEBUG", "VERBOSE", "VERSION, WARN or INFO"),
        ] {
            let text = env(name, value).unwrap_err().text;
            assert!(text.contains(name) && text.contains(value) && text.contains(allowed), "{text}");
        }
    }

    #[test]
    fn the_own_variable_goes_before_nccls() {
        let of = |own: &'static str, nccl: &'static str| {
            Level::from_lookup(move |name| Some(if name == "NCCL_DEBUG" { nccl } else { own }.into()))
        };
        assert_eq!(of("", "INFO"), Level::Info);
        assert_eq!(of("warn", "INFO"), Level::Warn);
        assert_eq!(of("", "VERSION"), Level::Version);
        assert_eq!(of("", "whatever"), Level::Nothing);
        assert_eq!(of("", "TRACE"), Level::Info);
        assert_eq!(Level::from_lookup(|_| None), Level::Nothing);
    }
}
