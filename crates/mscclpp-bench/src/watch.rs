//! Prints what a long run is doing, and each row at once, and ends a run that takes too long. A user who pays for the
//! machine by the minute then has the rows so far, and knows what the run was waiting for.

use std::{
    fmt,
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    report::{Row, Times},
    watchdog::end_process,
};

/// The watch of one process. Without a limit it prints nothing and ends nothing.
pub(crate) struct Watch {
    rank: usize,
    begun: Instant,
    /// The current step; none if there is no limit.
    at: Option<Arc<Mutex<At>>>,
    /// The sender whose drop ends the thread.
    _running: Option<Sender<()>>,
}

/// The current step of the run, and its start.
struct At {
    what: String,
    since: Instant,
}

impl Watch {
    /// Starts to watch a run that may take up to `limit`.
    pub(crate) fn new(limit: Option<Duration>, rank: usize) -> Self {
        let begun = Instant::now();
        let at = limit.map(|_| Arc::new(Mutex::new(At { what: "the start".into(), since: begun })));
        let running = limit.zip(at.clone()).map(|(limit, at)| {
            let (running, ended) = mpsc::channel();
            thread::spawn(move || {
                if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                    end_process(&too_long(rank, limit, &at.lock()));
                }
            });
            running
        });
        Self { rank, begun, at, _running: running }
    }

    /// Begins a part of the run, and prints it on standard error.
    pub(crate) fn part(&self, what: &str) {
        if self.at.is_some() {
            self.line(&what);
            self.step(what);
        }
    }

    /// Begins a short step, which only an error names.
    pub(crate) fn step(&self, what: &str) {
        if let Some(at) = &self.at {
            *at.lock() = At { what: what.to_owned(), since: Instant::now() };
        }
    }

    /// Prints a row. One rank prints it for all.
    pub(crate) fn row(&self, row: &Row) {
        if self.at.is_some() && self.rank == 0 {
            self.line(&row_text(row));
        }
    }

    fn line(&self, text: &dyn fmt::Display) {
        eprintln!("rank {}, {:.1} s: {text}", self.rank, self.begun.elapsed().as_secs_f64());
    }
}

fn too_long(rank: usize, limit: Duration, at: &At) -> String {
    format!(
        "rank {rank} is not done within the {} s of --watch; for {:.1} s it has been at: {}",
        limit.as_secs_f64(),
        at.since.elapsed().as_secs_f64(),
        at.what
    )
}

fn row_text(row: &Row) -> String {
    let times = |times: Option<Times>| match times {
        Some(Times { median, min, max }) => {
            format!("{median:.1} {unit} ({min:.1} to {max:.1})", unit = row.unit.symbol())
        }
        None => "FAILED".to_owned(),
    };
    let mut text =
        format!("{} {} {}: {}", row.workload, row.variant, row.size_of.show(row.size), times(row.times));
    let sides = row.nccl.map(|nccl| [("NCCL", nccl.plain), ("NCCL with windows", nccl.windows)]);
    for (name, side) in sides.into_iter().flatten() {
        text.extend(side.map(|side| format!(", {name} {}", times(side.times))));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Measured, Nccl};

    #[test]
    fn what_ends_a_run_says_where_it_was() {
        let at = At { what: "connecting".into(), since: Instant::now() };
        let text = too_long(1, Duration::from_secs(45), &at);
        assert!(text.starts_with("rank 1 is not done within the 45 s of --watch; for 0.0 s"), "{text}");
        assert!(text.ends_with("at: connecting"), "{text}");
    }

    #[test]
    fn a_row_is_one_line() {
        let times = |median| Some(Times { median, min: 1.0, max: 9.0 });
        let row = Row {
            workload: "all-reduce".into(),
            variant: "2 hosts".into(),
            size: 1024,
            times: times(4.0),
            nccl: Some(Nccl { plain: Some(Measured { times: times(5.0) }), windows: None }),
            ..Row::default()
        };
        let text = row_text(&row);
        assert!(text.ends_with(": 4.0 us (1.0 to 9.0), NCCL 5.0 us (1.0 to 9.0)"), "{text}");
        assert!(row_text(&Row { times: None, ..row }).contains(": FAILED, NCCL 5.0"));
    }
}
