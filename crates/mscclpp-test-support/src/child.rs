//! Child processes of a test, which run this test program again and play another rank.
//!
//! Each line that a child prints on its standard output is a message to the test; each line of its standard input is
//! a message from the test. The test never waits for a child without a limit, shows the child's messages when the
//! child does not behave as expected, and leaves no process behind.

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

/// Returns the role that this process was started for as a child; `None` in the test itself.
pub fn role() -> Option<Vec<String>> {
    let mut arguments = env::args().skip_while(|argument| argument != FLAG);
    arguments.next().map(|_| arguments.collect())
}

/// Sends the test a message of one line. Called in a child.
///
/// # Panics
/// Panics if the test is gone.
pub fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", what.replace('\n', " | ")).and_then(|()| out.flush()).expect("a test that listens");
}

/// Waits for the next message of the test, and returns it. Called in a child.
///
/// # Panics
/// Panics if there is none, because the test is gone or has closed the input.
pub fn hear() -> String {
    next_heard().expect("the test says nothing any more")
}

/// Waits until the test closes the input, or is gone. Called in a child.
///
/// # Panics
/// Panics if the test sends a message before that.
pub fn await_end() {
    assert_eq!(next_heard(), None, "the test says something more");
}

fn next_heard() -> Option<String> {
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line).expect("standard input");
    (read > 0).then(|| line.trim().to_owned())
}

/// Returns a command that runs this test program, to be started as a child.
///
/// # Panics
/// Panics if the system does not tell where the program is.
pub fn this_program() -> Command {
    Command::new(env::current_exe().expect("the path of this program"))
}

/// Returns a command that runs this test program as a child with that [`role`], for [`output_within`].
pub fn as_child(role: &[&str]) -> Command {
    let mut command = this_program();
    command.arg(FLAG).args(role);
    command
}

/// Runs a command to its end, and returns its output.
///
/// # Panics
/// Panics if it cannot be started, or does not end within `limit`: then it is killed, and its output shown.
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
        // The output that came before an error is all that can be shown.
        let _ = from.read_to_end(&mut bytes);
        bytes
    })
}

/// A child process, as the test sees it. It is killed when dropped.
#[derive(Debug)]
pub struct Child {
    name: String,
    process: Process,
    lines: mpsc::Receiver<String>,
    said: Arc<Mutex<Vec<String>>>,
}

impl Child {
    /// Starts this program as a child with that [`role`].
    ///
    /// # Panics
    /// Panics if it cannot be started, as all functions do that start a child.
    pub fn start(role: &[&str]) -> Self {
        Self::start_by(this_program(), role)
    }

    /// The same as [`Child::start`], but the child's messages go to `heard`, on another thread, and not to
    /// [`Child::next_line`].
    pub fn start_heard_by(role: &[&str], heard: impl FnMut(String) + Send + 'static) -> Self {
        let (_, nothing) = mpsc::channel();
        Self::begin(this_program(), role, Stdio::piped(), nothing, heard)
    }

    /// Starts a child by a command that runs this program, which gets more arguments.
    pub fn start_by(command: Command, role: &[&str]) -> Self {
        Self::start_with(command, role, Stdio::piped())
    }

    /// The same as [`Child::start_by`], with another standard input, so that [`Child::tell`] cannot be used.
    pub fn start_with(command: Command, role: &[&str], input: impl Into<Stdio>) -> Self {
        let (sender, lines) = mpsc::channel();
        Self::begin(command, role, input.into(), lines, move |line| {
            // The test may not want more messages. The child must be able to go on nevertheless.
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
        // This thread ends with the child's output.
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

    /// Sends the child a message.
    ///
    /// # Panics
    /// Panics if the child does not read any more.
    pub fn tell(&mut self, what: &str) {
        let input = self.process.stdin.as_mut().expect("an input of the child that is open");
        if let Err(error) = writeln!(input, "{what}") {
            self.fail(&format!("telling it {what:?}: {error}"));
        }
    }

    /// Closes the child's input, for which [`await_end`] waits.
    pub fn close_input(&mut self) {
        drop(self.process.stdin.take());
    }

    /// Returns the child's next message.
    ///
    /// # Panics
    /// Panics if no message comes within [`LIMIT`].
    pub fn next_line(&self) -> String {
        self.line_before(Instant::now() + LIMIT).unwrap_or_else(|| self.fail("it says nothing more"))
    }

    /// Returns the child's next message, if it comes before `deadline`.
    pub fn line_before(&self, deadline: Instant) -> Option<String> {
        self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()
    }

    /// Checks that the child's next message is `what`.
    ///
    /// # Panics
    /// Panics if it is another one.
    pub fn expect(&self, what: &str) {
        let line = self.next_line();
        if line != what {
            self.fail(&format!("it says {line:?} where {what:?} was due"));
        }
    }

    /// Returns the child's process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends the child a signal.
    ///
    /// # Panics
    /// Panics if the child has been waited for.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("a signal to a child");
    }

    /// Kills the child with SIGKILL. Returns when it is gone.
    pub fn kill(&mut self) {
        kill(&mut self.process);
    }

    /// Waits until the child ends.
    ///
    /// # Panics
    /// Panics if it does not end within [`LIMIT`].
    pub fn expect_end(&mut self) -> ExitStatus {
        let mut status = None;
        within(LIMIT, || {
            status = self.process.try_wait().expect("a process of ours");
            status.is_some()
        });
        status.unwrap_or_else(|| self.fail("it does not end"))
    }

    /// Waits until the child ends, and checks that it sends no more messages and succeeds.
    ///
    /// # Panics
    /// Panics if it sends another message, fails, or does not end.
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

/// Kills a process and waits for its end. Neither call fails for a process that still runs; one that has ended needs
/// no kill.
fn kill(process: &mut Process) {
    let _ = process.kill();
    let _ = process.wait();
}
