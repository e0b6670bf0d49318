//! Waits for processes, and ends this one where nothing else can end a wait: in a call into NCCL that does not return, and
//! for a kernel that goes on after an abort.

use std::{
    fmt, io,
    process::{Child, ExitStatus},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

/// The exit status of the process, if it ends within `limit`.
pub(crate) fn ended(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    loop {
        match child.try_wait()? {
            None if Instant::now() < deadline => thread::sleep(Duration::from_millis(2)),
            status => return Ok(status),
        }
    }
}

/// Returns the result of `call` if it returns within `limit`; otherwise the process ends with an error that names `what`.
pub(crate) fn within<T>(limit: Duration, what: &str, call: impl FnOnce() -> T) -> T {
    let (returned, watched) = mpsc::channel::<()>();
    let what = what.to_owned();
    let watching = thread::spawn(move || {
        if watched.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            end_process(&format!(
                "{what} has not returned within {} s; NCCL_DEBUG=INFO says more",
                limit.as_secs()
            ));
        }
    });
    let result = call();
    drop(returned);
    // The thread ends at once, and never panics.
    let _ = watching.join();
    result
}

/// Prints the error and ends this process; the other rank then notices that it has ended.
pub(crate) fn end_process(error: &dyn fmt::Display) -> ! {
    eprintln!("error: {error}");
    // SAFETY: the process ends here. It does not call `exit`, whose handlers may wait for a thread that does not end.
    unsafe { libc::_exit(1) }
}
