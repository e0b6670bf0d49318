//! Writes the results.

use std::{
    fs::OpenOptions,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;

use crate::{Result, report::Report};

/// The output options of every workload.
#[derive(Args)]
pub(crate) struct Output {
    /// Also write the rows to FILE, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Output {
    /// Fails before the work if its results could not be written.
    pub(crate) fn require_writable(&self) -> Result<()> {
        let Some(path) = &self.json else { return Ok(()) };
        let opened = OpenOptions::new().create(true).append(true).open(path);
        opened.map(drop).map_err(|error| not_written(path, &error).into())
    }

    /// Writes the report, and says whether all was right.
    pub(crate) fn tell(&self, report: &Report) -> Result<ExitCode> {
        if let Some(path) = &self.json {
            report.write_json(path).map_err(|error| not_written(path, &error))?;
        }
        let mut out = io::stdout().lock();
        write!(out, "{report}")
            .and_then(|()| out.flush())
            .map_err(|error| format!("writing the table: {error}"))?;
        Ok(if report.all_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn not_written(path: &Path, error: &io::Error) -> String {
    format!("writing {}: {error}", path.display())
}
