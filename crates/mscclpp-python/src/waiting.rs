//! Waits that let other Python threads run, and that Ctrl-C ends.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use mscclpp::ErrorKind;
use pyo3::prelude::*;

use crate::error::{self, OrRaise};

/// How long a wait goes on before it looks for signals.
pub(crate) const SLICE: Duration = Duration::from_millis(100);

/// Does `work`, which may block. In the main thread, the only one that handles signals, Ctrl-C ends the wait; the work
/// itself then goes on, on a thread of its own, and its outcome is dropped.
pub(crate) fn wait<T, E>(py: Python<'_>, work: impl FnOnce() -> Result<T, E> + Send + 'static) -> PyResult<T>
where
    T: Send + 'static,
    E: Into<mscclpp::Error> + Send + 'static,
{
    if !is_main_thread() {
        return py.detach(work).or_raise();
    }
    let (done, outcome) = mpsc::sync_channel(1);
    // The receiver is for one thread at a time: this one, also while it is detached.
    let outcome = Mutex::new(outcome);
    thread::Builder::new()
        .name("mscclpp-wait".to_owned())
        .spawn(move || {
            // Nobody listens any more after Ctrl-C.
            let _ = done.send(work());
        })
        .map_err(|e| error::new(ErrorKind::System, format!("starting a thread to wait on failed: {e}")))?;
    loop {
        let next = || outcome.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(SLICE);
        match py.detach(next) {
            Ok(outcome) => return outcome.or_raise(),
            Err(mpsc::RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(error::new(ErrorKind::Internal, "the thread that did the work panicked"));
            }
        }
    }
}

/// As [`wait`], for work that can be repeated when its time has run out: `attempt` is called with the time that it may
/// take until it says something. After Ctrl-C it is not called any more.
pub(crate) fn wait_in_turns<T: Send + 'static>(
    py: Python<'_>,
    mut attempt: impl FnMut(Duration) -> Result<Option<T>, mscclpp::Error> + Send + 'static,
) -> PyResult<T> {
    let given_up = GivenUp(Arc::default());
    let is_given_up = Arc::clone(&given_up.0);
    let waited = wait(py, move || {
        loop {
            if let Some(value) = attempt(SLICE)? {
                return Ok::<_, mscclpp::Error>(Some(value));
            }
            // A plain flag: it orders nothing else.
            if is_given_up.load(Ordering::Relaxed) {
                return Ok(None);
            }
        }
    })?;
    waited.ok_or_else(|| error::new(ErrorKind::Internal, "a wait ended though nobody had given it up"))
}

/// Says when it is dropped that nobody waits any more.
struct GivenUp(Arc<AtomicBool>);

impl Drop for GivenUp {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Calls `attempt` with the time that it may take, until it says something, for at most `timeout`, once at least, on
/// this very thread. For calls that keep to their time and can be repeated. Gives none when time is up.
pub(crate) fn repeat<T: Send>(
    py: Python<'_>,
    timeout: Option<Duration>,
    mut attempt: impl FnMut(Duration) -> Result<Option<T>, mscclpp::Error> + Send,
) -> PyResult<Option<T>> {
    let start = Instant::now();
    loop {
        let left = timeout.map_or(SLICE, |timeout| timeout.saturating_sub(start.elapsed()));
        if let Some(value) = py.detach(|| attempt(left.min(SLICE))).or_raise()? {
            return Ok(Some(value));
        }
        py.check_signals()?;
        if timeout.is_some_and(|timeout| start.elapsed() >= timeout) {
            return Ok(None);
        }
    }
}

/// A time-out as Python programs give it.
pub(crate) fn seconds(timeout_sec: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(timeout_sec).map_err(|_| {
        error::misuse(format!("timeout_sec is {timeout_sec}; it must be a number of seconds from 0 on"))
    })
}

/// The thread of that number is the one that its process began with.
fn is_main_thread() -> bool {
    rustix::thread::gettid() == rustix::process::getpid()
}
