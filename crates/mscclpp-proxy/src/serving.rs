//! The work of a proxy's thread from its start to its stop.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{atomic::Ordering, mpsc},
    thread,
    time::{Duration, Instant},
};

use mscclpp_core::Report;
use mscclpp_gpu::{Gpu, numa};

use crate::{
    Error, Fifo, FifoPosition, Progress, ProxyHandler, ProxyHandlerResult, Result,
    idle::Idle,
    proxy::{ProxyState, Served},
};

/// The most triggers that are handled between two calls of `progress`.
const TRIGGERS_PER_PROGRESS: u32 = 32;
/// How long a stop waits until everything that was started is complete.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a stop waits for a push that is under way.
const PUSH_TIMEOUT: Duration = Duration::from_secs(1);

impl<H: ProxyHandler> ProxyState<H> {
    pub(crate) fn fail(&self, error: Error) {
        if self.failure.set(error.clone()).is_ok() {
            self.fifo.abort_because(error);
        }
    }

    /// Makes the proxy count as running from now on.
    pub(crate) fn enter(&self) -> Result<()> {
        let mut running = self.running.lock();
        // Checked under the lock: whoever fails the proxy later finds it running, and leaves the notification to its
        // thread.
        self.failure.get().map_or(Ok(()), |error| Err(error.clone()))?;
        *running = true;
        Ok(())
    }

    /// Makes the proxy count as not running from now on. If called several times at the end of a run, the first call
    /// counts.
    pub(crate) fn leave(&self) {
        *self.running.lock() = false;
    }

    /// Notifies the handler once of a failure, if there is one. Nobody may be using the handler for long.
    pub(crate) fn tell_of_failure(&self) {
        let Some(error) = self.failure.get() else { return };
        if self.failure_told.swap(true, Ordering::Relaxed) {
            return;
        }
        let called = catch_unwind(AssertUnwindSafe(|| self.served.lock().handler.failed(error)));
        if called.is_err() {
            tracing::error!(target: "mscclpp::proxy", gpu = %self.gpu, "a proxy's handler panicked when told of a failure");
        }
    }

    pub(crate) fn run(&self, started: &mpsc::SyncSender<()>) {
        *self.thread_id.lock() = Some(thread::current().id());
        let served = catch_unwind(AssertUnwindSafe(|| self.serve(started)));
        let error = match served {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error),
            Err(panic) => Some(Error::Panicked { message: message_of(&*panic) }),
        };
        if let Some(error) = error {
            let (report, gpu) = (Report(&error), &self.gpu);
            if error.is_end_of_peer() {
                // Calls that need the peer have this error. A peer that nobody needs any more may go.
                tracing::debug!(target: "mscclpp::proxy", error = %report, %gpu, "a proxy ends with a peer");
            } else {
                tracing::error!(target: "mscclpp::proxy", error = %report, %gpu, "a proxy failed");
            }
            self.fail(error);
        }
        self.leave();
        self.tell_of_failure();
    }

    fn serve(&self, started: &mpsc::SyncSender<()>) -> Result<()> {
        self.gpu.adopt_thread()?;
        move_near(&self.gpu);
        if let Some(init) = &self.thread_init {
            init();
        }
        let mut served = self.served.lock();
        // If the start did not block, nobody receives this.
        let _ = started.send(());
        self.take_triggers(&mut served)
    }

    fn take_triggers(&self, Served { handler, fifo }: &mut Served<H>) -> Result<()> {
        let mut idle = Idle::new(self.idle);
        let mut handled = 0;
        let mut drain: Option<Drain> = None;
        let mut suspected = None;
        loop {
            let may_take = drain.as_ref().is_none_or(|drain| fifo.tail() < drain.end);
            let trigger = if may_take { fifo.poll() } else { None };
            let mut is_full = false;
            if let Some(trigger) = trigger {
                let result = handler.handle(trigger, fifo.tail())?;
                if result == ProxyHandlerResult::Stop {
                    // This comes first: after the pop, a kernel's sync returns, and its host may then start the proxy
                    // again.
                    self.leave();
                }
                if result != ProxyHandlerResult::Retry {
                    fifo.pop();
                    handled += 1;
                }
                idle.reset();
                match result {
                    ProxyHandlerResult::Stop => {
                        // The handler starts the operations that it has gathered.
                        handler.progress()?;
                        return Ok(());
                    }
                    ProxyHandlerResult::Continue if handled < TRIGGERS_PER_PROGRESS => continue,
                    ProxyHandlerResult::Continue => {}
                    ProxyHandlerResult::Retry => is_full = true,
                }
            }
            handled = 0;
            let progress = handler.progress()?;
            if self.failure.get().is_some() {
                return Ok(());
            }
            if let Some(drain) = &mut drain {
                if !drain.finishing && drain.all_taken(fifo) {
                    drain.end = fifo.tail();
                    drain.finishing = true;
                    handler.finish()?;
                    // The handler reported its progress before `finish`.
                    continue;
                }
                let is_done = drain.finishing && progress == Progress::Idle;
                let is_late = drain.since.elapsed() > DRAIN_TIMEOUT;
                if is_late && !is_done {
                    *self.unfinished.lock() = Some(Error::Timeout {
                        operation: "completing what was pushed before the proxy was stopped".to_owned(),
                        after: DRAIN_TIMEOUT,
                    });
                }
                if is_late || is_done {
                    return fifo.check();
                }
            } else if self.stop.load(Ordering::Acquire) {
                let end = fifo.tail() + fifo.size();
                drain = Some(Drain { since: Instant::now(), end, finishing: false });
            }
            // Checks do not wait until there are no triggers: the first one may wait for room for ever.
            let is_due = if progress == Progress::Busy || trigger.is_some() {
                idle.reset();
                if is_full || trigger.is_none() {
                    // Another thread makes room, or completes what is under way.
                    thread::yield_now();
                }
                idle.is_due(Instant::now())
            } else {
                idle.pause()
            };
            if is_due {
                match fifo.check() {
                    // A hole may be reported while a push before it is still under way. The next look is a
                    // millisecond later.
                    Err(_) if suspected.replace(fifo.tail()) != Some(fifo.tail()) => {}
                    checked => checked?,
                }
                handler.check()?;
            }
        }
    }
}

/// Binds the proxy's thread to the device's NUMA node. If the node is not known, or binding is refused, the thread
/// stays where it is.
fn move_near(gpu: &Gpu) {
    let node = gpu.numa_node();
    match numa::bind_thread(node) {
        // `bound` is false if the node is not known.
        Ok(bound) => {
            tracing::debug!(target: "mscclpp::proxy", %gpu, node, bound, "the proxy's thread and its NUMA node");
        }
        Err(error) => {
            let error = Report(&error).to_string();
            tracing::debug!(target: "mscclpp::proxy", %gpu, node, error, "the proxy's thread is bound to no NUMA node");
        }
    }
}

/// The work left before a stop.
struct Drain {
    since: Instant,
    /// The position up to which triggers are still taken. At first, the position of the proxy plus the size of the
    /// FIFO: nothing beyond that was pushed before the stop. Later, the position of the proxy once all triggers are
    /// taken.
    end: FifoPosition,
    /// Whether all triggers are taken, and the handler was notified of that.
    finishing: bool,
}

impl Drain {
    fn all_taken(&self, fifo: &mut Fifo) -> bool {
        fifo.tail() >= self.end
            || fifo.poll().is_none()
                && (!fifo.is_pushed_beyond() || fifo.check().is_err() || self.since.elapsed() > PUSH_TIMEOUT)
    }
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
        (Some(text), _) => text.clone(),
        (_, Some(text)) => (*text).to_owned(),
        _ => "with a value that is no text".to_owned(),
    }
}
