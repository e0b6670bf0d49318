//! Writes the results.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;

use crate::{Result, report::Report};

/// The output options of every workload.
#[derive(Args)]
pub(crate) struct Output {
    /// Also write the rows to FILE, as JSON. With -, they go to standard output, and the table to standard error.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The name that stands for standard output instead of a file.
const STDOUT: &str = "-";

impl Output {
    /// Fails before the work begins if its results could not be written.
    pub(crate) fn require_writable(&self) -> Result<()> {
        self.json.as_deref().filter(|path| *path != Path::new(STDOUT)).map_or(Ok(()), require_writable)
    }

    /// Writes the report, and returns a failure if a result was wrong.
    pub(crate) fn tell(&self, report: &Report) -> Result<ExitCode> {
        let to_stdout = |text: &str| {
            let mut out = io::stdout().lock();
            out.write_all(text.as_bytes()).and_then(|()| out.flush())
        };
        let json = self.json.as_deref().map(|path| Ok::<_, serde_json::Error>((path, report.to_json()?)));
        match json.transpose()? {
            Some((path, json)) if path == Path::new(STDOUT) => {
                eprint!("{report}");
                to_stdout(&json).map_err(|error| format!("writing the JSON: {error}"))?;
            }
            json => {
                if let Some((path, json)) = json {
                    write(path, &json)?;
                }
                to_stdout(&report.to_string()).map_err(|error| format!("writing the table: {error}"))?;
            }
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
