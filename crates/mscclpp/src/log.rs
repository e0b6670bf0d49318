//! Log lines of this library, on standard error or in a file.
//!
//! The library logs through [`tracing`], so a program with a subscriber of its own gets all lines there. A program
//! without one calls [`init`], which reads the environment: `MSCCLPP_LOG_LEVEL` (the level), `MSCCLPP_LOG_SUBSYS` (the
//! parts of the library), `MSCCLPP_LOG_FILE` (a file instead of standard error), or their older names `MSCCLPP_DEBUG`,
//! `MSCCLPP_DEBUG_SUBSYS` and `MSCCLPP_DEBUG_FILE`, and `RUST_LOG` (a filter in the syntax of [`EnvFilter`], in place of
//! level and parts). The book's page "Environment variables" (`docs/src/environment.md`) has their values and defaults.
//!
//! The subsystems are these targets, for use in `RUST_LOG`: `mscclpp::env`, `mscclpp::gpu`, `mscclpp::bootstrap` (`NET`),
//! `mscclpp::conn`, `mscclpp::proxy` and `mscclpp::wait`. The last has a line for each call that has waited for ten seconds,
//! with what it waits for. It is a warning, and is shown unless you choose a level that hides it.

use std::{
    ffi::OsString,
    fmt::{self, Write as _},
    fs::OpenOptions,
    io::IsTerminal,
    path::PathBuf,
    sync::Mutex,
};

pub use tracing::Level;
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    layer::{Context, Layered, SubscriberExt as _},
    reload,
    util::SubscriberInitExt as _,
};

use mscclpp_core::{BadVariable, SystemFailure};

use crate::{Error, Result, variables};

const SUBSYSTEMS: [(&str, &str); 6] = [
    ("ENV", "mscclpp::env"),
    ("GPU", "mscclpp::gpu"),
    ("NET", "mscclpp::bootstrap"),
    ("CONN", "mscclpp::conn"),
    ("PROXY", "mscclpp::proxy"),
    (WAIT, "mscclpp::wait"),
];

/// The subsystem of waits that take long. Its warnings are shown unless a level was chosen.
const WAIT: &str = "WAIT";

/// Installs the process's log subscriber as the environment says. Programs call it once; libraries do not call it.
///
/// # Errors
/// [`Error::Environment`] naming the variable that is malformed and what it may be; [`Error::System`] if the file
/// cannot be opened; [`Error::LogAlreadySetUp`].
pub fn init() -> Result<()> {
    init_redirectable().map(drop)
}

/// Installs the log subscriber as [`init`] does, and returns a handle with which lines can later be given elsewhere.
///
/// # Errors
/// The same as [`init`].
pub fn init_redirectable() -> Result<Redirect> {
    let Settings { filter, file } = Settings::from_lookup(std::env::var_os::<&'static str>)?;
    let shown = filter.clone();
    // The filter was checked, and is parsed again because `EnvFilter` has no Clone.
    let (filter, filter_handle) = reload::Layer::new(parse("RUST_LOG", &filter)?);
    let output = tracing_subscriber::fmt::layer();
    let output: Output = match &file {
        None => output.with_ansi(std::io::stderr().is_terminal()).with_writer(std::io::stderr).boxed(),
        Some((variable, path)) => {
            let file = OpenOptions::new().create(true).append(true).open(path).map_err(|e| {
                SystemFailure::new(format!("opening the log file {} ({variable})", path.display()), e)
            })?;
            output.with_ansi(false).with_writer(Mutex::new(file)).boxed()
        }
    };
    let (output, output_handle) = reload::Layer::new(output);
    let installed = tracing_subscriber::registry().with(filter).with(output).try_init();
    installed.map_err(|_| Error::LogAlreadySetUp)?;
    tracing::debug!(target: "mscclpp::env", filter = shown, file = ?file, "logging");
    for (name, value) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if let Some(meant) = variables::meant_by(&name) {
            tracing::error!(target: "mscclpp::env", "{name} is set, but this library has no such variable; is {meant} meant?");
        }
        if name.starts_with("MSCCLPP_") && !name.contains("SECRET") {
            tracing::debug!(target: "mscclpp::env", "{name}={}", value.to_string_lossy());
        }
    }
    Ok(Redirect { filter: filter_handle, output: output_handle })
}

type Filtered = Layered<reload::Layer<EnvFilter, Registry>, Registry>;
type Output = Box<dyn Layer<Filtered> + Send + Sync>;

/// A line of the log.
#[derive(Debug)]
pub struct Line<'a> {
    /// The level of the line.
    pub level: Level,
    /// The part of the library that logged the line.
    pub target: &'a str,
    /// The message, followed by the other values of the event.
    pub text: &'a str,
}

/// Gives log lines to a function of the program instead of the place that the environment names.
pub struct Redirect {
    filter: reload::Handle<EnvFilter, Registry>,
    output: reload::Handle<Output, Filtered>,
}

mscclpp_os::debug_fields!(Redirect, ..);

impl Redirect {
    /// Gives the lines of this library at level `least` and above (none without a level) to `to` from now on, and to no
    /// other place. A later call replaces the function of an earlier one.
    ///
    /// `to` runs in the thread that logs, which may be the loop of a proxy: it must neither wait nor log.
    ///
    /// # Errors
    /// [`Error::System`] if an earlier `to` has panicked.
    pub fn redirect(
        &self,
        least: Option<Level>,
        to: impl Fn(&Line<'_>) + Send + Sync + 'static,
    ) -> Result<()> {
        let failed = |error: reload::Error| SystemFailure::new("giving the log elsewhere", error);
        let filter = least.map_or("off".to_owned(), |level| format!("mscclpp={level}"));
        self.output.reload(Elsewhere { least, to }.boxed()).map_err(failed)?;
        Ok(self.filter.reload(parse("RUST_LOG", &filter)?).map_err(failed)?)
    }
}

struct Elsewhere<F> {
    /// The lowest level that is passed on. The filter has the same level, but a line that another thread is writing may
    /// have passed the filter before it was changed.
    least: Option<Level>,
    to: F,
}

impl<S: Subscriber, F: Fn(&Line<'_>) + Send + Sync + 'static> Layer<S> for Elsewhere<F> {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let metadata = event.metadata();
        if self.least.is_none_or(|least| *metadata.level() > least) {
            return;
        }
        let mut text = Text::default();
        event.record(&mut text);
        let Text { mut message, values } = text;
        message.push_str(&values);
        (self.to)(&Line { level: *metadata.level(), target: metadata.target(), text: message.trim_start() });
    }
}

/// The values of an event: its message, and the others in the form ` name=value`.
#[derive(Default)]
struct Text {
    message: String,
    values: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.values, " {name}={value:?}"),
        };
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Settings {
    /// A valid filter in the syntax of [`EnvFilter`].
    filter: String,
    /// The file, and the name of the variable that names it.
    file: Option<(&'static str, PathBuf)>,
}

/// The name of a variable, and its older name, which counts where the first is not set.
type Names = [&'static str; 2];
const LEVEL: Names = ["MSCCLPP_LOG_LEVEL", "MSCCLPP_DEBUG"];
const SUBSYS: Names = ["MSCCLPP_LOG_SUBSYS", "MSCCLPP_DEBUG_SUBSYS"];
const FILE: Names = ["MSCCLPP_LOG_FILE", "MSCCLPP_DEBUG_FILE"];

/// A value, and the variable that has it.
type Set<T> = (&'static str, T);

impl Settings {
    fn from_lookup(lookup: impl Fn(&'static str) -> Option<OsString>) -> Result<Self> {
        let set = |names: &[&'static str]| {
            names.iter().find_map(|name| Some((*name, lookup(name).filter(|value| !value.is_empty())?)))
        };
        let text = |names: &[&'static str], allowed| -> Result<Option<Set<String>>> {
            let Some((variable, value)) = set(names) else { return Ok(None) };
            match value.into_string() {
                Ok(value) => Ok(Some((variable, value))),
                Err(value) => {
                    Err(BadVariable { variable, value: value.to_string_lossy().into_owned(), allowed }.into())
                }
            }
        };
        let filter = match text(&["RUST_LOG"], DIRECTIVES)? {
            Some((variable, filter)) => {
                parse(variable, &filter)?;
                filter
            }
            None => {
                let level = level(text(&LEVEL, LEVELS)?)?;
                subsystems(level, text(&SUBSYS, NAMES)?)?
            }
        };
        let file = set(&FILE).map(|(variable, path)| (variable, PathBuf::from(path)));
        Ok(Self { filter, file })
    }
}

const LEVELS: &str = "DEBUG, INFO, WARN or ERROR";
const NAMES: &str =
    "ALL, or a list of ENV, GPU, NET, CONN, PROXY, WAIT with commas between, perhaps with a ^ in front";
const DIRECTIVES: &str = "directives such as mscclpp::conn=debug, with commas between";

fn level(set: Option<Set<String>>) -> Result<Option<&'static str>> {
    let Some((variable, value)) = set else { return Ok(None) };
    let level = match value.to_ascii_uppercase().as_str() {
        "DEBUG" => Ok("debug"),
        "INFO" => Ok("info"),
        "WARN" => Ok("warn"),
        "ERROR" => Ok("error"),
        _ => Err(BadVariable { variable, value, allowed: LEVELS }.into()),
    };
    level.map(Some)
}

/// Returns the filter that shows the named subsystems from `level` on.
fn subsystems(level: Option<&str>, set: Option<Set<String>>) -> Result<String> {
    let (variable, value) = set.unwrap_or_else(|| (SUBSYS[0], "ALL".to_owned()));
    let (inverted, names) = match value.strip_prefix('^') {
        Some(names) => (true, names),
        None => (false, value.as_str()),
    };
    let mut chosen = [false; SUBSYSTEMS.len()];
    for name in names.split(',').map(|name| name.trim().to_ascii_uppercase()) {
        match SUBSYSTEMS.iter().position(|(known, _)| *known == name) {
            Some(i) => chosen[i] = true,
            None if name == "ALL" => chosen = [true; SUBSYSTEMS.len()],
            None => {
                return Err(BadVariable { variable, value, allowed: NAMES }.into());
            }
        }
    }
    let targets = SUBSYSTEMS.iter().zip(chosen).filter(|(_, chosen)| *chosen != inverted);
    let level = |subsystem| level.unwrap_or(if subsystem == WAIT { "warn" } else { "error" });
    let filter: Vec<String> =
        targets.map(|((name, target), _)| format!("{target}={}", level(*name))).collect();
    Ok(if filter.is_empty() { "off".to_owned() } else { filter.join(",") })
}

fn parse(variable: &'static str, filter: &str) -> Result<EnvFilter> {
    EnvFilter::try_new(filter)
        .map_err(|_| BadVariable { variable, value: filter.to_owned(), allowed: DIRECTIVES }.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Result<Settings> {
        Settings::from_lookup(|asked| {
            variables.iter().find(|(name, _)| *name == asked).map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn nothing_set_means_errors_of_everything_and_what_is_waited_for() {
        let Settings { filter, file } = settings(&[]).unwrap();
        assert_eq!(filter.split(',').count(), SUBSYSTEMS.len());
        let (waits, others): (Vec<_>, Vec<_>) = filter.split(',').partition(|text| text.contains("wait"));
        assert_eq!(waits, ["mscclpp::wait=warn"]);
        assert!(others.iter().all(|directive| directive.ends_with("=error")), "{filter}");
        let chosen = settings(&[("MSCCLPP_LOG_LEVEL", "ERROR")]).unwrap().filter;
        assert!(chosen.contains("mscclpp::wait=error"), "{chosen}");
        assert_eq!(file, None);
    }

    #[test]
    fn level_subsystems_and_file() {
        let set = [
            ("MSCCLPP_LOG_LEVEL", "DEBUG"),
            ("MSCCLPP_LOG_SUBSYS", "NET,CONN"),
            ("MSCCLPP_LOG_FILE", "/tmp/x"),
        ];
        let Settings { filter, file } = settings(&set).unwrap();
        assert_eq!(filter, "mscclpp::bootstrap=debug,mscclpp::conn=debug");
        assert_eq!(file, Some(("MSCCLPP_LOG_FILE", PathBuf::from("/tmp/x"))));
        let inverted =
            settings(&[("MSCCLPP_LOG_LEVEL", "warn"), ("MSCCLPP_LOG_SUBSYS", "^ENV,GPU,PROXY,WAIT")])
                .unwrap();
        assert_eq!(inverted.filter, "mscclpp::bootstrap=warn,mscclpp::conn=warn");
        assert_eq!(settings(&[("MSCCLPP_LOG_SUBSYS", "^ALL")]).unwrap().filter, "off");
    }

    #[test]
    fn older_names_count_where_the_newer_are_not_set() {
        let older =
            [("MSCCLPP_DEBUG", "INFO"), ("MSCCLPP_DEBUG_SUBSYS", "NET"), ("MSCCLPP_DEBUG_FILE", "/tmp/x")];
        let Settings { filter, file } = settings(&older).unwrap();
        assert_eq!(filter, "mscclpp::bootstrap=info");
        assert_eq!(file, Some(("MSCCLPP_DEBUG_FILE", PathBuf::from("/tmp/x"))));
        let newer =
            [("MSCCLPP_LOG_LEVEL", "WARN"), ("MSCCLPP_LOG_SUBSYS", ""), ("MSCCLPP_LOG_FILE", "/tmp/y")];
        let Settings { filter, file } = settings(&[older, newer].concat()).unwrap();
        assert_eq!(filter, "mscclpp::bootstrap=warn");
        assert_eq!(file, Some(("MSCCLPP_LOG_FILE", PathBuf::from("/tmp/y"))));
    }

    #[test]
    fn rust_log_goes_first() {
        let set = [("MSCCLPP_LOG_LEVEL", "DEBUG"), ("RUST_LOG", "mscclpp::gpu=trace")];
        assert_eq!(settings(&set).unwrap().filter, "mscclpp::gpu=trace");
    }

    #[test]
    fn a_bad_value_names_its_variable() {
        for (variable, value) in [
            ("MSCCLPP_LOG_LEVEL", "LOUD"),
            ("MSCCLPP_LOG_SUBSYS", "NET,CON"),
            ("MSCCLPP_LOG_SUBSYS", "^"),
            ("MSCCLPP_DEBUG", "LOUD"),
            ("MSCCLPP_DEBUG_SUBSYS", "NET,CON"),
            ("RUST_LOG", "mscclpp=deafening"),
        ] {
            let error = settings(&[(variable, value)]).unwrap_err();
            assert!(matches!(&error, Error::Environment(bad) if bad.variable == variable), "{error}");
            assert!(error.to_string().contains(value));
        }
    }
}
