//! Says on standard error what a run is doing: by a line on the terminal, and by a message when a row takes long. With
//! `--watch`, each part has a message, and a run that takes too long is ended.

use std::{
    io::{self, IsTerminal, Write},
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::watchdog::end_process;

/// The time before which nothing is drawn, so that short runs show no line.
const QUIET: Duration = Duration::from_millis(300);
const BETWEEN_DRAWS: Duration = Duration::from_millis(100);
const BAR: usize = 24;
/// The time that a row may take before a message says what it is at. The next message comes after twice the time.
const SLOW: Duration = Duration::from_secs(2);
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

pub(crate) struct Progress {
    rank: usize,
    begun: Instant,
    /// The number of cells: of rows, or of groups of rows that are measured together.
    cells: usize,
    done: usize,
    drawn: Option<Instant>,
    is_visible: bool,
    now: Arc<Mutex<Now>>,
    /// The sender whose drop ends the thread.
    _running: Sender<()>,
}

/// The current step of the run.
struct Now {
    what: String,
    since: Instant,
    row_since: Instant,
    /// The duration of the row at which the next message comes.
    next: Duration,
    limit: Option<Duration>,
}

impl Progress {
    /// Begins the run of a rank. Only the rank that `reports` draws the line and says what takes long.
    pub(crate) fn new(rank: usize, reports: bool) -> Self {
        let begun = Instant::now();
        let what = "the start, where the ranks meet and load what they need".to_owned();
        let now = Now { what, since: begun, row_since: begun, next: SLOW, limit: None };
        let now = Arc::new(Mutex::new(now));
        let (running, ended) = mpsc::channel();
        let (is_visible, of_thread) = (reports && io::stderr().is_terminal(), Arc::clone(&now));
        thread::spawn(move || look(rank, reports, begun, &of_thread, &ended));
        Self { rank, begun, cells: 0, done: 0, drawn: None, is_visible, now, _running: running }
    }

    /// Says each part on standard error, and ends the process after `limit`, counted from the start of the run.
    pub(crate) fn watch(&self, limit: Option<Duration>) {
        self.now.lock().limit = limit;
    }

    /// Begins the rows of so many cells.
    pub(crate) fn expect(&mut self, cells: usize) {
        self.cells = cells;
        self.now.lock().next_row();
    }

    /// Begins a part of the run. With `--watch`, it is said at once.
    pub(crate) fn part(&self, what: &str) {
        if self.now.lock().is_at(what) {
            say(&said(self.rank, self.begun, what));
        }
    }

    /// Begins a step behind `part` of the cell, and draws the line. Nothing is drawn during a step, so that nothing disturbs it.
    pub(crate) fn step(&mut self, what: &str, part: f64) {
        self.now.lock().is_at(what);
        if self.is_visible
            && self.begun.elapsed() >= QUIET
            && self.drawn.is_none_or(|drawn| drawn.elapsed() >= BETWEEN_DRAWS)
        {
            self.drawn = Some(Instant::now());
            // If the terminal no longer exists, the run goes on.
            let bar = bar(what, self.done as f64 + part, self.cells as f64, self.begun.elapsed());
            let _ = write!(io::stderr(), "{WIPE}{bar}");
        }
    }

    /// Ends a cell.
    pub(crate) fn cell(&mut self) {
        self.done += 1;
    }

    /// Ends a row, which is about to be printed: wipes the line.
    pub(crate) fn row(&mut self) {
        self.wipe();
        self.now.lock().next_row();
    }

    fn wipe(&mut self) {
        if self.drawn.take().is_some() {
            let _ = write!(io::stderr(), "{WIPE}");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.wipe();
    }
}

impl Now {
    /// Begins a step. Returns whether the run is watched.
    fn is_at(&mut self, what: &str) -> bool {
        (self.what, self.since) = (what.to_owned(), Instant::now());
        self.limit.is_some()
    }

    /// Begins a row.
    fn next_row(&mut self) {
        (self.row_since, self.next) = (Instant::now(), SLOW);
    }
}

/// Wipes the line of the terminal.
const WIPE: &str = "\r\x1b[2K";

/// Looks at the run until it has ended: says what takes long, and ends the process after the limit.
fn look(rank: usize, reports: bool, begun: Instant, now: &Mutex<Now>, ended: &Receiver<()>) {
    while ended.recv_timeout(BETWEEN_LOOKS) == Err(RecvTimeoutError::Timeout) {
        let mut now = now.lock();
        if let Some(limit) = now.limit.filter(|limit| begun.elapsed() >= *limit) {
            end_process(&too_long(rank, limit, &now));
        }
        let took = now.row_since.elapsed();
        if reports && took >= now.next {
            now.next = 2 * took;
            let wipe = if io::stderr().is_terminal() { WIPE } else { "" };
            let text = format!("{}, in a row that has taken {:.0} s so far", now.what, took.as_secs_f64());
            say(&format!("{wipe}{}", said(rank, begun, &text)));
        }
    }
}

/// Writes a line on standard error at once, as other ranks write there, too. If that no longer exists, the run goes on.
fn say(text: &str) {
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

fn said(rank: usize, begun: Instant, text: &str) -> String {
    format!("rank {rank}, {:.1} s: {text}", begun.elapsed().as_secs_f64())
}

/// The text of the line when `done` of `cells` cells are over after `elapsed`.
fn bar(label: &str, done: f64, cells: f64, elapsed: Duration) -> String {
    let part = (done / cells.max(1.0)).min(1.0);
    let full = (BAR as f64 * part) as usize;
    let left = match part {
        0.0 => String::new(),
        _ => format!(", {:.0} s left", elapsed.as_secs_f64() * (1.0 - part) / part),
    };
    format!(
        "[{}{}] {:>3.0} %{left}  {label}",
        "=".repeat(full),
        " ".repeat(BAR - full),
        (100.0 * part).floor()
    )
}

fn too_long(rank: usize, limit: Duration, now: &Now) -> String {
    format!(
        "rank {rank} is not done within the {} s of --watch; for {:.1} s it has been at: {}",
        limit.as_secs_f64(),
        now.since.elapsed().as_secs_f64(),
        now.what
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_a_run_says_where_it_was() {
        let (now, limit) = (Instant::now(), Duration::from_secs(45));
        let now =
            Now { what: "connecting".into(), since: now, row_since: now, next: SLOW, limit: Some(limit) };
        let text = too_long(1, limit, &now);
        assert!(text.starts_with("rank 1 is not done within the 45 s of --watch; for 0.0 s"), "{text}");
        assert!(text.ends_with("at: connecting"), "{text}");
    }

    #[test]
    fn the_line_says_how_far_and_how_long() {
        let text = bar("memory-put 1 MiB", 1.0, 4.0, Duration::from_secs(2));
        assert_eq!(text, "[======                  ]  25 %, 6 s left  memory-put 1 MiB");
        assert!(bar("x", 0.0, 4.0, Duration::ZERO).contains("  0 %  x"));
        // More cells than were announced, or none at all, must not fail.
        assert!(bar("x", 9.0, 4.0, Duration::from_secs(1)).contains("100 %, 0 s left"));
        assert!(bar("x", 0.0, 0.0, Duration::ZERO).contains("  0 %"));
    }
}
