//! Examinations in separate processes: each examination has its own process, which reports each finding as a line. So if
//! a driver blocks or crashes, only the rest of that examination is lost.

use std::{
    env,
    io::{self, Write},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    sync::mpsc::RecvTimeoutError,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process_group, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::finding::{Finding, Section};
use crate::{call::name_of, lines::lines_of, watchdog::ended};

/// The longest time for one step: the first call of a driver may start many devices.
const STEP: Duration = Duration::from_secs(20);
/// The longest time for all steps of one examination.
const ALL_STEPS: Duration = Duration::from_secs(60);
/// The longest time for which a killed process may take to end.
const GRACE: Duration = Duration::from_secs(1);

/// A line that the process reports.
#[derive(Serialize, Deserialize)]
enum Line {
    /// The next step begins.
    Trying(String),
    Found(Finding),
    /// The examination is complete.
    Done,
}

/// The reporter of findings, used in the process of an examination.
pub(super) struct Teller(());

impl Teller {
    /// Reports the next step, in case it does not return.
    pub(super) fn trying(&self, what: impl Into<String>) {
        say(&Line::Trying(what.into()));
    }

    pub(super) fn found(&self, finding: Finding) {
        say(&Line::Found(finding));
    }
}

/// Writes a line, and ends the process if nobody reads it any more. The line break before it ends what a library has printed.
fn say(line: &Line) {
    let Ok(text) = serde_json::to_string(line) else { return };
    let mut out = io::stdout().lock();
    if writeln!(out, "\n{text}").and_then(|()| out.flush()).is_err() {
        std::process::exit(1);
    }
}

/// Runs an examination in its process, and reports its end.
pub(super) fn serve(examine: impl FnOnce(&Teller)) {
    // If this is refused, the process ends at its next line, because nobody reads it.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    examine(&Teller(()));
    say(&Line::Done);
}

/// Starts the process that examines `section`, and returns its findings.
pub(super) fn examine(section: Section) -> Vec<Finding> {
    let command = env::current_exe().map(|program| {
        let mut command = Command::new(program);
        command.args(["doctor", "--examine", &name_of(&section)]);
        command
    });
    run(
        command,
        section,
        (STEP, ALL_STEPS),
        "run this program where it may start processes, from a file that is still there",
    )
}

/// Starts a process that reports lines, and returns its findings. `limits` are for each step and for all; `remedy` helps if the
/// process cannot be started.
pub(super) fn run(
    command: io::Result<Command>,
    section: Section,
    (step, all): (Duration, Duration),
    remedy: &str,
) -> Vec<Finding> {
    let started = command.and_then(|mut command| {
        start(&mut command).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", command.get_program().display()))
        })
    });
    match started {
        Ok(child) => listen(child, section, step, all),
        Err(error) => {
            let reason = format!("the examination cannot be started: {error}");
            vec![section.problem("examination", reason, remedy)]
        }
    }
}

/// Starts the process in a group of its own, so that everything that it starts can be ended with it.
fn start(command: &mut Command) -> io::Result<Child> {
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()
}

/// Collects the process's findings, and one about how it ended if it did not complete.
fn listen(mut child: Child, section: Section, step: Duration, all: Duration) -> Vec<Finding> {
    // Lines in another format come from libraries that print, and are skipped.
    let lines = lines_of(child.stdout.take(), |line| serde_json::from_slice(&line).ok());
    let start = Instant::now();
    let (mut findings, mut trying) = (Vec::new(), "starting".to_owned());
    let failure = loop {
        let left = all.saturating_sub(start.elapsed());
        match lines.recv_timeout(step.min(left)) {
            Ok(Line::Trying(what)) => trying = what,
            Ok(Line::Found(finding)) => findings.push(finding),
            Ok(Line::Done) => break None,
            Err(RecvTimeoutError::Timeout) => {
                let (what, limit) =
                    if left < step { ("was not done", all) } else { ("gave no answer", step) };
                break Some(format!("the examination {what} within {limit:?} and was ended, while {trying}"));
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = ended(&mut child, GRACE);
                let status = status
                    .ok()
                    .flatten()
                    .map_or("it closed its output".to_owned(), |status| status.to_string());
                break Some(format!("the examination ended ({status}) while {trying}"));
            }
        }
    };
    let grace = if failure.is_none() { GRACE } else { Duration::ZERO };
    if let Some(reason) = failure {
        let remedy = "look at what the system's log says of that driver (dmesg); MSCCLPP_LOG_LEVEL=DEBUG shows more of \
                      what is done. What would have come after it is not known";
        findings.push(section.problem("examination", reason, remedy));
    }
    if !matches!(ended(&mut child, grace), Ok(Some(_))) {
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        // A process that is stuck in the kernel does not end; it is left behind.
        let _ = ended(&mut child, GRACE);
    }
    findings
}

#[cfg(test)]
mod tests {
    use std::{fs, thread};

    use mscclpp_test_support::in_threads;
    use serde_json::json;

    use super::*;
    use crate::doctor::finding::Outcome;

    fn run(script: &str, step: Duration, all: Duration) -> (Vec<Finding>, Duration) {
        let begin = Instant::now();
        let child = start(Command::new("sh").args(["-c", script])).expect("a shell");
        (listen(child, Section::Rdma, step, all), begin.elapsed())
    }

    fn reason(finding: &Finding) -> &str {
        match &finding.outcome {
            Outcome::Problem { reason, .. } => reason,
            other => panic!("{other:?}"),
        }
    }

    fn line(line: &Line) -> String {
        format!("echo '{}'", serde_json::to_string(line).expect("plain data"))
    }

    const LONG: Duration = Duration::from_secs(30);
    const SHORT: Duration = Duration::from_secs(3);

    #[test]
    fn what_came_before_a_call_that_blocks_is_kept() {
        let finding = Section::Rdma.ok("first", "works").facts(json!({"ports": 2}));
        let script = [
            line(&Line::Found(finding.clone())),
            r"echo a library says something; printf '\377\n'".to_owned(),
            line(&Line::Trying("opening mlx5_7".to_owned())),
            "exec sleep 60".to_owned(),
        ];
        in_threads([(SHORT, LONG), (LONG, SHORT)], |(step, all)| {
            let (findings, took) = run(&script.join("; "), step, all);
            assert_eq!(findings[0], finding);
            assert!(reason(&findings[1]).ends_with("within 3s and was ended, while opening mlx5_7"));
            assert!(took < LONG / 2, "{took:?}");
        });
    }

    #[test]
    fn what_it_has_started_is_ended_with_it() {
        let trying = r#"echo "{\"Trying\":\"process $!\"}""#;
        let (findings, _) = run(&format!("sleep 60 & {trying}; wait"), SHORT, LONG);
        let pid = reason(&findings[0]).rsplit(' ').next().and_then(|pid| pid.parse::<u32>().ok());
        let stat = format!("/proc/{}/stat", pid.expect("its number"));
        let is_running = || fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
        let deadline = Instant::now() + LONG;
        while is_running() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        assert!(!is_running());
    }

    #[test]
    fn a_crash_is_a_problem_that_says_where() {
        let trying = line(&Line::Trying("loading a driver".to_owned()));
        let (findings, _) = run(&format!("{trying}; kill -SEGV $$"), LONG, LONG);
        let reason = reason(&findings[0]);
        assert!(reason.contains("signal: 11") && reason.ends_with("while loading a driver"), "{reason}");
    }

    #[test]
    fn what_does_not_end_after_its_last_line_is_not_waited_for() {
        let (findings, took) = run(&format!("{}; exec sleep 60", line(&Line::Done)), LONG, LONG);
        assert!(findings.is_empty() && took < LONG / 2, "{took:?}");
    }
}
