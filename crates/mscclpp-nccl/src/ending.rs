//! How communicators end.
//!
//! `ncclCommDestroy` waits for no other rank, but when a rank leaves a job, kernels of other ranks that still wait for it give
//! up. So a thread in the background keeps a destroyed communicator alive until all ranks have destroyed theirs. A process that
//! ends waits a few seconds for these threads, and then leaves all its jobs: if it ended without leaving, the other ranks would
//! count it as lost, which is an error.
//!
//! Ending a NULL communicator is no error, as in NCCL: a split without a color gives NULL, and programs end what they were given.

use std::{
    sync::{Arc, Once},
    thread,
    time::{Duration, Instant},
};

use mscclpp::errors::BootstrapError;

use crate::{
    abi::{Code, Handle},
    answers,
    comm::{self, Backend, Comm, FINALIZED},
    dump,
    env::Env,
    exit::{self, Unfinished},
    failure::{Failure, guarded},
    ours::Ours,
    report,
};

/// How long a destroyed communicator waits for the other ranks to destroy theirs, once its own calls are complete.
const LINGER: Duration = Duration::from_secs(60);
/// How long a process that ends waits for other ranks to destroy the communicators that it has destroyed.
const AT_EXIT: Duration = Duration::from_secs(5);
/// How long a process that ends may take to leave its jobs. Leaving waits for no other rank, and takes milliseconds on a node
/// that is not busy.
const GOODBYE: Duration = Duration::from_secs(10);
/// How long a line about a communicator waits for the times of its last calls.
const TIMES: Duration = Duration::from_secs(1);
/// How often a thread that waits for other ranks checks whether the process ends.
const LOOK: Duration = Duration::from_millis(50);
/// How long kernels of an aborted communicator may take to end. They take milliseconds, unless their stream has other work before
/// them.
const KERNELS: Duration = Duration::from_secs(5);

/// `ncclCommFinalize`: refuses further calls. If the communicator is a blocking one, waits until its calls are complete.
pub(crate) fn finalize(handle: Handle) -> Result<Code, Failure> {
    if handle.is_null() {
        return Ok(Code::SUCCESS);
    }
    let comm = comm::of(handle)?;
    match comm.backend()? {
        Backend::Handed(handed) => handed.finalize(),
        Backend::Ours(ours) => {
            comm.end(FINALIZED);
            if !comm.settings.blocking {
                return Ok(Code::IN_PROGRESS);
            }
            wait_complete(&comm, ours)?;
            ours.check().inspect_err(|failure| comm.fail(failure)).map(|()| Code::SUCCESS)
        }
    }
}

/// Waits until all calls that were made are complete.
///
/// # Errors
/// [`Code::REMOTE_ERROR`] if that takes longer than the time-out.
pub(crate) fn wait_complete(comm: &Comm, ours: &Ours) -> Result<(), Failure> {
    let timeout = Env::of_process()?.timeout;
    if wait_idle(ours, Some(timeout))? {
        return Ok(());
    }
    let text = format!("calls of {} do not end within {timeout:?}", comm.name());
    Err(Failure::new(Code::REMOTE_ERROR, text))
}

/// Waits until all calls are complete, and returns whether they are; stops waiting after `limit`, or when the process ends. Calls
/// also end when a rank is lost.
fn wait_idle(ours: &Ours, limit: Option<Duration>) -> Result<bool, Failure> {
    let deadline = limit.map(|limit| Instant::now() + limit);
    let mut pause = Duration::from_micros(20);
    while !ours.is_idle()? {
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) || exit::has_begun() {
            return Ok(false);
        }
        thread::sleep(pause);
        pause = (2 * pause).min(Duration::from_millis(5));
    }
    Ok(true)
}

/// `ncclCommDestroy`. Waits for no other rank.
pub(crate) fn destroy(handle: Handle) -> Result<Code, Failure> {
    if handle.is_null() {
        return Ok(Code::SUCCESS);
    }
    let comm = comm::remove(handle)?;
    match comm.outcome() {
        None => abort_now(&comm, "ncclCommDestroy was called"),
        Some(Err(_)) => Ok(Code::SUCCESS),
        Some(Ok(Backend::Handed(handed))) => handed.destroy(),
        Some(Ok(Backend::Ours(ours))) => {
            comm.end("destroyed");
            if report::is_info() {
                report::info(&format!("{} was destroyed; {}", comm.name(), ours.statistics.of(TIMES)));
            }
            let told = comm.tell_mismatch(ours);
            in_background(Arc::clone(&comm), leave_together);
            told.map(|()| Code::SUCCESS)
        }
    }
}

/// `ncclCommAbort`.
pub(crate) fn abort(handle: Handle) -> Result<Code, Failure> {
    if handle.is_null() {
        return Ok(Code::SUCCESS);
    }
    abort_now(&comm::remove(handle)?, "ncclCommAbort was called")
}

fn abort_now(comm: &Arc<Comm>, why: &str) -> Result<Code, Failure> {
    dump::of_abort(comm);
    comm.end("aborted");
    comm.abort(why);
    match comm.outcome() {
        Some(Ok(Backend::Handed(handed))) => handed.abort(),
        Some(Ok(Backend::Ours(ours))) => {
            // Failures of aborted calls are of no interest.
            let ended = wait_idle(ours, Some(KERNELS)).unwrap_or(true);
            in_background(Arc::clone(comm), |_| ());
            if ended {
                return Ok(Code::SUCCESS);
            }
            let text = format!("kernels of {} still wait behind other work of their stream", comm.name());
            Err(Failure::new(Code::REMOTE_ERROR, text))
        }
        Some(Err(_)) | None => Ok(Code::SUCCESS),
    }
}

/// `ncclCommRevoke`: aborts the calls of this rank that are under way, and refuses further ones. The communicator can then be
/// split, shrunk and destroyed.
pub(crate) fn revoke(handle: Handle, flags: std::ffi::c_int) -> Result<Code, Failure> {
    if handle.is_null() {
        return Ok(Code::SUCCESS);
    }
    if flags != 0 {
        return Err(Failure::argument(format!("`revokeFlags` is {flags}; 0 is known")));
    }
    let comm = comm::of(handle)?;
    let ours = comm.backend()?.ours("ncclCommRevoke of ")?;
    comm.end("revoked");
    ours.abort("ncclCommRevoke was called");
    Ok(Code::SUCCESS)
}

/// Waits until the calls of this rank are complete, then until all ranks leave the job, so that no kernel of theirs loses this
/// rank. The wait for its own calls has no limit but the end of the process: to leave would abort them, and other work of their
/// streams may come before them. The wait for other ranks ends after [`LINGER`], or when one is lost.
fn leave_together(ours: &Ours) {
    if !matches!(wait_idle(ours, None), Ok(true)) {
        return;
    }
    let deadline = Instant::now() + LINGER;
    // A barrier that timed out is continued by the next call.
    while let Err(BootstrapError::Timeout { .. }) = ours.comm.bootstrap().barrier_timeout(LOOK) {
        if Instant::now() >= deadline || exit::has_begun() {
            return;
        }
    }
}

/// Starts a thread that runs `first` and then drops the communicator.
fn in_background(comm: Arc<Comm>, first: impl FnOnce(&Ours) + Send + 'static) {
    let unfinished = Unfinished::new();
    let end = move || {
        let _unfinished = unfinished;
        let ended = guarded("ending a communicator", || {
            if let Some(Ok(Backend::Ours(ours))) = comm.outcome() {
                first(ours);
            }
            drop(comm);
            Ok(())
        });
        if let Err(failure) = ended {
            report::warn(&failure.text);
        }
    };
    let thread = thread::Builder::new().name("mscclpp-nccl-end".to_owned()).spawn(end);
    if let Err(error) = thread {
        // The closure was dropped, and the communicator with it, at once.
        report::warn(&format!(
            "a communicator was ended without waiting for other ranks: starting a thread: {error}"
        ));
    }
}

/// Registers, at its first call, the function that leaves all jobs when the process ends.
pub(crate) fn leave_at_exit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function lives as long as the library, which is never unloaded (build.rs).
        if unsafe { libc::atexit(at_exit) } != 0 {
            report::warn("when this process ends, it is lost for other ranks");
        }
    });
}

/// Leaves all jobs of the process. Other threads continue to run meanwhile.
extern "C" fn at_exit() {
    if !answers::is_used_here() {
        return;
    }
    // A panic must not unwind into C, and there is no caller left to report it to.
    let _ = guarded("the end of the process", || {
        exit::wait(AT_EXIT);
        exit::begin();
        for comm in comm::remove_all() {
            comm.end("left by a process that ends");
            in_background(comm, |_| ());
        }
        exit::wait(GOODBYE);
        Ok(())
    });
}
