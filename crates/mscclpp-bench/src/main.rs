//! `mscclpp-bench`: the workloads of this project, each by its name.
//!
//! Every row says where it ran, is checked for correctness, and gives the median of its repeats with minimum and
//! maximum. Rows of the platform `host` are devices simulated on the CPU: good for seeing regressions, never a GPU's
//! speed.

mod bootstrap;
mod machine;
mod pair;
mod report;
mod signal_pingpong;
mod twins;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use report::Report;

/// What workloads fail with: one message for the user.
type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// Benchmarks of mscclpp.
///
/// COLUMNS: platform (host: simulated on the CPU; cpu: no device involved) | workload and variant | size (what the
/// row's name says: rounds, ranks) | median, min and max of the repeats, in the unit of the row | baseline: the reference
/// implementation on two H200 of one host | goal: what this project wants there | check: ok, or FAILED if data or
/// signals were wrong, in which case the program exits with 1. Baseline and goal are shown where the row is comparable
/// with them.
#[derive(Parser)]
#[command(name = "mscclpp-bench", verbatim_doc_comment)]
struct Arguments {
    #[command(subcommand)]
    workload: Workload,
    /// Also write the rows to FILE, as JSON.
    #[arg(long, value_name = "FILE", global = true)]
    json: Option<PathBuf>,
    /// This process is the other rank of the same command.
    #[arg(long, hide = true, global = true)]
    peer: bool,
}

#[derive(Subcommand)]
enum Workload {
    /// Two processes, one thread on each device: one side signals, the other waits, in turns. Time of one hop.
    SignalPingpong(signal_pingpong::Options),
    /// Ranks as threads of this process: initialise, all_gather 256 B, barrier.
    Bootstrap(bootstrap::Options),
}

fn main() -> ExitCode {
    let Arguments { workload, json, peer } = Arguments::parse();
    match run(&workload, peer) {
        // The other rank has nothing to report.
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(report)) => {
            print!("{report}");
            if let Some(path) = json
                && let Err(error) = report.write_json(&path)
            {
                eprintln!("error: writing {}: {error}", path.display());
                return ExitCode::FAILURE;
            }
            if report.all_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(workload: &Workload, peer: bool) -> Result<Option<Report>> {
    mscclpp::log::init()?;
    match workload {
        Workload::SignalPingpong(options) => signal_pingpong::run(options, peer),
        Workload::Bootstrap(options) => bootstrap::run(options).map(Some),
    }
}
