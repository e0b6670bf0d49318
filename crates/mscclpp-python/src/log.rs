//! Log lines on their way to Python's `logging`.
//!
//! A thread that logs puts its line into a queue and never waits: if the queue is full, the line is counted as lost.
//! A thread of the Python layer (`mscclpp._log`) takes lines out and calls loggers. It waits for lines without the
//! interpreter's lock.

use std::sync::{
    OnceLock,
    atomic::{AtomicBool, AtomicU64, Ordering},
    mpsc::{self, Receiver, SyncSender},
};

use mscclpp::{
    Error,
    gpu::fork::Origin,
    log::{Level, Line, Redirect},
};
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::error::{self, OrRaise};

/// The most lines that the queue holds.
const ROOM: usize = 4096;

/// The log, as the environment configures it.
static LOG: OnceLock<Redirect> = OnceLock::new();
static QUEUE: OnceLock<Queue> = OnceLock::new();

/// A logger's name, the level as `logging` numbers it, and the text. None marks the end.
type Record = Option<(String, u32, String)>;

struct Queue {
    put: SyncSender<Record>,
    /// One thread takes lines, and holds this lock while it waits. It does not hold the interpreter's lock then.
    take: Mutex<Receiver<Record>>,
    lost: AtomicU64,
    is_ending: AtomicBool,
    origin: Origin,
}

impl Queue {
    fn new() -> Self {
        let (put, take) = mpsc::sync_channel(ROOM);
        Self {
            put,
            take: Mutex::new(take),
            lost: AtomicU64::new(0),
            is_ending: AtomicBool::new(false),
            origin: Origin::here(),
        }
    }

    /// Whether a thread takes lines out. In a forked child there is no such thread, nor when the interpreter exits.
    fn is_served(&self) -> bool {
        self.origin.is_here() && !self.is_ending.load(Ordering::Relaxed)
    }

    fn put(&self, line: &Line<'_>) {
        if !self.is_served() {
            return;
        }
        let level = match line.level {
            Level::ERROR => 40,
            Level::WARN => 30,
            Level::INFO => 20,
            Level::DEBUG => 10,
            _ => 5,
        };
        if self.put.try_send(Some((line.target.replace("::", "."), level, line.text.to_owned()))).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits for the next line. None when the queue has ended and is empty.
    fn next(&self) -> Record {
        match self.lost.swap(0, Ordering::Relaxed) {
            0 => {}
            lost => {
                let text =
                    format!("{lost} lines of the log were lost: {ROOM} were waiting for Python's handlers");
                return Some(("mscclpp.log".to_owned(), 30, text));
            }
        }
        let lines = self.take.lock();
        // The flag is set before the end mark is put, so one of the two is seen.
        match self.is_ending.load(Ordering::Acquire) {
            true => lines.try_recv().ok().flatten(),
            false => lines.recv().ok().flatten(),
        }
    }

    fn end(&self) {
        if self.is_served() {
            self.is_ending.store(true, Ordering::Release);
            // If the queue is full, no thread waits for a line either.
            let _ = self.put.try_send(None);
        }
    }
}

/// Sets up logging as the environment says. Does nothing the second time.
#[pyfunction(name = "_start_log")]
pub(crate) fn start() -> PyResult<()> {
    if LOG.get().is_some() {
        return Ok(());
    }
    match mscclpp::log::init_redirectable() {
        Ok(log) => {
            let _ = LOG.set(log);
            Ok(())
        }
        // Another thread was quicker.
        Err(Error::LogAlreadySetUp) => Ok(()),
        Err(error) => Err(error).or_raise(),
    }
}

/// Sends lines of `level`, as `logging` numbers it, and above to the queue from now on, and nowhere else.
#[pyfunction(name = "_log_to_queue")]
pub(crate) fn to_queue(py: Python<'_>, level: i64) -> PyResult<()> {
    let queue = QUEUE.get_or_init(Queue::new);
    if !queue.origin.is_here() {
        return Err(error::misuse(format!(
            "the log goes to Python's logging in process {}, of which this one is a fork; start processes with \
             multiprocessing's \"spawn\"",
            queue.origin.process()
        )));
    }
    start()?;
    let Some(log) = LOG.get() else {
        return Err(error::misuse("another thread sets up the log at this moment; call this again"));
    };
    let least = match level {
        ..10 => Some(Level::TRACE),
        10..20 => Some(Level::DEBUG),
        20..30 => Some(Level::INFO),
        30..40 => Some(Level::WARN),
        40..50 => Some(Level::ERROR),
        50.. => None,
    };
    py.detach(|| log.redirect(least, move |line| queue.put(line))).or_raise()
}

/// Waits for the next line: the logger's name, the level and the text. None when the queue has ended.
#[pyfunction(name = "_next_log_line")]
pub(crate) fn next_line(py: Python<'_>) -> Record {
    py.detach(|| QUEUE.get().filter(|queue| queue.origin.is_here()).and_then(Queue::next))
}

/// Closes the queue: lines that are in it are the last ones.
#[pyfunction(name = "_end_log_queue")]
pub(crate) fn end_queue() {
    if let Some(queue) = QUEUE.get() {
        queue.end();
    }
}
