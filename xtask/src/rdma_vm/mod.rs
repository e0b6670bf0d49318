//! `rdma-vm`: real InfiniBand verbs on a machine without an adapter.
//!
//! The Linux kernel has RDMA over any network interface in software, soft RoCE, but containers and test machines can rarely
//! load it. So this boots a small virtual machine that has it, with two devices, `rxe0` and `rxe1`; or two such machines,
//! joined by a network. In it run test programs that are built here, or any shell command.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use self::machine::{Accelerator, Setup};
use crate::error::{Error, FileContext};
use crate::workspace;

mod archive;
mod image;
mod machine;
mod modules;
mod payload;

#[derive(Args)]
pub(crate) struct Options {
    /// How many machines: one, whose two devices reach each other; or two, joined by two links.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=2))]
    hosts: u32,

    /// After how many seconds, boot included, the machines are ended.
    #[arg(long, value_name = "SECONDS", default_value_t = 180, value_parser = clap::value_parser!(u64).range(1..=86400))]
    timeout: u64,

    /// The memory of each machine.
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(256..))]
    memory: u32,

    /// What executes the machine's instructions.
    #[arg(long, value_enum, default_value_t = Accelerator::Auto)]
    accelerator: Accelerator,

    /// Runs this in the machine's shell, such as `ibv_devinfo`.
    #[arg(long, value_name = "COMMAND")]
    shell_command: String,
}

/// Runs the command. Returns the exit code of what ran in the machine, the highest of both if there are two.
pub(crate) fn run(options: &Options) -> Result<ExitCode, Error> {
    let folder = workspace::target().join("rdma-vm");
    workspace::create_folder(&folder)?;
    let image = image::get_or_make(&folder)?;
    let scratch = tempfile::Builder::new().prefix("rdma-vm-").tempdir();
    let scratch = scratch.context("make a folder in", &std::env::temp_dir())?;
    let files = scratch.path().join("files.cpio");
    payload::write(&files, &image, &options.shell_command)?;
    let setup = Setup {
        image: &image,
        files: &files,
        hosts: options.hosts,
        memory_mib: options.memory,
        limit: Duration::from_secs(options.timeout),
        accelerator: options.accelerator,
        scratch: scratch.path(),
        logs: &logs(&folder)?,
    };
    machine::run(&setup).map(ExitCode::from)
}

fn logs(folder: &std::path::Path) -> Result<PathBuf, Error> {
    folder.canonicalize().context("find", folder)
}
