//! `doctor`: finds out by trying what this machine can do. For what does not work, it gives the reason and the remedy.
//!
//! It changes nothing and leaves nothing behind. Everything that calls a driver runs in a process of its own with a
//! limited time ([`child`]).

mod child;
mod compilers;
mod devices;
mod exports;
mod finding;
mod gpu_direct;
mod limits;
mod loopback;
mod network;
mod peers;
mod platforms;
mod rdma;
mod report;
mod text;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::{Args, ValueEnum};
use finding::Section;
use report::Report;

use crate::Result;

/// The command line options.
#[derive(Args)]
pub(crate) struct Options {
    /// Print JSON instead of text: the same facts, under keys that do not change.
    #[arg(long)]
    json: bool,
    /// Exit with 1 if something does not work that something else on this machine needs (marked !!, `problem` in the
    /// JSON).
    #[arg(long)]
    strict: bool,
    /// Make only this examination, and report to the process that started this one.
    #[arg(long, hide = true)]
    examine: Option<Examination>,
}

/// What one process looks at.
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
    const ALL: [Self; 8] = [
        Self::Platforms,
        Self::Devices,
        Self::Peers,
        Self::Rdma,
        Self::Loopback,
        Self::Network,
        Self::Compilers,
        Self::Limits,
    ];

    /// On the command line.
    fn name(self) -> &'static str {
        match self {
            Self::Platforms => "platforms",
            Self::Devices => "devices",
            Self::Peers => "peers",
            Self::Rdma => "rdma",
            Self::Loopback => "loopback",
            Self::Network => "network",
            Self::Compilers => "compilers",
            Self::Limits => "limits",
        }
    }

    /// Where it is told if the examination itself fails.
    fn section(self) -> Section {
        match self {
            Self::Platforms => Section::Platform,
            Self::Devices => Section::Devices,
            Self::Peers => Section::Peers,
            Self::Rdma => Section::Rdma,
            Self::Loopback => Section::Loopback,
            Self::Network => Section::Network,
            Self::Compilers => Section::Compilers,
            Self::Limits => Section::Limits,
        }
    }

    fn make(self, teller: &child::Teller) {
        match self {
            Self::Platforms => platforms::examine(teller),
            Self::Devices => devices::examine(teller),
            Self::Peers => peers::examine(teller),
            Self::Rdma => rdma::examine(teller),
            Self::Loopback => loopback::examine(teller),
            Self::Network => network::examine(teller),
            Self::Compilers => compilers::examine(teller),
            Self::Limits => limits::examine(teller),
        }
    }
}

/// Examines the machine and prints what was found.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    if let Some(examination) = options.examine {
        child::serve(|teller| examination.make(teller));
        return Ok(ExitCode::SUCCESS);
    }
    // One after the other: two that measure would disturb each other.
    let report = Report::of(Examination::ALL.into_iter().flat_map(child::examine).collect());
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

    #[test]
    fn the_process_of_an_examination_is_told_its_name() {
        for examination in Examination::ALL {
            assert_eq!(Examination::from_str(examination.name(), false), Ok(examination));
        }
    }
}
