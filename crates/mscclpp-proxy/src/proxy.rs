//! The thread that takes triggers out of a FIFO and gives them to a handler.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle, ThreadId},
    time::Duration,
};

use mscclpp_core::{Report, SystemFailure};
use mscclpp_gpu::{Gpu, fork::OfProcess};
use mscclpp_os::waiting::FIRST_LOG;
use parking_lot::Mutex;

use crate::{
    Error, Fifo, FifoShared, IdlePolicy, ProxyHandler, ProxyHandlerResult, ProxyTrigger, Result,
    waiting::receive,
};

/// A host thread that serves kernels of one device. It is the base of [`ProxyService`](crate::ProxyService), and of
/// services of your own.
///
/// The thread stops when the proxy is dropped. In a forked child a proxy cannot be used, and dropping it does
/// nothing.
///
/// ```
/// use std::sync::{Arc, atomic::{AtomicU64, Ordering}};
/// # use mscclpp_gpu::{KernelArgs, KernelSource, LaunchConfig, Module, Platform};
/// # use mscclpp_proxy::{Proxy, ProxyHandlerResult, ProxyTrigger};
///
/// const ONE_TO_N: KernelSource = KernelSource::new(
///     "one_to_n.cu",
///     r#"
///     #include <mscclpp/fifo_device.hpp>
///     extern "C" __global__ void one_to_n(mscclpp::FifoDeviceHandle fifo) {
///       const uint64_t position = fifo.push(mscclpp::ProxyTrigger{threadIdx.x + 1ull, 0});
///       fifo.sync(position);
///     }
///     "#,
/// );
///
/// let gpu = Platform::Sim.gpu(0)?;
/// let sum = Arc::new(AtomicU64::new(0));
/// let total = sum.clone();
/// let proxy = Proxy::builder(&gpu).fifo_size(64).build(move |trigger: ProxyTrigger| {
///     total.fetch_add(trigger.fst, Ordering::Relaxed);
///     ProxyHandlerResult::Continue
/// })?;
/// let (module, stream) = (Module::load(&gpu, &ONE_TO_N)?, gpu.stream()?);
/// proxy.start(true)?;
/// let args = KernelArgs::new().with(proxy.fifo().device_handle());
/// // SAFETY: this is its argument, and `proxy` is alive until the kernel has ended.
/// unsafe { module.kernel("one_to_n")?.launch(&stream, LaunchConfig::linear(1, 4), &args)? };
/// stream.synchronize()?;
/// proxy.stop()?;
/// assert_eq!(sum.load(Ordering::Relaxed), 10);
/// # Ok::<(), mscclpp_proxy::Error>(())
/// ```
pub struct Proxy<H: ProxyHandler> {
    shared: OfProcess<Arc<ProxyState<H>>>,
    /// Held while the thread is started or joined, so never taken on the thread itself.
    thread: OfProcess<Mutex<Option<Running>>>,
    log_waits_after: Duration,
}

/// A thread that was started.
struct Running {
    thread: JoinHandle<()>,
    /// Receives nothing; its sender is dropped when the thread ends.
    ended: mpsc::Receiver<()>,
}

/// The state that a proxy shares with its thread.
pub(crate) struct ProxyState<H> {
    pub(crate) gpu: Gpu,
    pub(crate) fifo: Arc<FifoShared>,
    pub(crate) idle: IdlePolicy,
    pub(crate) thread_init: Option<Box<ThreadInit>>,
    /// Held by the thread that runs, so that it takes no lock for each trigger.
    pub(crate) served: Mutex<Served<H>>,
    pub(crate) stop: AtomicBool,
    /// Whether triggers will be taken: true from a start until the thread has decided to take no more. The thread
    /// changes it before anybody can learn of that decision otherwise.
    pub(crate) running: Mutex<bool>,
    /// The last thread that ran, set by itself.
    pub(crate) thread_id: Mutex<Option<ThreadId>>,
    /// Whether the handler was notified of the failure.
    pub(crate) failure_told: AtomicBool,
    /// The error that ended the proxy for good.
    pub(crate) failure: Arc<OnceLock<Error>>,
    /// The error with which the last run ended, if that was not a failure of the proxy.
    pub(crate) unfinished: Mutex<Option<Error>>,
}

/// The handler and the FIFO that the thread works with.
pub(crate) struct Served<H> {
    pub(crate) handler: H,
    pub(crate) fifo: Fifo,
}

pub(crate) type ThreadInit = dyn Fn() + Send + Sync;

/// A builder of a [`Proxy`].
pub struct ProxyBuilder {
    pub(crate) gpu: Gpu,
    fifo_size: u64,
    idle: IdlePolicy,
    thread_init: Option<Box<ThreadInit>>,
    log_waits_after: Duration,
}

/// The time that a starting thread may take.
const START_TIMEOUT: Duration = Duration::from_secs(30);

impl ProxyBuilder {
    /// Sets the number of triggers that the FIFO holds; see [`Fifo::new`].
    #[must_use]
    pub fn fifo_size(mut self, size: u64) -> Self {
        self.fifo_size = size;
        self
    }

    /// Sets how the thread waits when there are no triggers.
    #[must_use]
    pub fn idle(mut self, policy: IdlePolicy) -> Self {
        self.idle = policy;
        self
    }

    /// Sets a function that the thread calls at each start, before the first trigger; the device is then current.
    #[must_use]
    pub fn thread_init(mut self, init: impl Fn() + Send + Sync + 'static) -> Self {
        self.thread_init = Some(Box::new(init));
        self
    }

    /// Sets when a waiting start or stop is first logged, with what it waits for: ten seconds by default,
    /// [`Duration::MAX`] for never. Each further line about the same wait comes at three times the waiting time of
    /// the one before.
    #[must_use]
    pub fn log_waits_after(mut self, first: Duration) -> Self {
        self.log_waits_after = first;
        self
    }

    /// Makes the proxy, not started yet.
    ///
    /// # Errors
    /// The same as [`Fifo::new`].
    pub fn build<H: ProxyHandler>(self, handler: H) -> Result<Proxy<H>> {
        let fifo = self.fifo()?;
        Ok(self.build_on(fifo, Arc::default(), handler))
    }

    pub(crate) fn fifo(&self) -> Result<Fifo> {
        Fifo::new(&self.gpu, self.fifo_size)
    }

    pub(crate) fn build_on<H: ProxyHandler>(
        self,
        fifo: Fifo,
        failure: Arc<OnceLock<Error>>,
        handler: H,
    ) -> Proxy<H> {
        let Self { gpu, idle, thread_init, log_waits_after, .. } = self;
        Proxy {
            shared: OfProcess::new(Arc::new(ProxyState {
                gpu,
                fifo: fifo.shared().clone(),
                idle,
                thread_init,
                served: Mutex::new(Served { handler, fifo }),
                stop: AtomicBool::new(false),
                running: Mutex::new(false),
                thread_id: Mutex::default(),
                failure_told: AtomicBool::new(false),
                failure,
                unfinished: Mutex::default(),
            })),
            thread: OfProcess::default(),
            log_waits_after,
        }
    }
}

impl Proxy<fn(ProxyTrigger) -> ProxyHandlerResult> {
    /// Returns a builder of a proxy for kernels of `gpu`.
    #[must_use]
    pub fn builder(gpu: &Gpu) -> ProxyBuilder {
        ProxyBuilder {
            gpu: gpu.clone(),
            fifo_size: Fifo::DEFAULT_SIZE,
            idle: IdlePolicy::of(gpu.platform()),
            thread_init: None,
            log_waits_after: FIRST_LOG,
        }
    }
}

impl<H: ProxyHandler> Proxy<H> {
    /// Makes a proxy for kernels of `gpu`, not started yet, with a FIFO of [`Fifo::DEFAULT_SIZE`]. For other options
    /// use [`Proxy::builder`].
    ///
    /// # Errors
    /// The same as [`Fifo::new`].
    pub fn new(gpu: &Gpu, handler: H) -> Result<Self> {
        Proxy::builder(gpu).build(handler)
    }

    /// Starts the thread, on the device's NUMA node if that is known. Does nothing if it already runs. The thread
    /// never takes part in a capture of streams. With `blocking`, waits until the thread takes triggers, for at most
    /// 30 seconds. If a handler has returned [`ProxyHandlerResult::Stop`], this first waits for the old thread, which
    /// is about to end.
    ///
    /// # Errors
    /// The error with which the proxy failed before; [`Error::System`] if the system has no thread left; with
    /// `blocking`, the error of the thread at its start, or [`Error::Timeout`].
    pub fn start(&self, blocking: bool) -> Result<()> {
        self.health()?;
        if self.is_own_thread() {
            return Ok(());
        }
        let mut thread = self.thread.lock();
        self.health()?;
        if self.is_running() {
            return Ok(());
        }
        if let Some(ending) = thread.take() {
            // The old thread takes nothing more, and has already noted its error.
            let _ = ending.thread.join();
        }
        self.shared.enter()?;
        self.shared.stop.store(false, Ordering::Relaxed);
        *self.shared.unfinished.lock() = None;
        let (started, has_started) = mpsc::sync_channel(1);
        let (end, ended) = mpsc::channel();
        let shared = Arc::clone(&self.shared);
        let spawned = thread::Builder::new()
            .name("mscclpp-proxy".to_owned())
            .spawn(move || {
                // Dropped when the thread ends, in whatever way.
                let _end: mpsc::Sender<()> = end;
                shared.run(&started);
            })
            .map_err(|e| {
                self.shared.leave();
                self.shared.tell_of_failure();
                SystemFailure::new("starting the thread of a proxy", e)
            })?;
        *thread = Some(Running { thread: spawned, ended });
        if !blocking {
            return Ok(());
        }
        let what = || format!("the thread of a proxy of {} to start", self.shared.gpu);
        match receive(&has_started, Some(START_TIMEOUT), self.log_waits_after, what) {
            Ok(()) => Ok(()),
            Err(mpsc::RecvTimeoutError::Disconnected) => self.health(),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                Err(Error::Timeout { operation: "starting a proxy".to_owned(), after: START_TIMEOUT })
            }
        }
    }

    /// Handles everything that was pushed before the call, waits until it is complete, for at most 30 seconds, and
    /// ends the thread. Does nothing if the thread does not run. The proxy can be started again. A stop that takes
    /// long is logged ([`ProxyBuilder::log_waits_after`]).
    ///
    /// # Errors
    /// The error with which the proxy failed; [`Error::Timeout`] if something did not become complete;
    /// [`Error::InvalidArgument`] if a handler calls this.
    pub fn stop(&self) -> Result<()> {
        self.stop_saying(|| format!("trigger {} or what was asked for before it", self.fifo().tail()))
    }

    /// Does the same as [`Self::stop`]; `pending` returns the text that the log gives for what it waits for.
    pub(crate) fn stop_saying(&self, pending: impl Fn() -> String) -> Result<()> {
        self.here()?;
        if self.is_own_thread() {
            return Err(Error::InvalidArgument(
                "a handler cannot stop its own proxy; it returns ProxyHandlerResult::Stop".to_owned(),
            ));
        }
        let mut thread = self.thread.lock();
        if let Some(Running { thread, ended }) = thread.take() {
            // The release pairs with the acquire in the thread, so that the thread sees what was pushed before.
            self.shared.stop.store(true, Ordering::Release);
            let what = || format!("the proxy of {} to stop: {}", self.shared.gpu, pending());
            // Nothing is ever sent.
            let _ = receive(&ended, None, self.log_waits_after, what);
            // Panics of handlers were caught and noted.
            let _ = thread.join();
        }
        self.health()?;
        self.shared.unfinished.lock().take().map_or(Ok(()), Err)
    }

    /// Whether the thread runs. If a handler has returned [`ProxyHandlerResult::Stop`], this is false before a kernel's
    /// `sync` on that trigger returns. Does not block.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.shared.is_here() && *self.shared.running.lock()
    }

    /// Whether a handler makes this call: a handler must not wait for its own thread.
    pub(crate) fn is_own_thread(&self) -> bool {
        *self.shared.thread_id.lock() == Some(thread::current().id())
    }

    /// Checks that the proxy still works. Does not block.
    ///
    /// # Errors
    /// The error with which the proxy failed. In a forked child of the process that made the proxy, an error that
    /// says so.
    pub fn health(&self) -> Result<()> {
        self.here()?;
        self.shared.failure.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Checks that the calling process made the proxy, and is no fork of the process that did.
    pub(crate) fn here(&self) -> Result<()> {
        self.shared.here()?;
        Ok(())
    }

    /// Ends the proxy for good: waiting pushes and syncs of kernels end, and soon after them the thread. Does not
    /// block. If no thread runs, this calls [`ProxyHandler::failed`].
    pub fn abort(&self, reason: &str) {
        // A forked child has no thread to end, and the kernels belong to its parent.
        if !self.shared.is_here() {
            return;
        }
        self.shared.fail(Error::Aborted { reason: reason.to_owned() });
        // If the thread runs, it notifies the handler: it ends after this look, and then finds the failure. A thread
        // that starts after this look finds the failure too, and ends at once.
        if !self.is_running() && !self.is_own_thread() {
            self.shared.tell_of_failure();
        }
    }

    /// The FIFO into which kernels push.
    #[must_use]
    pub fn fifo(&self) -> &Arc<FifoShared> {
        &self.shared.fifo
    }
}

impl<H: ProxyHandler> Drop for Proxy<H> {
    fn drop(&mut self) {
        // In a forked child there is no thread to wait for.
        if !self.shared.is_here() {
            return;
        }
        if let Err(error) = self.stop() {
            // A failure was logged when it came.
            tracing::debug!(target: "mscclpp::proxy", error = %Report(&error), gpu = %self.shared.gpu, "a proxy ended with an error");
        }
        // Without this, whoever pushes now would wait for ever.
        self.shared.fifo.abort();
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

mscclpp_os::debug_fields!(ProxyBuilder, |this|
    gpu: this.gpu.to_string(), fifo_size: this.fifo_size, idle: this.idle, ..
);
