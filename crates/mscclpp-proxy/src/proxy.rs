//! The thread that takes triggers out of a FIFO and has them handled.

use std::{
    any::Any,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use mscclpp_gpu::Gpu;
use parking_lot::Mutex;

use crate::{Error, Fifo, IdlePolicy, ProxyTrigger, Result, affinity, idle::Idle};

/// Whether a proxy goes on after a trigger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyHandlerResult {
    /// With the next trigger.
    Continue,
    /// Not: its thread ends, until the proxy is started again.
    Stop,
}

/// Whether a handler waits for something that it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// No: the proxy may nap.
    Idle,
    /// Yes: the proxy goes on asking, and does not nap meanwhile.
    Busy,
}

/// What is done with triggers. Closures of a trigger are handlers.
pub trait ProxyHandler: Send + 'static {
    /// Handles the trigger of a position; afterwards a kernel's `sync` on it returns. Must not block: all triggers
    /// behind it wait.
    ///
    /// # Errors
    /// What ends the proxy for good.
    fn handle(&mut self, trigger: ProxyTrigger, position: u64) -> Result<ProxyHandlerResult>;

    /// Called when there are no triggers, and now and then between them.
    ///
    /// # Errors
    /// As [`ProxyHandler::handle`].
    fn progress(&mut self) -> Result<Progress> {
        Ok(Progress::Idle)
    }

    /// Called every millisecond or so while there are no triggers: is all well?
    ///
    /// # Errors
    /// As [`ProxyHandler::handle`].
    fn check(&mut self) -> Result<()> {
        Ok(())
    }

    /// The proxy has failed; nothing else is called afterwards.
    fn failed(&mut self, error: &Error) {
        let _ = error;
    }
}

impl<F: FnMut(ProxyTrigger) -> ProxyHandlerResult + Send + 'static> ProxyHandler for F {
    fn handle(&mut self, trigger: ProxyTrigger, _position: u64) -> Result<ProxyHandlerResult> {
        Ok(self(trigger))
    }
}

/// A host thread that serves kernels of one device: what [`crate::ProxyService`] runs on, and services of one's own.
///
/// Stopped when dropped.
///
/// ```
/// use std::sync::{Arc, atomic::{AtomicU64, Ordering}};
/// use mscclpp_gpu::Platform;
/// use mscclpp_proxy::{Proxy, ProxyHandlerResult, ProxyTrigger};
///
/// let sum = Arc::new(AtomicU64::new(0));
/// let total = sum.clone();
/// let proxy = Proxy::builder(&Platform::Host.gpu(0)?).fifo_size(64).build(move |trigger: ProxyTrigger| {
///     total.fetch_add(trigger.fst, Ordering::Relaxed);
///     ProxyHandlerResult::Continue
/// })?;
/// proxy.start(true)?;
/// let fifo = proxy.fifo().device_handle(); // goes to kernels
/// for n in 1..=4 {
///     // SAFETY: a simulated device, and `proxy` is alive.
///     let position = unsafe { fifo.push(ProxyTrigger { fst: n, snd: 0 }, -1) };
///     assert!(unsafe { fifo.sync(position, -1) });
/// }
/// proxy.stop()?;
/// assert_eq!(sum.load(Ordering::Relaxed), 10);
/// # Ok::<(), mscclpp_proxy::Error>(())
/// ```
pub struct Proxy<H: ProxyHandler> {
    shared: Arc<Shared<H>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared<H> {
    gpu: Gpu,
    fifo: Arc<Fifo>,
    idle: IdlePolicy,
    thread_init: Option<Box<ThreadInit>>,
    /// Whoever runs has it, so that the thread takes no lock for each trigger.
    handler: Mutex<H>,
    stop: AtomicBool,
    /// What ended the proxy for good.
    failure: Arc<OnceLock<Error>>,
    /// What the last run ended with, if that was not a failure.
    unfinished: Mutex<Option<Error>>,
}

type ThreadInit = dyn Fn() + Send + Sync;

/// Puts a [`Proxy`] together.
pub struct ProxyBuilder {
    gpu: Gpu,
    fifo_size: u64,
    idle: IdlePolicy,
    thread_init: Option<Box<ThreadInit>>,
}

/// How many triggers are handled between two calls of `progress`.
const TRIGGERS_PER_PROGRESS: u32 = 32;
/// How long a starting thread may take.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a stop waits for what was started to be complete.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a stop waits for a push that is under way.
const PUSH_TIMEOUT: Duration = Duration::from_secs(1);

impl ProxyBuilder {
    /// How many triggers the FIFO holds; see [`Fifo::new`].
    #[must_use]
    pub fn fifo_size(mut self, size: u64) -> Self {
        self.fifo_size = size;
        self
    }

    /// How it backs off when idle.
    #[must_use]
    pub fn idle(mut self, policy: IdlePolicy) -> Self {
        self.idle = policy;
        self
    }

    /// Called on the thread at each start, before the first trigger; the device is current then.
    #[must_use]
    pub fn thread_init(mut self, init: impl Fn() + Send + Sync + 'static) -> Self {
        self.thread_init = Some(Box::new(init));
        self
    }

    /// A proxy that is not started yet.
    ///
    /// # Errors
    /// As [`Fifo::new`].
    pub fn build<H: ProxyHandler>(self, handler: H) -> Result<Proxy<H>> {
        let fifo = Arc::new(Fifo::new(&self.gpu, self.fifo_size)?);
        Ok(self.build_on(fifo, Arc::default(), handler))
    }

    pub(crate) fn build_on<H: ProxyHandler>(
        self,
        fifo: Arc<Fifo>,
        failure: Arc<OnceLock<Error>>,
        handler: H,
    ) -> Proxy<H> {
        let Self { gpu, idle, thread_init, .. } = self;
        Proxy {
            shared: Arc::new(Shared {
                gpu,
                fifo,
                idle,
                thread_init,
                handler: Mutex::new(handler),
                stop: AtomicBool::new(false),
                failure,
                unfinished: Mutex::default(),
            }),
            thread: Mutex::default(),
        }
    }
}

impl Proxy<fn(ProxyTrigger) -> ProxyHandlerResult> {
    /// Options of a proxy for kernels of `gpu`.
    #[must_use]
    pub fn builder(gpu: &Gpu) -> ProxyBuilder {
        ProxyBuilder {
            gpu: gpu.clone(),
            fifo_size: Fifo::DEFAULT_SIZE,
            idle: IdlePolicy::of(gpu.platform()),
            thread_init: None,
        }
    }
}

impl<H: ProxyHandler> Proxy<H> {
    /// A proxy for kernels of `gpu`, not started yet, with a FIFO of [`Fifo::DEFAULT_SIZE`]. For anything else there is
    /// [`Proxy::builder`].
    ///
    /// # Errors
    /// As [`Fifo::new`].
    pub fn new(gpu: &Gpu, handler: H) -> Result<Self> {
        Proxy::builder(gpu).build(handler)
    }

    /// Starts the thread, on the device's NUMA node where that is known; does nothing if it runs already. It never joins
    /// a capture of streams. With `blocking`, waits until it takes triggers, 30 s at most.
    ///
    /// # Errors
    /// What the proxy failed with before; [`Error::System`] if there is no thread to be had; with `blocking` what the
    /// thread failed with at its start, or [`Error::Timeout`].
    pub fn start(&self, blocking: bool) -> Result<()> {
        let mut thread = self.thread.lock();
        self.health()?;
        if thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return Ok(());
        }
        // One that has ended by itself has nothing more to say than what it left.
        drop(thread.take());
        self.shared.stop.store(false, Ordering::Relaxed);
        *self.shared.unfinished.lock() = None;
        let (started, has_started) = mpsc::sync_channel(1);
        let shared = Arc::clone(&self.shared);
        let spawned = thread::Builder::new()
            .name("mscclpp-proxy".to_owned())
            .spawn(move || shared.run(&started))
            .map_err(|e| Error::System {
                operation: "starting the thread of a proxy".to_owned(),
                message: e.to_string(),
            })?;
        *thread = Some(spawned);
        if !blocking {
            return Ok(());
        }
        match has_started.recv_timeout(START_TIMEOUT) {
            Ok(()) => Ok(()),
            Err(mpsc::RecvTimeoutError::Disconnected) => self.health(),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                Err(Error::Timeout { operation: "starting a proxy".to_owned(), after: START_TIMEOUT })
            }
        }
    }

    /// Has everything handled that was pushed before the call, waits until it is complete, 30 s at most, and ends the
    /// thread. Does nothing if it does not run. The proxy can be started again.
    ///
    /// # Errors
    /// What the proxy failed with; [`Error::Timeout`] if something did not become complete;
    /// [`Error::InvalidArgument`] in a handler.
    pub fn stop(&self) -> Result<()> {
        let mut thread = self.thread.lock();
        if let Some(running) = thread.take() {
            if running.thread().id() == thread::current().id() {
                *thread = Some(running);
                return Err(Error::InvalidArgument(
                    "a handler cannot stop its own proxy; it returns ProxyHandlerResult::Stop".to_owned(),
                ));
            }
            // The release pairs with the acquire in the thread: it sees what was pushed before.
            self.shared.stop.store(true, Ordering::Release);
            // Panics of handlers were caught and noted.
            let _ = running.join();
        }
        self.health()?;
        self.shared.unfinished.lock().take().map_or(Ok(()), Err)
    }

    /// Whether its thread runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.thread.lock().as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// What it failed with, if it did. Does not block.
    ///
    /// # Errors
    /// That.
    pub fn health(&self) -> Result<()> {
        self.shared.failure.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Gives it up for good: waiting pushes and syncs of kernels end, and the thread soon does. Does not block.
    pub fn abort(&self, reason: &str) {
        self.shared.fail(Error::Aborted { reason: reason.to_owned() });
    }

    /// Where kernels push.
    #[must_use]
    pub fn fifo(&self) -> &Arc<Fifo> {
        &self.shared.fifo
    }
}

impl<H: ProxyHandler> Drop for Proxy<H> {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::warn!(target: "mscclpp::proxy", %error, gpu = %self.shared.gpu, "a proxy was dropped that had failed");
        }
        // Whoever pushes now would wait for ever.
        self.shared.fifo.abort();
    }
}

impl<H: ProxyHandler> Shared<H> {
    fn fail(&self, error: Error) {
        if self.failure.set(error).is_ok() {
            self.fifo.abort();
        }
    }

    fn run(&self, started: &mpsc::SyncSender<()>) {
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
                self.fifo.check()?;
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

impl<H: ProxyHandler> fmt::Debug for Proxy<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("gpu", &self.shared.gpu.to_string())
            .field("fifo", &self.shared.fifo)
            .field("failure", &self.shared.failure.get())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ProxyBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyBuilder")
            .field("gpu", &self.gpu.to_string())
            .field("fifo_size", &self.fifo_size)
            .field("idle", &self.idle)
            .finish_non_exhaustive()
    }
}
