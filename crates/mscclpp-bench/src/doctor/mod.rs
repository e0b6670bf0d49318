//! `doctor`: tests what this machine can do, and gives a reason and a remedy for everything that does not work.
//!
//! It changes nothing and leaves nothing behind. Everything that calls a driver runs in a process of its own with a
//! limited time ([`child`]). It calls none of the benchmarks.

mod child;
mod compilers;
mod devices;
mod exports;
mod finding;
mod gpu_direct;
mod limits;
mod loopback;
mod nccl;
mod network;
mod peers;
mod platforms;
mod rdma;
mod text;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::{Args, ValueEnum};
use finding::{Report, Section};

use crate::Result;

/// The command line options of `doctor`.
#[derive(Args)]
pub(crate) struct Options {
    /// Print JSON instead of text: the same facts, under keys that do not change.
    #[arg(long)]
    json: bool,
    /// Exit with 1 if there is a problem (!!, `problem` in the JSON): something does not work although this machine's hardware or
    /// environment needs it.
    #[arg(long)]
    strict: bool,
    /// Say only which NCCL library PyTorch, JAX and CuPy call in the environment of this Python, and why. It imports them.
    #[arg(long, value_name = "PYTHON", num_args = 0..=1, require_equals = true, default_missing_value = "python3")]
    nccl: Option<String>,
    /// Make only the examination of this section, and report to the process that started this one.
    #[arg(long, hide = true)]
    examine: Option<Section>,
}

type Examination = fn(&child::Teller);

/// The examinations, each of which has a process: a section, which also has the finding that the examination itself failed, and
/// the function.
const EXAMINATIONS: [(Section, Examination); 8] = [
    (Section::Platform, platforms::examine),
    (Section::Devices, devices::examine),
    (Section::Peers, peers::examine),
    (Section::Rdma, rdma::examine),
    (Section::Loopback, loopback::examine),
    (Section::Network, network::examine),
    (Section::Compilers, compilers::examine),
    (Section::Limits, limits::examine),
];

/// Examines the machine and prints the findings.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    if let Some(section) = options.examine {
        let its = EXAMINATIONS.iter().filter(|(it, _)| *it == section);
        its.for_each(|(_, examine)| child::serve(examine));
        return Ok(ExitCode::SUCCESS);
    }
    let report = match &options.nccl {
        Some(python) => Report::of([Section::Nccl], nccl::examine(python)),
        None => {
            let sections = Section::value_variants().iter().filter(|section| **section != Section::Nccl);
            // Examinations run one after the other, because two that measure would disturb each other.
            let findings = EXAMINATIONS.iter().flat_map(|(section, _)| child::examine(*section));
            Report::of(sections.copied(), findings.collect())
        }
    };
    let fails = options.strict && report.problems > 0;
    let text = if options.json { report.into_json()? } else { report.to_string() };
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| format!("writing the report: {error}"))?;
    Ok(if fails { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
