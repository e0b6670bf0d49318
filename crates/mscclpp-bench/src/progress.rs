//! A line on the terminal that shows the progress of a long run.

use std::{
    io::{self, IsTerminal, Write},
    time::{Duration, Instant},
};

/// The time before which nothing is drawn, so that short runs show no line.
const QUIET: Duration = Duration::from_millis(300);
const BETWEEN_DRAWS: Duration = Duration::from_millis(100);
const BAR: usize = 24;

/// A progress line on stderr, if that is a terminal. It is wiped when this is dropped.
pub(crate) struct Progress {
    steps: usize,
    done: usize,
    started: Instant,
    drawn: Option<Instant>,
    visible: bool,
}

impl Progress {
    /// Makes a line for `steps` steps. The other ranks' processes pass `quiet`, so that they do not draw.
    pub(crate) fn new(steps: usize, quiet: bool) -> Self {
        let visible = !quiet && io::stderr().is_terminal();
        Self { steps, done: 0, started: Instant::now(), drawn: None, visible }
    }

    /// Begins the step that `label` names. Nothing is drawn during a step, so that nothing disturbs it.
    pub(crate) fn step(&mut self, label: &str) {
        if self.visible
            && self.started.elapsed() >= QUIET
            && self.drawn.is_none_or(|drawn| drawn.elapsed() >= BETWEEN_DRAWS)
        {
            self.drawn = Some(Instant::now());
            // If the terminal no longer exists, the run goes on.
            let _ = write!(
                io::stderr(),
                "\r\x1b[2K{}",
                line(label, self.done, self.steps, self.started.elapsed())
            );
        }
        self.done += 1;
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.drawn.is_some() {
            let _ = write!(io::stderr(), "\r\x1b[2K");
        }
    }
}

/// The text of the line when `done` of `steps` steps are over after `elapsed`.
fn line(label: &str, done: usize, steps: usize, elapsed: Duration) -> String {
    let (done, steps) = (done.min(steps), steps.max(1));
    let full = BAR * done / steps;
    let left = match done {
        0 => String::new(),
        _ => format!(", {:.0} s left", elapsed.as_secs_f64() * (steps - done) as f64 / done as f64),
    };
    format!("[{}{}] {:>3} %{left}  {label}", "=".repeat(full), " ".repeat(BAR - full), 100 * done / steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_how_far_and_how_long() {
        let text = line("memory-put 1 MiB", 1, 4, Duration::from_secs(2));
        assert_eq!(text, "[======                  ]  25 %, 6 s left  memory-put 1 MiB");
        assert!(line("x", 0, 4, Duration::ZERO).contains("  0 %  x"));
        // More steps than were announced, or none at all, must not fail.
        assert!(line("x", 9, 4, Duration::from_secs(1)).contains("100 %, 0 s left"));
        assert!(line("x", 0, 0, Duration::ZERO).contains("  0 %"));
    }
}
