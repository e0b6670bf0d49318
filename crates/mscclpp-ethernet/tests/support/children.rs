//! Processes that are this program again. A child says things on its standard output, one a line, and hears things on
//! its standard input. The parent never waits without a limit and leaves no process behind.

use std::{
    env,
    fmt::Write as _,
    io::{BufRead, BufReader, Write},
    process::{Child as Process, Command, ExitCode, Stdio},
    sync::mpsc,
    thread,
};

use super::LIMIT;

const FLAG: &str = "--child";

/// In a child: runs `role`. In the parent: nothing.
pub(crate) fn run_if_child(run: impl FnOnce(&str)) -> Option<ExitCode> {
    let role = env::args().skip_while(|argument| argument != FLAG).nth(1)?;
    run(&role);
    Some(ExitCode::SUCCESS)
}

/// In a child: tells the parent something.
pub(crate) fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", what.replace('\n', " | ")).and_then(|()| out.flush()).expect("a parent that listens");
}

/// In a child: waits for the parent's word. The parent's end is the child's.
pub(crate) fn hear() -> String {
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line).expect("standard input");
    assert_ne!(read, 0, "the parent is gone");
    line.trim().to_owned()
}

/// Bytes as text of one line.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    let digits = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal digits");
    (0..text.len()).step_by(2).map(digits).collect()
}

/// A process, from the parent's view. Killed when dropped.
pub(crate) struct Child {
    process: Process,
    lines: mpsc::Receiver<String>,
}

impl Child {
    pub(crate) fn start(role: &str) -> Self {
        Self::start_by(Command::new(env::current_exe().expect("this program")), role)
    }

    /// With a command that runs this program in its own way.
    pub(crate) fn start_by(mut command: Command, role: &str) -> Self {
        let mut process =
            command.args([FLAG, role]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a child");
        let output = BufReader::new(process.stdout.take().expect("a pipe"));
        let (sender, lines) = mpsc::channel();
        // Ends with the child's output.
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { process, lines }
    }

    pub(crate) fn tell(&mut self, what: &str) {
        let input = self.process.stdin.as_mut().expect("a pipe");
        writeln!(input, "{what}").unwrap_or_else(|error| panic!("telling a child: {error}"));
    }

    /// The next thing it says.
    pub(crate) fn next_line(&self) -> String {
        self.lines.recv_timeout(LIMIT).unwrap_or_else(|_| panic!("a child says nothing any more"))
    }

    pub(crate) fn expect(&self, what: &str) {
        assert_eq!(self.next_line(), what);
    }

    /// Sends it a signal, by its name.
    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.process.id().to_string()]).status();
        assert!(sent.expect("kill").success(), "sending SIG{name}");
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.process.kill().expect("a child to kill");
        self.process.wait().expect("a child to wait for");
    }

    /// Waits until it ends, and checks that it says nothing more and succeeds.
    pub(crate) fn expect_success(&mut self) {
        super::await_that("the end of a child", || self.process.try_wait().expect("a child").is_some());
        let status = self.process.wait().expect("a child");
        let rest: Vec<String> = self.lines.iter().collect();
        assert!(status.success() && rest.is_empty(), "{status}, after {rest:?}");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Neither fails for a child that is still there; one that has ended needs no killing.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
