//! A build of this program, which is run for one workload.

use std::{
    iter,
    path::PathBuf,
    process::{Command, Stdio},
    sync::mpsc::Receiver,
    time::Duration,
};

use crate::{Result, lines::lines_of, report::Report, watchdog::ended};

/// The longest time for a workload: it takes seconds, or minutes on busy simulated devices; one that hangs is ended.
const LIMIT: Duration = Duration::from_secs(240);
/// The longest time until each further line of an ended process arrives.
const GRACE: Duration = Duration::from_secs(5);

/// The path of the build.
pub(super) struct Program(pub(super) PathBuf);

impl Program {
    /// Runs a workload. Its results may be wrong; its rows then show that.
    ///
    /// # Errors
    /// If there are no results: the program cannot be started, does not end in time, or prints an error.
    pub(super) fn measure(&self, arguments: &[String]) -> Result<Report> {
        let said = |what: &str| format!("{} {}: {what}", self.0.display(), arguments.join(" "));
        let mut command = Command::new(&self.0);
        command.args(arguments).args(["--json", "-"]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| said(&error.to_string()))?;
        let (json, errors) = (lines_of(child.stdout.take(), Some), lines_of(child.stderr.take(), Some));
        let Some(status) = ended(&mut child, LIMIT)? else {
            // The other rank ends when it notices that this one has ended.
            child.kill()?;
            child.wait()?;
            return Err(said(&format!("it did not end within {} s", LIMIT.as_secs())).into());
        };
        let all = |lines: Receiver<_>| {
            iter::from_fn(|| lines.recv_timeout(GRACE).ok()).collect::<Vec<Vec<u8>>>().join(&b'\n')
        };
        serde_json::from_slice(&all(json)).map_err(|error| {
            let errors = all(errors);
            let problem = if status.success() { format!("no result ({error})") } else { format!("{status}") };
            said(&format!("{problem}; it said: {}", String::from_utf8_lossy(&errors).trim())).into()
        })
    }
}
