//! Processes that are this test program again, and play another rank.
//!
//! What a child prints on its standard output it says to the test, one thing a line; its standard input is what it hears.
//! The test never waits for a child without a limit, shows what the child has said when it does not say or do what it
//! should, and leaves no process behind.

use std::{
    env,
    io::{BufRead, BufReader, Read, Write},
    process::{Child as Process, Command, ExitStatus, Output, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::wait::{LIMIT, within};

const FLAG: &str = "--child";

/// In a child: what it was started for. In the test: nothing.
pub fn role() -> Option<Vec<String>> {
    let mut arguments = env::args().skip_while(|argument| argument != FLAG);
    arguments.next().map(|_| arguments.collect())
}

/// In a child: tells the test something, in one line.
///
/// # Panics
/// If the test is gone.
pub fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", what.replace('\n', " | ")).and_then(|()| out.flush()).expect("a test that listens");
}

/// In a child: waits for the next thing that the test says.
///
/// # Panics
/// If there is none, because the test is gone or has closed the input.
pub fn hear() -> String {
    next_heard().expect("the test says nothing any more")
}

/// In a child: waits until the test closes the input, or is gone.
///
/// # Panics
/// If the test says something before that.
pub fn await_end() {
    assert_eq!(next_heard(), None, "the test says something more");
}

fn next_heard() -> Option<String> {
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line).expect("standard input");
    (read > 0).then(|| line.trim().to_owned())
}

/// This test program, to be started as a child.
///
/// # Panics
/// If the system does not tell where it is.
pub fn this_program() -> Command {
    Command::new(env::current_exe().expect("the path of this program"))
}

/// This test program as a child whose [`role`] is this, for [`output_within`].
pub fn as_child(role: &[&str]) -> Command {
    let mut command = this_program();
    command.arg(FLAG).args(role);
    command
}

/// Runs a command to its end.
///
/// # Panics
/// If it cannot be started, or does not end within `limit`: then it is killed, and its output shown.
pub fn output_within(limit: Duration, command: &mut Command) -> Output {
    let mut process = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("starting {command:?}: {error}"));
    let stdout = read_all(process.stdout.take().expect("a pipe"));
    let stderr = read_all(process.stderr.take().expect("a pipe"));
    let mut status = None;
    let ended = within(limit, || {
        status = process.try_wait().expect("a process of ours");
        status.is_some()
    });
    if !ended {
        kill(&mut process);
    }
    let [stdout, stderr] = [stdout, stderr].map(|reader| reader.join().expect("a reader"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match status {
        Some(status) => Output { status, stdout, stderr },
        None => {
            panic!("{command:?}: killed after {limit:?}. It said:\n{}\n{}", text(&stdout), text(&stderr))
        }
    }
}

fn read_all(mut from: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What came before an error is all there is to show.
        let _ = from.read_to_end(&mut bytes);
        bytes
    })
}

/// A process, as the test sees it. Killed when dropped.
#[derive(Debug)]
pub struct Child {
    name: String,
    process: Process,
    lines: mpsc::Receiver<String>,
    said: Arc<Mutex<Vec<String>>>,
}

impl Child {
    /// This program, whose [`role`] is this.
    ///
    /// # Panics
    /// If it cannot be started, as all functions that start one.
    pub fn start(role: &[&str]) -> Self {
        Self::start_by(this_program(), role)
    }

    /// As [`Child::start`]; what it says goes to `heard`, on another thread, and not to [`Child::next_line`].
    pub fn start_heard_by(role: &[&str], heard: impl FnMut(String) + Send + 'static) -> Self {
        let (_, nothing) = mpsc::channel();
        Self::begin(this_program(), role, Stdio::piped(), nothing, heard)
    }

    /// By a command that runs this program, which gets more arguments.
    pub fn start_by(command: Command, role: &[&str]) -> Self {
        Self::start_with(command, role, Stdio::piped())
    }

    /// As [`Child::start_by`], with another standard input, so that [`Child::tell`] cannot be used.
    pub fn start_with(command: Command, role: &[&str], input: impl Into<Stdio>) -> Self {
        let (sender, lines) = mpsc::channel();
        Self::begin(command, role, input.into(), lines, move |line| {
            // Nobody may want to know any more. The child must be able to go on nevertheless.
            let _ = sender.send(line);
        })
    }

    fn begin(
        mut command: Command,
        role: &[&str],
        input: Stdio,
        lines: mpsc::Receiver<String>,
        mut heard: impl FnMut(String) + Send + 'static,
    ) -> Self {
        let name = format!("the child {role:?}");
        let mut process = command
            .arg(FLAG)
            .args(role)
            .stdin(input)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("starting {name} by {command:?}: {error}"));
        let mut output = BufReader::new(process.stdout.take().expect("a pipe"));
        let said = Arc::new(Mutex::new(Vec::new()));
        let all = said.clone();
        // Ends with the child's output.
        thread::spawn(move || {
            let mut line = Vec::new();
            while output.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                let text = String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned();
                all.lock().unwrap_or_else(PoisonError::into_inner).push(text.clone());
                heard(text);
                line.clear();
            }
        });
        Self { name, process, lines, said }
    }

    /// Says something to the child.
    ///
    /// # Panics
    /// If it does not hear any more.
    pub fn tell(&mut self, what: &str) {
        let input = self.process.stdin.as_mut().expect("an input of the child that is open");
        if let Err(error) = writeln!(input, "{what}") {
            self.fail(&format!("telling it {what:?}: {error}"));
        }
    }

    /// Closes its input, for which [`await_end`] waits.
    pub fn close_input(&mut self) {
        drop(self.process.stdin.take());
    }

    /// The next thing it says.
    ///
    /// # Panics
    /// If it says nothing within [`LIMIT`].
    pub fn next_line(&self) -> String {
        self.line_before(Instant::now() + LIMIT).unwrap_or_else(|| self.fail("it says nothing more"))
    }

    /// The next thing it says, if that is before `deadline`.
    pub fn line_before(&self, deadline: Instant) -> Option<String> {
        self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()
    }

    /// # Panics
    /// If the next thing it says is something else.
    pub fn expect(&self, what: &str) {
        let line = self.next_line();
        if line != what {
            self.fail(&format!("it says {line:?} where {what:?} was due"));
        }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// If it has been waited for.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("a signal to a child");
    }

    /// SIGKILL. Returns when it is gone.
    pub fn kill(&mut self) {
        kill(&mut self.process);
    }

    /// Waits until it ends.
    ///
    /// # Panics
    /// If it does not within [`LIMIT`].
    pub fn expect_end(&mut self) -> ExitStatus {
        let mut status = None;
        within(LIMIT, || {
            status = self.process.try_wait().expect("a process of ours");
            status.is_some()
        });
        status.unwrap_or_else(|| self.fail("it does not end"))
    }

    /// Waits until it ends, and checks that it says nothing more and succeeds.
    ///
    /// # Panics
    /// If something of that is not so.
    pub fn expect_success(&mut self) {
        let status = self.expect_end();
        match self.lines.recv_timeout(LIMIT) {
            Err(RecvTimeoutError::Disconnected) if status.success() => {}
            rest => self.fail(&format!("it ended with {status}, after {rest:?}")),
        }
    }

    fn fail(&self, why: &str) -> ! {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner).join("\n  ");
        panic!("{}: {why}. It has said:\n  {said}", self.name)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        kill(&mut self.process);
    }
}

/// Neither call fails for a process that is still there; one that has ended needs no killing.
fn kill(process: &mut Process) {
    let _ = process.kill();
    let _ = process.wait();
}
