//! A file of results to compare with.

use std::{fs, path::Path};

use super::commands::{Command, Side};
use crate::{
    Result, call,
    report::{self, Report},
};

/// Reads a file that `hold --write` or a workload's `--json` has written, or that somebody wrote with the baselines and goals of
/// rows. Returns the commands that were run, in the order of the file, with their figures.
///
/// # Errors
/// If the file is not one of these, or has nothing that could be measured again: a command that is not recorded, or that this
/// program does not have; results that were wrong.
pub(super) fn read(path: &Path) -> Result<Vec<Command>> {
    let text = fs::read_to_string(path).map_err(|error| format!("reading {}: {error}", path.display()))?;
    commands(&text).map_err(|problem| format!("{}: {problem}", path.display()).into())
}

fn commands(text: &str) -> Result<Vec<Command>> {
    let reports =
        report::parse(text).map_err(|error| format!("this is no result file of this program ({error})"))?;
    if reports.is_empty() {
        return Err("there is no result in it".into());
    }
    let mut commands: Vec<Command> = Vec::new();
    for report in reports {
        require_good(&report)?;
        // Several reports of one command are its turns.
        let known = commands.iter().position(|command| command.arguments == report.arguments);
        let at = known.unwrap_or_else(|| {
            commands.push(Command::new(report.arguments.clone(), |_| true));
            commands.len() - 1
        });
        commands[at].take(report, Side::Old)?;
    }
    Ok(commands)
}

fn require_good(report: &Report) -> Result<(), String> {
    let Some(first) = report.rows.first() else { return Err("a result without a row".to_owned()) };
    if report.arguments.is_empty() {
        return Err(format!(
            "it does not say with which options {} was measured, as files of ranks that were started by hand and of older \
             versions do not; measure it again with --json",
            first.workload
        ));
    }
    call::require_repeatable(&report.arguments)?;
    for row in &report.rows {
        match row.check() {
            "ok" => {}
            _ if row.is_given() && (row.baseline.is_some() || row.goal.is_some()) => {}
            _ if row.is_given() => {
                return Err(format!("{} has no times, no baseline and no goal", row.name()));
            }
            check => return Err(format!("{} was wrong when it was measured ({check})", row.name())),
        }
    }
    Ok(())
}
