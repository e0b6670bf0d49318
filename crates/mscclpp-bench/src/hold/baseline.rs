//! A file of results to compare with.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::commands::Command;
use crate::{Result, call, report::Report};

pub(super) struct Baseline {
    path: PathBuf,
    /// The reports. Several of one command are its turns.
    reports: Vec<Report>,
}

impl Baseline {
    /// Reads a file that `hold --write` or a workload's `--json` has written, or that somebody wrote with the baselines and goals
    /// of rows.
    ///
    /// # Errors
    /// If the file is not one of these, or has nothing that could be measured again.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let text =
            fs::read_to_string(path).map_err(|error| format!("reading {}: {error}", path.display()))?;
        let reports = parse(&text).map_err(|problem| format!("{}: {problem}", path.display()))?;
        Ok(Self { path: path.to_owned(), reports })
    }

    /// The commands that were run, in the order of the file, with their figures.
    ///
    /// # Errors
    /// A command that is not recorded, or that this program does not have; results that were wrong.
    pub(super) fn commands(self) -> Result<Vec<Command>> {
        let mut commands: Vec<Command> = Vec::new();
        for report in self.reports {
            require_good(&report).map_err(|problem| format!("{}: {problem}", self.path.display()))?;
            match commands.iter_mut().find(|command| command.arguments == report.arguments) {
                Some(command) => command.old.push(report),
                None => commands.push(Command::of_old(report)),
            }
        }
        Ok(commands)
    }
}

fn parse(text: &str) -> Result<Vec<Report>, String> {
    let not_one = |error| format!("this is no result file of this program ({error})");
    let value: Value = serde_json::from_str(text).map_err(not_one)?;
    let reports = match value.get("reports") {
        Some(reports) => serde_json::from_value(reports.clone()),
        None => serde_json::from_value(value).map(|report| vec![report]),
    };
    match reports.map_err(not_one)? {
        reports if reports.is_empty() => Err("there is no result in it".to_owned()),
        reports => Ok(reports),
    }
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
