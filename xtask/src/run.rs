//! Starting other programs.

use std::process::{Command, Stdio};

use crate::error::Error;
use crate::workspace;

/// A call of cargo in the folder of the repository.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace::root());
    command
}

/// Runs a command that writes to this program's output. An exit status other than 0 is an error.
pub(crate) fn run(command: &mut Command) -> Result<(), Error> {
    let status = command.status().map_err(|source| start_error(command, source))?;
    if status.success() { Ok(()) } else { Err(Error::Failed { command: line(command), status }) }
}

/// Runs a command and returns its standard output. Its error output goes to this program's.
pub(crate) fn capture(command: &mut Command) -> Result<String, Error> {
    let output = command.stderr(Stdio::inherit()).output().map_err(|source| start_error(command, source))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(Error::Failed { command: line(command), status: output.status })
    }
}

fn start_error(command: &Command, source: std::io::Error) -> Error {
    Error::Start { program: command.get_program().to_string_lossy().into_owned(), source }
}

fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
