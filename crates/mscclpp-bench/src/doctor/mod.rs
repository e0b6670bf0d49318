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
mod report;
mod text;

use std::{
    error::Error,
    io::{self, Write},
    process::ExitCode,
};

use clap::{Args, ValueEnum};
use finding::Section;
use report::Report;

/// The command line options of `doctor`.
#[derive(Args)]
pub(crate) struct Options {
    /// Print JSON instead of text: the same facts, under keys that do not change.
    #[arg(long)]
    json: bool,
    /// Exit with 1 if something does not work that something else on this machine needs (marked !!, `problem` in the
    /// JSON).
    #[arg(long)]
    strict: bool,
    /// Say only which NCCL library PyTorch, JAX and CuPy call in the environment of this Python, and why. It imports them.
    #[arg(long, value_name = "PYTHON", num_args = 0..=1, require_equals = true, default_missing_value = "python3")]
    nccl: Option<String>,
    /// Make only this examination, and report to the process that started this one.
    #[arg(long, hide = true)]
    examine: Option<Examination>,
}

/// The part of the examination that one process makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Examination {
    Platforms,
    Devices,
    Peers,
    Rdma,
    Loopback,
    Network,
    Compilers,
    Limits,
}

impl Examination {
    /// The function of the examination, and the section for a finding that the examination itself failed.
    fn parts(self) -> (fn(&child::Teller), Section) {
        match self {
            Self::Platforms => (platforms::examine, Section::Platform),
            Self::Devices => (devices::examine, Section::Devices),
            Self::Peers => (peers::examine, Section::Peers),
            Self::Rdma => (rdma::examine, Section::Rdma),
            Self::Loopback => (loopback::examine, Section::Loopback),
            Self::Network => (network::examine, Section::Network),
            Self::Compilers => (compilers::examine, Section::Compilers),
            Self::Limits => (limits::examine, Section::Limits),
        }
    }
}

/// Examines the machine and prints the findings.
pub(crate) fn run(options: &Options) -> Result<ExitCode, Box<dyn Error + Send + Sync>> {
    if let Some(examination) = options.examine {
        child::serve(examination.parts().0);
        return Ok(ExitCode::SUCCESS);
    }
    let report = match &options.nccl {
        Some(python) => Report::of_nccl(nccl::examine(python)),
        // Examinations run one after the other, because two that measure would disturb each other.
        None => Report::of(Examination::value_variants().iter().flat_map(child::examine).collect()),
    };
    let text = if options.json { report.to_json()? } else { report.to_string() };
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| format!("writing the report: {error}"))?;
    let fails = options.strict && !report.problems().is_empty();
    Ok(if fails { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::name_of;

    #[test]
    fn the_process_of_an_examination_is_told_its_name() {
        for examination in Examination::value_variants() {
            assert_eq!(Examination::from_str(&name_of(examination), false), Ok(*examination));
        }
    }
}
