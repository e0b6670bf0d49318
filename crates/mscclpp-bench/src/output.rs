//! Writes the results.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;

use crate::{Result, report::Report, table::Stream};

/// The output options of every workload.
#[derive(Args)]
pub(crate) struct Output {
    /// Also write the rows to FILE, as JSON, at the end. With -, they go to standard output, and the table to standard error.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The name that stands for standard output instead of a file.
const STDOUT: &str = "-";

impl Output {
    /// Fails before the work begins if its results could not be written. Returns the stream of the table.
    pub(crate) fn open(&self) -> Result<Stream> {
        match self.json.as_deref() {
            Some(path) if path == Path::new(STDOUT) => Ok(Stream::Stderr),
            path => path.map_or(Ok(()), require_writable).map(|()| Stream::Stdout),
        }
    }

    /// Writes the report as JSON if that was asked for, and returns a failure if a result was wrong. The table has been
    /// printed row by row.
    pub(crate) fn write(&self, report: &Report) -> Result<ExitCode> {
        match self.json.as_deref() {
            Some(path) if path == Path::new(STDOUT) => {
                let (json, mut out) = (report.to_json()?, io::stdout().lock());
                let written = out.write_all(json.as_bytes()).and_then(|()| out.flush());
                written.map_err(|error| format!("writing the JSON: {error}"))?;
            }
            Some(path) => write(path, &report.to_json()?)?,
            None => {}
        }
        Ok(if report.all_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Fails before the work begins if its results could not be written to `path`.
pub(crate) fn require_writable(path: &Path) -> Result<()> {
    let opened = OpenOptions::new().create(true).append(true).open(path);
    opened.map(drop).map_err(|error| not_written(path, &error).into())
}

pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|error| not_written(path, &error).into())
}

fn not_written(path: &Path, error: &io::Error) -> String {
    format!("writing {}: {error}", path.display())
}
