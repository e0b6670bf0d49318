//! A build of this program, which is run for one workload.

use std::{
    io::Read,
    path::PathBuf,
    process::{Command, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::Duration,
};

use crate::{Result, report::Report, watchdog::ended};

/// The longest time for a workload: it takes seconds, or minutes on busy simulated devices; one that hangs is ended.
const LIMIT: Duration = Duration::from_secs(240);
/// The longest time until the last output of an ended process arrives.
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
        let (json, errors) = (all_of(child.stdout.take()), all_of(child.stderr.take()));
        let Some(status) = ended(&mut child, LIMIT)? else {
            // The other rank ends when it notices that this one has ended.
            child.kill()?;
            child.wait()?;
            return Err(said(&format!("it did not end within {} s", LIMIT.as_secs())).into());
        };
        let json = json.recv_timeout(GRACE).unwrap_or_default();
        serde_json::from_str(&json).map_err(|error| {
            let errors = errors.recv_timeout(GRACE).unwrap_or_default();
            let problem = if status.success() { format!("no result ({error})") } else { format!("{status}") };
            said(&format!("{problem}; it said: {}", errors.trim())).into()
        })
    }
}

/// Reads everything that comes out of a pipe, as one text.
fn all_of(pipe: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    // The thread is not joined: a process that was left behind may keep the pipe open.
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = pipe.map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut bytes));
        if read.is_ok() {
            // This fails if nobody waits for the text any more.
            let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
        }
    });
    receiver
}
