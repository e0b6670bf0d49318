//! `rdma-vm`: real InfiniBand verbs on a machine without an adapter.
//!
//! The Linux kernel has RDMA over any network interface in software, soft RoCE, but containers and test machines can rarely
//! load it. So this boots a small virtual machine that has it, with two devices, `rxe0` and `rxe1`; or two such machines,
//! joined by a network. Test programs that are built here run in it, or any shell command.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use self::machine::Setup;
use self::payload::Payload;
use crate::dist;
use crate::error::{Error, FileContext};
use crate::workspace;

mod archive;
mod image;
mod kernels;
mod machine;
mod modules;
mod payload;
mod pinning;

#[derive(Args)]
pub(crate) struct Options {
    /// The number of machines: one, whose two devices reach each other; or two, joined by two network links.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=2))]
    nodes: u32,

    /// The seconds, boot included, after which the machines are ended [default: when one has printed nothing for 20 minutes].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86400))]
    timeout: Option<u64>,

    /// The memory of each machine.
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(256..))]
    memory: u32,

    /// Give each processor of the machine a core of its own, for measurements: the machine's first processor gets the first
    /// core.
    #[arg(long, conflicts_with = "nodes")]
    pin: bool,

    /// The packages whose tests, examples and programs are built and put into the machine, as in `cargo xtask dist`
    /// [default: mscclpp-ib, or none with --shell-command].
    #[arg(short, long, value_name = "PACKAGE")]
    package: Vec<String>,

    /// An environment variable for the programs in the machine.
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<String>,

    /// Run this in the machine's shell instead of the tests, such as `ibv_devinfo`. If tests are named too, their programs are
    /// in the machine.
    #[arg(long, value_name = "COMMAND")]
    shell_command: Option<String>,

    /// The test to run, such as `conformance`, or `lib` for the unit tests, and its arguments [default: all except those whose
    /// names begin with `fake_`, which simulate their own devices].
    #[arg(last = true, value_name = "TEST")]
    test: Vec<String>,
}

fn variable(text: &str) -> Result<String, String> {
    let name = text.split_once('=').map_or("", |(name, _)| name);
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let is_name = starts_well && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if is_name { Ok(text.to_owned()) } else { Err("it must be NAME=VALUE".to_owned()) }
}

/// Runs the command. Returns the exit code of the programs in the machine; of two machines, the higher one.
pub(crate) fn run(options: &Options) -> Result<ExitCode, Error> {
    let folder = workspace::target().join("rdma-vm");
    workspace::create_folder(&folder)?;
    let image = image::get_or_make(&folder)?;
    let payload = payload(options, &folder.join("kernels"))?;
    let scratch = tempfile::Builder::new().prefix("rdma-vm-").tempdir();
    let scratch = scratch.context("make a folder in", &std::env::temp_dir())?;
    let files = scratch.path().join("files.cpio");
    payload.write(&files, &image)?;
    let setup = Setup {
        image: &image,
        files: &files,
        nodes: options.nodes,
        memory_mib: options.memory,
        limit: options.timeout.map(Duration::from_secs),
        is_pinned: options.pin,
        scratch: scratch.path(),
        logs: &folder,
    };
    machine::run(&setup).map(ExitCode::from)
}

/// Builds the programs for the machine. Compiled kernels are kept in the folder `kernels`.
fn payload(options: &Options, kernels: &Path) -> Result<Payload, Error> {
    let mut packages = options.package.clone();
    if packages.is_empty() && options.shell_command.is_none() {
        packages.push("mscclpp-ib".to_owned());
    }
    let (tests, arguments) = match options.test.split_first() {
        Some(_) if options.shell_command.is_some() => (&options.test[..], &[][..]),
        Some((_, arguments)) => (&options.test[..1], arguments),
        None => (&[][..], &[][..]),
    };
    let which: Vec<&str> = tests
        .iter()
        .flat_map(|test| if test == "lib" { vec!["--lib"] } else { vec!["--test", test.as_str()] })
        .collect();
    let (mut programs, mut compiled) = Default::default();
    if !packages.is_empty() {
        programs = match options.shell_command.is_some() && tests.is_empty() {
            true => dist::build_programs(&packages)?,
            false => dist::build(&packages, &which)?,
        };
        if tests.is_empty() {
            programs.retain(|program| !program.name.starts_with("fake_"));
        }
        compiled = kernels::compile(kernels)?;
    }
    let command = match &options.shell_command {
        Some(command) => command.clone(),
        None => payload::run_tests(&programs, arguments),
    };
    Ok(Payload { programs, kernels: compiled, environment: options.env.clone(), command })
}
