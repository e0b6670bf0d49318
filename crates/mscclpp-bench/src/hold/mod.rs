//! `hold`: measures rows again that were measured before, and names those that have become slower.
//!
//! Each command of the baseline is run once. Those with a row that looks slower are run again, in turns with the others, and
//! with the other program if there is one; a row counts as fallen by the median of all its turns. How far turns differ is
//! the noise: what is less than that says nothing, and is told without being counted.

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

use self::{baseline::Baseline, commands::Command, program::Program, verdict::Verdicts};
use crate::{Result, output, report};

#[derive(Args)]
pub(crate) struct Options {
    /// Measure the rows of FILE again, with the options that are recorded there, and compare with its figures. FILE was
    /// written by --write, or by --json of a workload.
    #[arg(long, value_name = "FILE", required_unless_present_any = ["against", "write"])]
    baseline: Option<PathBuf>,
    /// Run PROGRAM, another build of this one, in turns with this one, and compare with what it measures now instead of
    /// figures of the past. Without --baseline, of the rows that every release holds.
    #[arg(long, value_name = "PROGRAM")]
    against: Option<PathBuf>,
    /// Write what this program has measured to FILE, as a baseline. With neither --baseline nor --against, these are three
    /// turns of the rows that every release holds.
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// A row has fallen if it takes so many percent more time than before.
    #[arg(long, value_name = "PERCENT", default_value_t = 3.0, value_parser = parse_percent)]
    tolerance: f64,
    /// How often a row is measured that looks slower, the first time included.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..=100))]
    turns: u32,
    /// No further turn begins after so many seconds. A row that looks slower and could not be repeated counts as fallen.
    #[arg(long, value_name = "SECONDS", default_value_t = 240, value_parser = clap::value_parser!(u32).range(1..=86400))]
    limit: u32,
    /// Compare although the baseline was measured on other devices.
    #[arg(long)]
    other_hardware: bool,
}

/// Turns of a baseline that is written.
const TURNS_OF_A_BASELINE: u32 = 3;

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let started = Instant::now();
    let mut commands = match &options.baseline {
        Some(path) => Baseline::read(path)?.commands()?,
        None => always::commands(),
    };
    if let Some(path) = &options.write {
        output::require_writable(path)?;
    }
    let this = Program::new(env::current_exe()?);
    let other = options.against.clone().map(Program::new);
    if other.is_some() {
        commands.iter_mut().for_each(Command::forget_figures);
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
        let reports = commands.iter().flat_map(Command::measured).collect::<Vec<_>>();
        output::write(path, &report::to_json_of_all(&reports)?)?;
    }
    let verdicts = Verdicts::of(&commands, options.tolerance, compares);
    print!("{verdicts}");
    Ok(if verdicts.all_hold() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn parse_percent(text: &str) -> std::result::Result<f64, String> {
    match text.parse() {
        Ok(percent) if (0.0..=1e12).contains(&percent) => Ok(percent),
        _ => Err("a number of percent, 0 or more".to_owned()),
    }
}
