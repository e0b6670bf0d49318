//! Forked children that go on in the same program.
#![allow(unsafe_code, reason = "a fork")]

use std::{
    fs::File,
    io::{Read, Write},
    os::fd::{AsFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, Signal, WaitOptions, kill_process, waitpid},
};

/// Runs `body` in a forked child of this process, and returns its result.
///
/// The child has only the calling thread, and locks that other threads hold at this moment stay locked there, except
/// those of the C library's allocator. The child ends without running exit handlers.
///
/// # Panics
/// Panics if `body` panics there, if the child does not end within `limit` (it is killed), or if it ends in another
/// way.
pub fn in_fork(limit: Duration, body: impl FnOnce() -> String) -> String {
    let (from, to) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe");
    // SAFETY: the child does what the documentation says, and never returns from here.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            drop(from);
            let said = catch_unwind(AssertUnwindSafe(body));
            let sent = said.is_ok_and(|said| File::from(to).write_all(said.as_bytes()).is_ok());
            // SAFETY: ends the process, without the parent's exit handlers.
            unsafe { libc::_exit(i32::from(!sent)) }
        }
        child => {
            drop(to);
            let child = Pid::from_raw(child).expect("the number of a process");
            let ended = ends_within(&from, limit);
            if !ended {
                let _ = kill_process(child, Signal::KILL);
            }
            let mut said = String::new();
            File::from(from).read_to_string(&mut said).expect("what the child said");
            let status = waitpid(Some(child), WaitOptions::empty()).expect("its own child");
            assert!(ended, "the forked child hangs: it has not ended within {limit:?}");
            let status = status.map(|(_, status)| status);
            assert!(
                status.and_then(rustix::process::WaitStatus::exit_status) == Some(0),
                "the forked child failed: {status:?} {said}"
            );
            said
        }
    }
}

/// Waits until the other end of the pipe, which only the child has, is closed, or data has come. Returns false after
/// `limit`.
fn ends_within(pipe: &OwnedFd, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::IN)], Some(&left)) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(_) => {}
        }
    }
}
