//! Waits that let other Python threads run, that Ctrl-C ends, and that log what they wait for when it takes long.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use mscclpp::{
    Error, ErrorKind, Stream,
    errors::{BootstrapError, CoreError, GpuError},
};
use mscclpp_os::waiting::{FIRST_LOG, LongWait};
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::error::{self, OrRaise};

/// How long the main thread waits between two checks for signals.
const SLICE: Duration = Duration::from_millis(100);
/// How long other threads wait at a time: they handle no signals. Calls that take that long log by themselves.
const WITHOUT_SIGNALS: Duration = Duration::from_secs(3600);

/// Calls `work`, which may block, and returns its outcome. In the main thread, the only one that handles signals, Ctrl-C ends
/// the wait. `work` then goes on in a thread of its own, and its outcome is dropped.
pub(crate) fn outcome<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    if !is_main_thread() {
        return Ok(py.detach(work));
    }
    elsewhere(py, work, || Ok(()))
}

/// Calls `work` as [`outcome`] does, and raises its error.
pub(crate) fn wait<T, E>(py: Python<'_>, work: impl FnOnce() -> Result<T, E> + Send + 'static) -> PyResult<T>
where
    T: Send + 'static,
    E: Into<Error> + Send + 'static,
{
    outcome(py, work)?.or_raise()
}

/// Calls `work`, which waits for the work in a stream and then for nothing. Waits like [`outcome`], but starts a thread only
/// if the work in the stream takes long: to start one takes longer than most of these waits.
pub(crate) fn wait_for_stream<T: Send + 'static>(
    py: Python<'_>,
    stream: Stream,
    work: impl FnOnce(&Stream) -> T + Send + 'static,
) -> PyResult<T> {
    // `work` reports the errors of the stream.
    if matches!(py.detach(|| stream.query_timeout(SHORT)), Ok(true)) {
        return Ok(py.detach(move || work(&stream)));
    }
    outcome(py, move || work(&stream))
}

/// How long a stream may take until a thread is started. Signals are not handled meanwhile.
const SHORT: Duration = Duration::from_millis(20);

/// Waits like [`wait`], in any thread, for work that cannot be ended. [`GivenUp::give_up`] ends the wait.
pub(crate) fn wait_until_given_up<T, E>(
    py: Python<'_>,
    given_up: &GivenUp,
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> PyResult<T>
where
    T: Send + 'static,
    E: Into<Error> + Send + 'static,
{
    given_up.check()?;
    elsewhere(py, work, || given_up.check())?.or_raise()
}

/// Calls `work`, and returns an error after `limit`. `work` then goes on in a thread of its own.
pub(crate) fn wait_at_most(
    py: Python<'_>,
    limit: Duration,
    work: impl FnOnce() + Send + 'static,
) -> PyResult<()> {
    let begun = Instant::now();
    elsewhere(py, work, || match begun.elapsed() < limit {
        true => Ok(()),
        false => Err(error::timeout(format!("waiting at the interpreter's exit timed out after {limit:?}"))),
    })
}

/// Drops `value`, whose destructor may wait. Ctrl-C ends the wait, as in [`wait`]; since a destructor cannot raise,
/// the exception is raised as soon as the program goes on.
pub(crate) fn let_go<T: Send + 'static>(py: Python<'_>, value: T) {
    if !is_main_thread() {
        return py.detach(move || drop(value));
    }
    // An exception may be pending while its frames are dropped. It is put aside here, and restored afterwards.
    let on_its_way = PyErr::take(py);
    if let Err(error) = elsewhere(py, move || drop(value), || Ok(())) {
        error::raise_soon(py, error);
    }
    if let Some(error) = on_its_way {
        error.restore(py);
    }
}

/// Calls `work` in a thread of its own. Checks for signals, and calls `check`, until the work is done.
fn elsewhere<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
    check: impl Fn() -> PyResult<()>,
) -> PyResult<T> {
    let (done, outcome) = mpsc::sync_channel(1);
    // One thread at a time may use the receiver. This one does, also while it is detached from the interpreter.
    let outcome = Mutex::new(outcome);
    thread::Builder::new()
        .name("mscclpp-wait".to_owned())
        .spawn(move || {
            // After Ctrl-C, no thread receives the result.
            let _ = done.send(work());
        })
        .map_err(|e| error::new(ErrorKind::System, format!("starting a thread to wait on failed: {e}")))?;
    loop {
        let next = || outcome.lock().recv_timeout(SLICE);
        match py.detach(next) {
            Ok(outcome) => return Ok(outcome),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                // This does nothing in threads other than the main one.
                py.check_signals()?;
                check()?;
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(error::new(ErrorKind::Internal, "the thread that did the work panicked"));
            }
        }
    }
}

/// Waits like [`wait`], for work that can be repeated when it has timed out. Calls `attempt` with the time that it
/// may take, until it ends with anything but a time-out. After Ctrl-C it is not called any more. `rank` is the rank
/// that waits.
pub(crate) fn wait_in_turns<T: Send + 'static>(
    py: Python<'_>,
    rank: usize,
    mut attempt: impl FnMut(Duration) -> Result<T, Error> + Send + 'static,
) -> PyResult<T> {
    let given_up = OnDrop(Arc::default());
    let is_given_up = Arc::clone(&given_up.0);
    wait(py, move || {
        let mut long = LongWait::begin(FIRST_LOG);
        loop {
            match attempt(SLICE) {
                // A relaxed flag is enough, because it orders nothing else.
                Err(error) if is_time_out(&error) && !is_given_up.load(Ordering::Relaxed) => {
                    long.log(Instant::now(), Some(rank), || what(&error));
                }
                outcome => return outcome,
            }
        }
    })
}

/// Sets its flag when it is dropped, which says that no thread waits any more.
struct OnDrop(Arc<AtomicBool>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Calls `attempt` in this thread with the time that it may take, until it ends with anything but a time-out: at
/// least once, and for at most `timeout`. `attempt` must return within the time it is given, and may be called again
/// after a time-out. `rank` is the rank that waits, if it is known.
pub(crate) fn repeat<T: Send, E: Into<Error> + Send>(
    py: Python<'_>,
    rank: Option<usize>,
    timeout: Option<Duration>,
    mut attempt: impl FnMut(Duration) -> Result<T, E> + Send,
) -> PyResult<T> {
    let start = Instant::now();
    let mut long = LongWait::since(start, FIRST_LOG);
    // Most calls return at once, so the number of the thread is asked only after the first attempt.
    let mut slice = SLICE;
    loop {
        let left = timeout.map_or(slice, |timeout| timeout.saturating_sub(start.elapsed()));
        let error = match py.detach(|| attempt(left.min(slice))).map_err(Into::into) {
            Err(error) if is_time_out(&error) => error,
            outcome => return outcome.or_raise(),
        };
        py.check_signals()?;
        if let Some(timeout) = timeout
            && start.elapsed() >= timeout
        {
            return Err(with_total(error, rank, timeout)).or_raise();
        }
        if !is_main_thread() {
            slice = WITHOUT_SIGNALS;
        }
        long.log(Instant::now(), rank, || what(&error));
    }
}

/// Whether the call only ran out of its own time, and can be repeated. Errors of the exchange with the peer are
/// final, also those that are time-outs.
fn is_time_out(error: &Error) -> bool {
    match error {
        Error::PeerNotReady { .. }
        | Error::Core(CoreError::Timeout { .. })
        | Error::Gpu(GpuError::Timeout { .. }) => true,
        Error::Bootstrap(error) => matches!(**error, BootstrapError::Timeout { .. }),
        _ => false,
    }
}

/// Returns the text for the log about a call that timed out.
fn what(error: &Error) -> String {
    match error {
        Error::Bootstrap(error) => match &**error {
            // The operation is a text such as `barrier, waiting for rank 1,` or `recv from rank 1 with tag 0`.
            BootstrapError::Timeout { operation, .. } => match operation.split_once(", waiting for ") {
                Some((call, whom)) => format!("{}: {call}", whom.trim_end_matches(',')),
                None => operation.clone(),
            },
            other => other.to_string(),
        },
        Error::Core(CoreError::Timeout { operation, .. })
        | Error::Gpu(GpuError::Timeout { operation, .. }) => operation.clone(),
        Error::PeerNotReady { what, peer, tag, position, .. } => {
            format!("rank {peer}: {what}, tag {tag}, call {position}")
        }
        other => other.to_string(),
    }
}

/// Returns the time-out of the last of many attempts, with the time that all attempts had, and the rank that waited.
pub(crate) fn with_total(error: Error, rank: Option<usize>, total: Duration) -> Error {
    match error {
        Error::Bootstrap(error) => match *error {
            BootstrapError::Timeout { operation, missing, attempts, .. } => {
                let operation = match rank {
                    Some(rank) => format!("rank {rank}: {operation}"),
                    None => operation,
                };
                BootstrapError::Timeout { operation, after: total, missing, attempts }.into()
            }
            other => other.into(),
        },
        Error::Core(CoreError::Timeout { operation, .. }) => {
            CoreError::Timeout { operation, after: total }.into()
        }
        Error::Gpu(GpuError::Timeout { operation, remedy, .. }) => {
            GpuError::Timeout { operation, after: total, remedy }.into()
        }
        other => other,
    }
}

/// Whether work that cannot be ended was given up, and why.
#[derive(Default)]
pub(crate) struct GivenUp(Mutex<Option<String>>);

impl GivenUp {
    /// Gives the work up. Only the first reason is kept.
    pub(crate) fn give_up(&self, reason: &str) {
        self.0.lock().get_or_insert_with(|| reason.to_owned());
    }

    /// The reason, if there is one.
    pub(crate) fn reason(&self) -> Option<String> {
        self.0.lock().clone()
    }

    fn check(&self) -> PyResult<()> {
        match self.reason() {
            Some(reason) => Err(error::new(ErrorKind::Aborted, format!("aborted: {reason}"))),
            None => Ok(()),
        }
    }
}

/// Converts a time-out from Python.
pub(crate) fn seconds(timeout_sec: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(timeout_sec).map_err(|_| {
        // The limit is that of `Duration`, which no program needs.
        error::misuse(format!(
            "timeout_sec is {timeout_sec}; it must be a number of seconds from 0 to {:.1e}",
            u64::MAX as f64
        ))
    })
}

/// Whether this is the thread that the process began with: its number is that of the process.
fn is_main_thread() -> bool {
    rustix::thread::gettid() == rustix::process::getpid()
}
