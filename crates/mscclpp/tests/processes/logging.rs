//! The effect of environment variables on the log. Each case runs this program again, with variables of its own, and
//! makes a connection.

use std::{env, process::ExitCode, sync::Arc};

use libtest_mimic::{Failed, Trial};
use mscclpp::{
    log::{Level, Line},
    prelude::*,
};
use mscclpp_test_support::child::{as_child, output_within};

use crate::support::{LIMIT, connect_all, platform};

const REFUSED: u8 = 3;
const VARIABLES: [&str; 8] = [
    "RUST_LOG",
    "MSCCLPP_LOG_LEVEL",
    "MSCCLPP_LOG_SUBSYS",
    "MSCCLPP_LOG_FILE",
    "MSCCLPP_DEBUG",
    "MSCCLPP_DEBUG_SUBSYS",
    "MSCCLPP_DEBUG_FILE",
    "MSCCLPP_BOOTSTRAP_SECRET",
];

/// The `main` of a child.
pub(crate) fn main(what: &str) -> ExitCode {
    match what {
        "redirect" => redirect(),
        _ => connect(),
    }
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        Trial::test("without_variables_only_errors_are_said", quiet),
        Trial::test("at_debug_level_a_connection_can_be_followed", followed),
        Trial::test("subsystems_choose", subsystems),
        Trial::test("a_file_instead_of_standard_error", file),
        Trial::test("rust_log_goes_first", rust_log),
        Trial::test("a_program_may_give_lines_elsewhere", elsewhere),
        Trial::test("a_bad_value_is_an_error_that_names_the_variable", bad_values),
    ]
}

/// Makes a connection, which is what every case does in its child process.
fn connect() -> ExitCode {
    if let Err(error) = mscclpp::log::init() {
        eprintln!("{}", mscclpp::Report(&error));
        return ExitCode::from(REFUSED);
    }
    let again = mscclpp::log::init().expect_err("there is a subscriber already");
    assert_eq!(again.kind(), mscclpp::ErrorKind::InvalidUsage);
    let bootstrap = LocalBootstrap::group(1).pop().expect("one rank");
    let comm = Communicator::with_context(Arc::new(bootstrap), Context::on(platform()));
    connect_all(&comm).expect("a connection with oneself");
    ExitCode::SUCCESS
}

/// Redirects the log in a child process, and prints the lines that it got on standard output.
fn redirect() -> ExitCode {
    let redirect = mscclpp::log::init_redirectable().expect("logging");
    let bootstrap = LocalBootstrap::group(1).pop().expect("one rank");
    let comm = Communicator::with_context(Arc::new(bootstrap), Context::on(platform()));
    for least in [Some(Level::DEBUG), Some(Level::ERROR), None] {
        let print =
            move |line: &Line<'_>| println!("{least:?}: {} {} {}", line.level, line.target, line.text);
        redirect.redirect(least, print).expect("nothing has panicked");
        connect_all(&comm).expect("a connection with oneself");
    }
    ExitCode::SUCCESS
}

fn elsewhere() -> Result<(), Failed> {
    let output = output_within(LIMIT, as_child(&["logging", "redirect"]).env("MSCCLPP_LOG_LEVEL", "ERROR"));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success());
    expect(&String::from_utf8_lossy(&output.stderr), &[], &[" "])?;
    expect(&text, &STEPS, &["Some(Level(Error))", "None:"])?;
    let line = text.lines().find(|line| line.contains("semaphore built")).unwrap_or_default();
    expect(line, &["DEBUG mscclpp::conn semaphore built peer="], &[])
}

/// Returns the exit code and standard error of a child with these variables and no other variables of the log.
fn run(variables: &[(&str, &str)]) -> (i32, String) {
    let mut child = as_child(&["logging", "connect"]);
    VARIABLES.iter().for_each(|name| {
        child.env_remove(name);
    });
    let output = output_within(LIMIT, child.envs(variables.iter().copied()));
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn said(variables: &[(&str, &str)]) -> Result<String, Failed> {
    match run(variables) {
        (0, text) => Ok(text),
        (code, text) => Err(format!("exit code {code}: {text}").into()),
    }
}

const STEPS: [&str; 4] = ["endpoint opened", "sending our part", "connected", "semaphore built"];

fn expect(text: &str, present: &[&str], absent: &[&str]) -> Result<(), Failed> {
    let missing = present.iter().find(|part| !text.contains(*part));
    let extra = absent.iter().find(|part| text.contains(*part));
    match (missing, extra) {
        (None, None) => Ok(()),
        _ => Err(format!("missing {missing:?}, extra {extra:?} in:\n{text}").into()),
    }
}

fn quiet() -> Result<(), Failed> {
    assert_eq!(said(&[])?, "");
    let misspelt = said(&[("MSCCLPP_SOCKET_IFNMAE", "eth0")])?;
    expect(&misspelt, &["MSCCLPP_SOCKET_IFNMAE is set", "is MSCCLPP_SOCKET_IFNAME meant?"], &[])?;
    assert_eq!(misspelt.lines().count(), 1, "{misspelt}");
    let warned = said(&[("MSCCLPP_LOG_LEVEL", "WARN")])?;
    match platform() {
        Platform::Hip => expect(&warned, &["no AMD GPU has run it"], &[]),
        _ => expect(&warned, &[], &[" "]),
    }
}

fn followed() -> Result<(), Failed> {
    let text = said(&[("MSCCLPP_LOG_LEVEL", "DEBUG"), ("MSCCLPP_BOOTSTRAP_SECRET", "swordfish")])?;
    expect(&text, &STEPS, &["swordfish"])?;
    expect(&text, &["MSCCLPP_LOG_LEVEL=DEBUG", "mscclpp::env", "mscclpp::conn"], &["\u{1b}["])
}

fn subsystems() -> Result<(), Failed> {
    let level = ("MSCCLPP_LOG_LEVEL", "DEBUG");
    expect(&said(&[level, ("MSCCLPP_LOG_SUBSYS", "CONN")])?, &STEPS, &["mscclpp::env"])?;
    expect(&said(&[level, ("MSCCLPP_LOG_SUBSYS", "ENV,NET")])?, &["mscclpp::env"], &STEPS)?;
    expect(&said(&[level, ("MSCCLPP_LOG_SUBSYS", "^CONN")])?, &["mscclpp::env"], &STEPS)
}

fn file() -> Result<(), Failed> {
    let path = env::temp_dir().join(format!("mscclpp-log-{}", std::process::id()));
    let name = path.to_string_lossy();
    for _ in 0..2 {
        assert_eq!(said(&[("MSCCLPP_LOG_LEVEL", "DEBUG"), ("MSCCLPP_LOG_FILE", &name)])?, "");
    }
    let text = std::fs::read_to_string(&path)?;
    std::fs::remove_file(&path)?;
    expect(&text, &STEPS, &["\u{1b}["])?;
    assert_eq!(text.matches("semaphore built").count(), 2, "appended to:\n{text}");
    let (code, text) = run(&[("MSCCLPP_LOG_FILE", "/nowhere/at/all")]);
    assert_eq!(code, i32::from(REFUSED));
    expect(&text, &["/nowhere/at/all", "MSCCLPP_LOG_FILE"], &[])
}

fn rust_log() -> Result<(), Failed> {
    expect(&said(&[("RUST_LOG", "mscclpp::conn=debug")])?, &STEPS, &["mscclpp::env"])?;
    expect(&said(&[("RUST_LOG", "off"), ("MSCCLPP_LOG_LEVEL", "DEBUG")])?, &[], &STEPS)
}

fn bad_values() -> Result<(), Failed> {
    for (name, value) in
        [("MSCCLPP_LOG_LEVEL", "LOUD"), ("MSCCLPP_LOG_SUBSYS", "CONN,ELSE"), ("RUST_LOG", "mscclpp=shout")]
    {
        let (code, text) = run(&[(name, value)]);
        assert_eq!(code, i32::from(REFUSED), "{text}");
        expect(&text, &[name, value], &["panicked"])?;
    }
    Ok(())
}
