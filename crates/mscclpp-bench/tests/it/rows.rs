//! Tests that each row is printed as soon as it is measured, and that a run says what it is at while a row takes long.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
};

use libtest_mimic::{Failed, Trial};
use mscclpp_test_support::LIMIT;

use super::{program::program, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("rows::a_row_of_several_processes_is_printed_before_the_next", several_processes),
        trial("rows::a_row_of_two_processes_is_printed_before_the_next", two_processes),
        trial("rows::rows_of_contenders_are_printed_before_the_next_size", contenders),
    ]
}

/// So many rounds that the second size takes much longer than the test, and the first little time.
const ENDLESS: &[&str] = &["--iters", "2000", "--repeats", "1", "--warmup", "0"];

fn several_processes() -> Result<(), Failed> {
    let sizes = ["all-reduce", "--ranks", "3", "-b", "12", "-e", "6M", "-f", "524288", "--calls", "20"];
    let run = Run::start(&[&sizes[..], ENDLESS].concat())?;
    run.expects_rows(&["all-reduce"]);
    run.expects_message("all-reduce of 6291456 B");
    Ok(())
}

fn two_processes() -> Result<(), Failed> {
    let sizes = ["memory-put", "-b", "8", "-e", "8M", "-f", "1048576", "--blocks", "1", "--threads", "32"];
    let run = Run::start(&[&sizes[..], ENDLESS].concat())?;
    run.expects_rows(&["none 1x32"]);
    run.expects_message("memory-put none 1x32 8 MiB");
    Ok(())
}

fn contenders() -> Result<(), Failed> {
    let sizes = ["ethernet-bw", "-b", "1K", "-e", "16M", "-f", "16384", "--connections", "1,3"];
    let run = Run::start(&[&sizes[..], ENDLESS].concat())?;
    run.expects_rows(&["plain socket", "host to host x1", "host to host x3"]);
    run.expects_message("ethernet-bw 16 MiB");
    Ok(())
}

/// A run of the program, which is killed when this is dropped. Its other ranks end with it.
struct Run {
    process: Child,
    table: Receiver<String>,
    messages: Receiver<String>,
}

impl Run {
    fn start(arguments: &[&str]) -> Result<Self, Failed> {
        let mut command = Command::new(program());
        command.args(arguments).env("MSCCLPP_PLATFORM", "sim").stdin(Stdio::null());
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let table = lines(process.stdout.take());
        let messages = lines(process.stderr.take());
        Ok(Self { process, table, messages })
    }

    /// Waits for the first rows, one for each name, while the run goes on.
    fn expects_rows(&self, names: &[&str]) {
        let next = || self.table.recv_timeout(5 * LIMIT).expect("a row, though the run has not ended");
        for name in names {
            let row = std::iter::repeat_with(next).find(|line| !line.starts_with('#')).expect("a row");
            assert!(row.contains(name) && row.ends_with(" ok"), "{row}");
        }
    }

    /// Waits until the run says that it is still at `what`.
    fn expects_message(&self, what: &str) {
        let next = || self.messages.recv_timeout(5 * LIMIT).expect("a message, though the run has not ended");
        // On a busy machine, there are messages about the start and the first row too.
        for message in std::iter::repeat_with(next) {
            let is_one = message.starts_with("rank 0, ") && message.contains(" in a row that has taken ");
            assert!(is_one, "{message}");
            if message.contains(what) {
                break;
            }
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // A process that has ended already was waited for by nobody else.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The lines that come out of a pipe.
fn lines(pipe: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let lines = pipe.into_iter().flat_map(|pipe| BufReader::new(pipe).lines());
        lines.map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    receiver
}
