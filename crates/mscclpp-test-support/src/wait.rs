//! Waits with a deadline.

use std::{
    fs, process,
    sync::mpsc::{self, RecvTimeoutError},
    thread::{self, Scope, ScopedJoinHandle},
    time::{Duration, Instant},
};

use rustix::thread::gettid;

/// The limit for steps that should take moments: long enough for a machine that is busy with other things.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Polls `done` until it holds, for at most [`LIMIT`].
///
/// # Panics
/// Panics if it does not hold in time; `what` is in the message.
pub fn until(what: &str, done: impl FnMut() -> bool) {
    assert!(within(LIMIT, done), "{what}: not within {LIMIT:?}");
}

/// Polls `done` until it holds, at least once. Returns whether it did within `limit`.
pub fn within(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if done() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Does `work`, and ends the whole process if that takes longer than `limit`: for calls that cannot be given up, such
/// as a drop that hangs.
pub fn watched<T>(limit: Duration, what: &str, work: impl FnOnce() -> T) -> T {
    let (done, ended) = mpsc::channel::<()>();
    let what = what.to_owned();
    thread::spawn(move || {
        // The sender is dropped when the work is over, also by a panic.
        if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            eprintln!("{what} has not ended after {limit:?}: this process is aborted");
            process::abort();
        }
    });
    let result = work();
    drop(done);
    result
}

/// Starts `work` on a thread, and returns when that thread sleeps, which it does once it waits.
///
/// # Panics
/// Panics if it does not sleep or end within [`LIMIT`].
pub fn start_waiting<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    let (tell, told) = mpsc::channel();
    let thread = scope.spawn(move || {
        tell.send(gettid().as_raw_pid()).expect("the thread that started this one");
        work()
    });
    let id = told.recv().expect("a thread that says who it is");
    until("a thread that waits", || {
        // The state of the thread is the letter after its name, which is in brackets. A thread that has ended is not
        // listed.
        let stat = fs::read_to_string(format!("/proc/self/task/{id}/stat"));
        stat.map_or(true, |stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S')))
    });
    thread
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_thread_has_come_to_where_it_waits() {
        let come = &AtomicBool::new(false);
        let (end, ended) = mpsc::channel();
        let seen = thread::scope(|scope| {
            let thread = start_waiting(scope, move || {
                let start = Instant::now();
                // The thread works here, and does not sleep.
                while start.elapsed() < Duration::from_millis(50) {}
                come.store(true, Ordering::Relaxed);
                ended.recv().expect("an end");
            });
            let seen = come.load(Ordering::Relaxed);
            end.send(()).expect("a thread that waits");
            thread.join().expect("no panic");
            seen
        });
        assert!(seen, "it was told too early");
        thread::scope(|scope| start_waiting(scope, || 7).join().map(|seven| assert_eq!(seven, 7)))
            .expect("an end");
    }

    #[test]
    fn a_wait_ends_when_it_holds_and_when_time_is_up() {
        let mut asked = 0;
        until("the third time", || {
            asked += 1;
            asked == 3
        });
        let limit = Duration::from_millis(20);
        let started = Instant::now();
        assert!(!within(limit, || false));
        assert!(started.elapsed() >= limit);
        assert!(within(Duration::ZERO, || true));
    }
}
