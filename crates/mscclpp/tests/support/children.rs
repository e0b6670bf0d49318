//! Ranks that are processes: this program again, with `--rank`.
//!
//! A child says things on its standard output, one a line, and is told things on its standard input. The parent never
//! waits without a limit and leaves no process behind.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    process::{Child, Command, ExitCode, Stdio},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use libtest_mimic::Failed;
use mscclpp::prelude::*;

use super::{LIMIT, platform};

const FLAG: &str = "--rank";

/// What a child was started for.
pub(crate) struct Role {
    pub(crate) name: String,
    pub(crate) rank: usize,
    pub(crate) n_ranks: usize,
}

/// In a child: runs its role. In the parent: nothing.
pub(crate) fn run_if_child(run: impl FnOnce(&Role)) -> Option<ExitCode> {
    let arguments: Vec<String> = env::args().skip_while(|argument| argument != FLAG).skip(1).collect();
    let [name, rank, n_ranks] = arguments.as_slice() else { return None };
    let number = |text: &String| text.parse().expect("a number");
    let role = Role { name: name.clone(), rank: number(rank), n_ranks: number(n_ranks) };
    mscclpp::log::init().expect("logging");
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

impl Role {
    /// In a child: forms the job. Rank 0 makes the unique id, the parent hands it on.
    pub(crate) fn bootstrap(&self, timeout: Duration) -> mscclpp::Result<TcpBootstrap> {
        let id = if self.rank == 0 {
            let id = TcpBootstrap::create_unique_id()?;
            say(&format!("id {}", id.to_hex()));
            id
        } else {
            let said = hear();
            said.strip_prefix("id ").unwrap_or(&said).parse()?
        };
        say("formed?");
        assert_eq!(hear(), "go");
        Ok(TcpBootstrap::new(self.rank, self.n_ranks, id, timeout)?)
    }

    /// In a child: a communicator of the job.
    pub(crate) fn communicator(&self) -> mscclpp::Result<Communicator> {
        Ok(Communicator::with_context(Arc::new(self.bootstrap(LIMIT)?), Context::on(platform())))
    }
}

/// How soon every rank must have noticed that another was killed.
const NOTICE: Duration = Duration::from_secs(5);

/// Runs a role with `n` ranks, each of which must succeed.
pub(crate) fn all_succeed(role: &str, n: usize) -> Result<(), Failed> {
    println!("{n} ranks on {}", platform());
    let mut children = Children::form(role, n);
    (0..n).for_each(|rank| children.expect_success(rank));
    Ok(())
}

/// The processes of a job, from the parent's view. Killed when dropped.
pub(crate) struct Children {
    children: Vec<Rank>,
}

struct Rank {
    process: Child,
    lines: mpsc::Receiver<String>,
}

impl Children {
    /// Starts them, and hands on the unique id. Each then waits for its first `go` before it joins the job.
    pub(crate) fn start(role: &str, n_ranks: usize) -> Self {
        Self::start_as(role, n_ranks, |_| this_program())
    }

    /// As [`Children::start`], each by the command of its rank, which gets more arguments.
    pub(crate) fn start_as(role: &str, n_ranks: usize, command: impl Fn(usize) -> Command) -> Self {
        let start = |rank| Rank::start(role, rank, n_ranks, command(rank));
        let mut children = Self { children: (0..n_ranks).map(start).collect() };
        let id = children.next_line(0);
        assert!(id.starts_with("id "), "{id}");
        for rank in 1..n_ranks {
            children.tell(rank, &id);
        }
        for rank in 0..n_ranks {
            children.expect(rank, "formed?");
        }
        children
    }

    /// Starts them and lets all join.
    pub(crate) fn form(role: &str, n_ranks: usize) -> Self {
        let mut children = Self::start(role, n_ranks);
        children.go();
        children
    }

    /// Lets all go on.
    pub(crate) fn go(&mut self) {
        for rank in 0..self.children.len() {
            self.tell(rank, "go");
        }
    }

    pub(crate) fn tell(&mut self, rank: usize, what: &str) {
        let input = self.children[rank].process.stdin.as_mut().expect("a pipe");
        writeln!(input, "{what}").unwrap_or_else(|error| panic!("telling rank {rank} {what:?}: {error}"));
    }

    /// The next thing that a rank says.
    pub(crate) fn next_line(&self, rank: usize) -> String {
        self.children[rank]
            .lines
            .recv_timeout(LIMIT)
            .unwrap_or_else(|_| panic!("rank {rank} says nothing any more"))
    }

    pub(crate) fn expect(&self, rank: usize, what: &str) {
        assert_eq!(self.next_line(rank), what, "rank {rank}");
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self, rank: usize) {
        self.children[rank].process.kill().expect("a child to kill");
        self.children[rank].process.wait().expect("a child to wait for");
    }

    /// Waits until a rank ends, and checks that it says nothing more and succeeds.
    pub(crate) fn expect_success(&mut self, rank: usize) {
        let child = &mut self.children[rank];
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(status) = child.process.try_wait().expect("a child") {
                let rest: Vec<String> = child.lines.iter().collect();
                assert!(status.success() && rest.is_empty(), "rank {rank}: {status}, after {rest:?}");
                return;
            }
            assert!(Instant::now() < deadline, "rank {rank} does not end");
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Children {
    /// That each survivor says in time which rank was killed `at` that moment, then that its device is usable, and
    /// ends.
    pub(crate) fn expect_named(
        &mut self,
        survivors: &[usize],
        victim: usize,
        at: Instant,
    ) -> Result<(), Failed> {
        for rank in survivors {
            let said = self.next_line(*rank);
            let after = at.elapsed();
            println!("rank {rank} after {after:?}: {said}");
            if !said.starts_with("error ") || !said.contains(&format!("rank {victim}")) {
                return Err(format!("rank {rank} does not name rank {victim}: {said}").into());
            }
            if after > NOTICE {
                return Err(format!("rank {rank} took {after:?}").into());
            }
        }
        for rank in survivors {
            self.expect(*rank, "usable");
            self.expect_success(*rank);
        }
        Ok(())
    }
}

/// What a rank is started by.
pub(crate) fn this_program() -> Command {
    Command::new(env::current_exe().expect("this program"))
}

impl Rank {
    fn start(role: &str, rank: usize, n_ranks: usize, mut command: Command) -> Self {
        let mut process = command
            .args([FLAG, role, &rank.to_string(), &n_ranks.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
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
}

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Neither fails for a child that is still there; one that has ended needs no killing.
            let _ = child.process.kill();
            let _ = child.process.wait();
        }
    }
}
