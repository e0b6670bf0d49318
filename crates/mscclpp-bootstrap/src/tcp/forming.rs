//! A job that is forming, for a thread that brings up several ranks.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mscclpp_net::SystemCall;

use crate::inbox::Wait;
use crate::tcp::bootstrap::TcpBootstrap;
use crate::tcp::handle::ReactorHandle;
use crate::tcp::reactor::Reactor;
use crate::{Bootstrap, Error, Result};

/// The time that [`Forming::wait`] waits after the deadline. The rank's own thread keeps the deadline, and reports a
/// more precise error.
const THREAD_LATE: Duration = Duration::from_secs(2);
const THREAD_STACK: usize = 256 * 1024;

/// A rank that is joining its job: see [`TcpBootstrap::start`]. It continues by itself, on a thread of its own, until
/// its time-out is over.
///
/// Dropping it before the job has formed aborts the job: the ranks that have come fail with [`Error::Aborted`], which
/// names this rank; if this rank has not reached rank 0 yet, they miss it when their time is up. That takes at most a
/// few seconds, like a failed [`TcpBootstrap::new`]. If the job has formed, the rank leaves it.
///
/// This example brings up all ranks of a job in one thread:
///
/// ```
/// use std::time::Duration;
/// # use mscclpp_bootstrap::{Bootstrap, Forming, TcpBootstrap};
///
/// let id = TcpBootstrap::create_unique_id()?;
/// let ranks = (0..4)
///     .map(|rank| TcpBootstrap::start(rank, 4, &id, Duration::from_secs(30)))
///     .collect::<Result<Vec<_>, _>>()?;
/// let ranks = ranks.into_iter().map(Forming::wait).collect::<Result<Vec<_>, _>>()?;
/// assert_eq!(ranks[3].n_ranks(), 4);
/// # Ok::<(), mscclpp_bootstrap::Error>(())
/// ```
#[must_use = "a rank that is dropped before its job has formed aborts it"]
pub struct Forming {
    bootstrap: Option<TcpBootstrap>,
    deadline: Instant,
}

impl Forming {
    /// Makes a job of one rank, which has formed.
    pub(super) fn alone(bootstrap: TcpBootstrap) -> Self {
        Self { bootstrap: Some(bootstrap), deadline: Instant::now() }
    }

    /// Starts the thread of a rank.
    pub(super) fn begin(mut bootstrap: TcpBootstrap, reactor: Reactor, deadline: Instant) -> Result<Self> {
        let name = format!("mscclpp-boot-{}", bootstrap.member.rank);
        bootstrap.thread = Some(start_thread(&name, reactor, || {})?);
        Ok(Self { bootstrap: Some(bootstrap), deadline })
    }

    /// Returns whether the outcome of the job is known. Then [`wait`](Self::wait) returns at once, or, if the job has
    /// failed, as soon as the others have heard of it. Never blocks.
    pub fn poll(&self) -> bool {
        self.bootstrap.as_ref().is_none_or(|bootstrap| {
            bootstrap.has_formed() || bootstrap.member.failure().is_some() || Instant::now() >= self.end()
        })
    }

    /// Waits until all ranks are connected.
    ///
    /// # Errors
    /// The same as [`TcpBootstrap::new`]: at the latest when the time-out is over, which began with the start.
    pub fn wait(mut self) -> Result<TcpBootstrap> {
        let deadline = self.end();
        let Some(bootstrap) = self.bootstrap.take() else {
            unreachable!("only what consumes it takes it");
        };
        bootstrap.member.check_process()?;
        let mut patience = Wait::quiet(deadline);
        let what = || "the job".to_owned();
        let inbox = &bootstrap.member.inbox;
        if inbox.wait_until(&mut patience, &what, || bootstrap.has_formed())? {
            Ok(bootstrap)
        } else {
            Err(Error::Timeout {
                operation: "initialising the bootstrap".to_owned(),
                after: bootstrap.timeout,
                missing: Vec::new(),
                attempts: Vec::new(),
            })
        }
    }

    /// Gives up: the ranks that have come fail with [`Error::Aborted`], which has this reason; if this rank has not
    /// reached rank 0 yet, they miss it when their time is up. Takes at most a few seconds.
    pub fn abort(mut self, reason: &str) {
        if let Some(bootstrap) = self.bootstrap.take() {
            bootstrap.abort(reason);
        }
    }

    pub(super) fn handle(&self) -> Option<&Arc<ReactorHandle>> {
        self.bootstrap.as_ref().map(|bootstrap| &bootstrap.handle)
    }

    fn end(&self) -> Instant {
        self.deadline + THREAD_LATE
    }
}

impl Drop for Forming {
    fn drop(&mut self) {
        if let Some(bootstrap) = self.bootstrap.take().filter(|bootstrap| !bootstrap.has_formed()) {
            bootstrap.abort("it was dropped before the job had formed");
        }
    }
}

mscclpp_os::debug_fields!(Forming, |this| bootstrap: this.bootstrap, ..);

/// Starts the thread of a reactor, which calls `at_end` when it ends.
pub(super) fn start_thread(
    name: &str,
    reactor: Reactor,
    at_end: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>> {
    let thread = std::thread::Builder::new().name(name.to_owned()).stack_size(THREAD_STACK);
    let thread = thread.spawn(move || {
        let _end = EndOfThread(Arc::clone(&reactor.handle));
        reactor.run();
        at_end();
    });
    Ok(thread.during("starting the bootstrap's thread")?)
}

/// Ends the waits of callers when it is dropped, however the thread ends.
struct EndOfThread(Arc<ReactorHandle>);

impl Drop for EndOfThread {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let cause = std::io::Error::other("a defect in mscclpp-bootstrap; please report it");
            self.0.inbox.fail(&Error::io("running the bootstrap's thread", cause));
        }
        self.0.set_finished();
    }
}
