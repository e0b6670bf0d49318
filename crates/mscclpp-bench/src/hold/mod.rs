//! `hold`: repeats earlier measurements, and names the rows that have become slower.
//!
//! Each command of the baseline is run once; for `--write` alone, three times. Commands with a row that looks slower are run
//! again, in turns with the others, and with the other program if there is one; the median of all its turns decides whether a row
//! has become slower. The spread of the turns is the noise: a smaller change is reported, but does not count.

mod always;
mod baseline;
mod commands;
mod figure;
mod program;
mod verdict;

use std::{
    env,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Args;

use self::program::Program;
use crate::{Result, output, report};

#[derive(Args)]
pub(crate) struct Options {
    /// Measure the rows of FILE again, with the options that are recorded there, and compare with its figures. FILE was
    /// written by --write, or by --json of a workload, or by hand with baselines and goals, like ci/two-h200.json.
    #[arg(long, value_name = "FILE", required_unless_present_any = ["against", "write"])]
    baseline: Option<PathBuf>,
    /// Run PROGRAM, another build of this program, in turns with this one, and compare with its new figures instead of those in
    /// a file. Without --baseline, measure the rows that every release compares.
    #[arg(long, value_name = "PROGRAM")]
    against: Option<PathBuf>,
    /// Write this program's figures to FILE, as a baseline. With neither --baseline nor --against, measure three turns of the
    /// rows that every release compares.
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// The percentage by which a row's time may grow; above it, the row has become slower.
    #[arg(long, value_name = "PERCENT", default_value_t = 3.0, value_parser = parse_percent)]
    tolerance: f64,
    /// The number of times that a row which looks slower is measured, including the first.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..=100))]
    turns: u32,
    /// The seconds after which no further turn begins. A row that looks slower and could not be repeated counts as slower.
    #[arg(long, value_name = "SECONDS", default_value_t = 240, value_parser = clap::value_parser!(u32).range(1..=86400))]
    limit: u32,
    /// Compare although the baseline was measured on other devices.
    #[arg(long)]
    other_hardware: bool,
}

/// The number of turns in a baseline that is written.
const TURNS_OF_A_BASELINE: u32 = 3;

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let started = Instant::now();
    let mut commands = match &options.baseline {
        Some(path) => baseline::read(path)?,
        None => always::commands(),
    };
    if let Some(path) = &options.write {
        output::require_writable(path)?;
    }
    let this = Program(env::current_exe()?);
    let other = options.against.clone().map(Program);
    if other.is_some() {
        // The other program gives the earlier figures; the rows are kept.
        commands.iter_mut().for_each(commands::Command::forget_old);
    }
    let compares = options.baseline.is_some() || other.is_some();
    let has_time = || started.elapsed() < Duration::from_secs(options.limit.into());

    for turn in 0..if compares { options.turns } else { TURNS_OF_A_BASELINE } {
        for command in &mut commands {
            let is_due = !compares || command.is_doubtful(options.tolerance);
            if turn == 0 || (is_due && has_time()) {
                command.measure(&this, other.as_ref(), turn);
                if turn == 0 && compares {
                    command.require_same_devices(options.other_hardware)?;
                }
            }
        }
    }

    if let Some(path) = &options.write {
        let reports: Vec<_> = commands.iter().flat_map(|command| command.measured.clone()).collect();
        output::write(path, &report::to_json_of_all(&reports)?)?;
    }
    let (text, all_hold) = verdict::of_all(&commands, options.tolerance, compares);
    print!("{text}");
    Ok(if all_hold { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn parse_percent(text: &str) -> std::result::Result<f64, String> {
    match text.parse() {
        Ok(percent) if (0.0..=1e12).contains(&percent) => Ok(percent),
        _ => Err("a number of percent, 0 or more".to_owned()),
    }
}
