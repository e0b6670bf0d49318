//! What a proxy's thread does from its start to its stop.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{atomic::Ordering, mpsc},
    thread,
    time::{Duration, Instant},
};

use crate::{
    Error, Fifo, Progress, ProxyHandler, ProxyHandlerResult, Result, affinity, idle::Idle, proxy::Shared,
};

/// How many triggers are handled between two calls of `progress`.
const TRIGGERS_PER_PROGRESS: u32 = 32;
/// How long a stop waits for what was started to be complete.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a stop waits for a push that is under way.
const PUSH_TIMEOUT: Duration = Duration::from_secs(1);

impl<H: ProxyHandler> Shared<H> {
    pub(crate) fn fail(&self, error: Error) {
        if self.failure.set(error).is_ok() {
            self.fifo.abort();
        }
    }

    pub(crate) fn run(&self, started: &mpsc::SyncSender<()>) {
        let served = catch_unwind(AssertUnwindSafe(|| self.serve(started)));
        let error = match served {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error),
            Err(panic) => Some(Error::Panicked { message: message_of(&*panic) }),
        };
        if let Some(error) = error {
            tracing::error!(target: "mscclpp::proxy", %error, gpu = %self.gpu, "a proxy failed");
            self.fail(error);
        }
        if let Some(error) = self.failure.get() {
            let told = catch_unwind(AssertUnwindSafe(|| self.handler.lock().failed(error)));
            if told.is_err() {
                tracing::error!(target: "mscclpp::proxy", gpu = %self.gpu, "a proxy's handler panicked when told of a failure");
            }
        }
    }

    fn serve(&self, started: &mpsc::SyncSender<()>) -> Result<()> {
        self.gpu.adopt_thread()?;
        affinity::move_near(&self.gpu);
        if let Some(init) = &self.thread_init {
            init();
        }
        let mut handler = self.handler.lock();
        // Nobody listens to a start that did not wait.
        let _ = started.send(());
        self.take_triggers(&mut *handler)
    }

    fn take_triggers(&self, handler: &mut H) -> Result<()> {
        let mut idle = Idle::new(self.idle);
        let mut handled = 0;
        let mut drain: Option<Drain> = None;
        let mut suspected = None;
        loop {
            let trigger = self.fifo.poll();
            if let Some(trigger) = trigger
                && drain.as_ref().is_none_or(|drain| self.fifo.tail() < drain.end)
            {
                let result = handler.handle(trigger, self.fifo.tail())?;
                self.fifo.pop();
                idle.reset();
                if result == ProxyHandlerResult::Stop {
                    return Ok(());
                }
                handled += 1;
                if handled < TRIGGERS_PER_PROGRESS {
                    continue;
                }
            }
            handled = 0;
            let progress = handler.progress()?;
            if self.failure.get().is_some() {
                return Ok(());
            }
            if drain.is_none() && self.stop.load(Ordering::Acquire) {
                drain = Some(Drain { since: Instant::now(), end: self.fifo.tail() + self.fifo.size() });
            } else if let Some(drain) = &drain
                && drain.is_over(&self.fifo, progress)
            {
                if progress == Progress::Busy {
                    *self.unfinished.lock() = Some(Error::Timeout {
                        operation: "completing what was pushed before the proxy was stopped".to_owned(),
                        after: DRAIN_TIMEOUT,
                    });
                }
                return self.fifo.check();
            }
            if trigger.is_some() {
                continue;
            }
            if progress == Progress::Busy {
                idle.reset();
                thread::yield_now();
            } else if idle.pause() {
                match self.fifo.check() {
                    // For a moment the hole is behind a push that is under way. The next look is a millisecond later.
                    Err(_) if suspected.replace(self.fifo.tail()) != Some(self.fifo.tail()) => {}
                    checked => checked?,
                }
                handler.check()?;
            }
        }
    }
}

/// What is left to do before a stop.
struct Drain {
    since: Instant,
    /// Where nothing was pushed before the stop: as much as the FIFO holds from where the proxy was.
    end: u64,
}

impl Drain {
    fn is_over(&self, fifo: &Fifo, progress: Progress) -> bool {
        let all_taken = fifo.tail() >= self.end
            || fifo.poll().is_none()
                && (!fifo.is_pushed_beyond() || fifo.check().is_err() || self.since.elapsed() > PUSH_TIMEOUT);
        all_taken && (progress == Progress::Idle || self.since.elapsed() > DRAIN_TIMEOUT)
    }
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
        (Some(text), _) => text.clone(),
        (_, Some(text)) => (*text).to_owned(),
        _ => "with a value that is no text".to_owned(),
    }
}
