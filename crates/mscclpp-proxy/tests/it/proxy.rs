//! Proxies with handlers of your own.

use std::{
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering, fence},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use crate::kernels::Kernels;
use mscclpp_gpu::{Gpu, KernelArgs, LaunchConfig, Platform};
use mscclpp_proxy::{
    Error, FifoHandle, FifoPosition, IdlePolicy, Progress, Proxy, ProxyHandler, ProxyHandlerResult,
    ProxyTrigger, Result,
};
use mscclpp_test_support::{LIMIT, Lines, start_waiting, watched};

fn gpu() -> Gpu {
    Platform::Sim.gpu(0).unwrap()
}

fn numbered(n: u64) -> ProxyTrigger {
    ProxyTrigger { fst: n, snd: 0 }
}

pub(crate) fn kernels() -> &'static Kernels {
    static KERNELS: OnceLock<Kernels> = OnceLock::new();
    KERNELS.get_or_init(|| Kernels::load(&gpu()))
}

/// Pushes as a thread of a kernel does.
fn push<H: ProxyHandler>(proxy: &Proxy<H>, n: u64) -> FifoPosition {
    kernels().push(proxy.fifo().device_handle(), numbered(n), -1)
}

fn sync<H: ProxyHandler>(proxy: &Proxy<H>, position: FifoPosition) -> bool {
    kernels().sync(proxy.fifo().device_handle(), position, -1)
}

#[test]
fn triggers_are_handled_in_order_and_synced() {
    let (seen, triggers) = mpsc::channel();
    let proxy = Proxy::builder(&gpu())
        .fifo_size(4)
        .build(move |trigger: ProxyTrigger| {
            seen.send(trigger.fst).unwrap();
            ProxyHandlerResult::Continue
        })
        .unwrap();
    proxy.start(true).unwrap();
    for n in 0..100 {
        let position = push(&proxy, n);
        assert!(sync(&proxy, position));
        assert_eq!(triggers.try_recv(), Ok(n), "handled before the sync");
    }
    proxy.stop().unwrap();
}

#[test]
fn a_handler_can_stop_and_the_proxy_goes_on_where_it_was() {
    let (seen, triggers) = mpsc::channel();
    let proxy = Proxy::new(&gpu(), move |trigger: ProxyTrigger| {
        seen.send(trigger.fst).unwrap();
        if trigger.fst % 3 == 2 { ProxyHandlerResult::Stop } else { ProxyHandlerResult::Continue }
    })
    .unwrap();
    (0..9).for_each(|n| assert_eq!(push(&proxy, n).raw(), n));
    for turn in 0..3 {
        proxy.start(true).unwrap();
        let got: Vec<_> = (0..3).map(|_| triggers.recv_timeout(LIMIT).unwrap()).collect();
        assert_eq!(got, [3 * turn, 3 * turn + 1, 3 * turn + 2]);
        let deadline = Instant::now() + LIMIT;
        while proxy.is_running() {
            assert!(Instant::now() < deadline);
            thread::yield_now();
        }
        assert!(triggers.try_recv().is_err());
    }
    proxy.stop().unwrap();
}

/// Starts the proxy while the thread of the last run is still ending.
#[test]
fn a_proxy_that_a_handler_stopped_starts_at_once() {
    let proxy = Proxy::new(&gpu(), |_: ProxyTrigger| ProxyHandlerResult::Stop).unwrap();
    let fifo = proxy.fifo().device_handle();
    for n in 0..1000 {
        proxy.start(n % 2 == 0).unwrap();
        let push = kernels().start_push(fifo, numbered(n), -1);
        let deadline = Instant::now() + LIMIT;
        // The next start comes as soon as possible.
        while proxy.fifo().tail().raw() <= n {
            assert!(Instant::now() < deadline);
            std::hint::spin_loop();
        }
        fence(Ordering::Acquire);
        assert!(!proxy.is_running(), "run {n}");
        assert_eq!(push.end(), n);
    }
    proxy.stop().unwrap();
}

/// A handler that knows its own proxy, and calls all of its methods while another thread stops it.
struct Reentrant {
    proxy: Arc<OnceLock<Weak<Proxy<Reentrant>>>>,
    handling: mpsc::Sender<()>,
    go_on: mpsc::Receiver<()>,
}

impl ProxyHandler for Reentrant {
    fn handle(&mut self, _: ProxyTrigger, _: FifoPosition) -> Result<ProxyHandlerResult> {
        self.handling.send(()).unwrap();
        self.go_on.recv_timeout(LIMIT).unwrap();
        let proxy = self.proxy.get().and_then(Weak::upgrade).unwrap();
        assert!(proxy.is_running());
        proxy.start(true)?;
        assert!(matches!(proxy.stop(), Err(Error::InvalidArgument(_))));
        Ok(ProxyHandlerResult::Continue)
    }
}

#[test]
fn a_handler_may_ask_its_proxy_while_it_is_stopped() {
    let (handling, is_handling) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel();
    let own = Arc::new(OnceLock::new());
    let handler = Reentrant { proxy: own.clone(), handling, go_on: may_go_on };
    let proxy = Arc::new(Proxy::new(&gpu(), handler).unwrap());
    own.set(Arc::downgrade(&proxy)).unwrap();
    push(&proxy, 0);
    proxy.start(true).unwrap();
    is_handling.recv_timeout(LIMIT).unwrap();
    watched(LIMIT, "a stop", || {
        thread::scope(|scope| {
            let stopping = start_waiting(scope, || proxy.stop());
            go_on.send(()).unwrap();
            stopping.join().unwrap().unwrap();
        });
    });
    assert!(!proxy.is_running());
}

/// A handler that takes each trigger only when it is offered for the third time.
struct Reluctant {
    offers: u64,
    taken: Arc<AtomicU64>,
    progressed: bool,
}

impl ProxyHandler for Reluctant {
    fn handle(&mut self, trigger: ProxyTrigger, position: FifoPosition) -> Result<ProxyHandlerResult> {
        assert_eq!((trigger.fst, position.raw()), (self.offers / 3, self.offers / 3), "the same one again");
        assert!(
            self.offers.is_multiple_of(3) || std::mem::take(&mut self.progressed),
            "no progress was made"
        );
        self.offers += 1;
        if !self.offers.is_multiple_of(3) {
            return Ok(ProxyHandlerResult::Retry);
        }
        self.taken.fetch_add(1, Ordering::Relaxed);
        Ok(ProxyHandlerResult::Continue)
    }

    fn progress(&mut self) -> Result<Progress> {
        self.progressed = true;
        Ok(if self.offers.is_multiple_of(3) { Progress::Idle } else { Progress::Busy })
    }
}

#[test]
fn a_trigger_that_there_is_no_room_for_comes_again() {
    let taken = Arc::new(AtomicU64::new(0));
    let handler = Reluctant { offers: 0, taken: taken.clone(), progressed: false };
    let proxy = Proxy::builder(&gpu()).fifo_size(4).build(handler).unwrap();
    proxy.start(true).unwrap();
    for n in 0..100 {
        let position = push(&proxy, n);
        if n % 7 == 0 {
            assert!(sync(&proxy, position));
            assert_eq!(taken.load(Ordering::Relaxed), n + 1, "it was taken before the sync");
        }
    }
    proxy.stop().unwrap();
    assert_eq!((taken.load(Ordering::Relaxed), proxy.fifo().tail().raw()), (100, 100));
}

/// A handler that counts how often it was notified of its failure.
struct CountFailures(Arc<AtomicU64>);

impl ProxyHandler for CountFailures {
    fn handle(&mut self, _: ProxyTrigger, _: FifoPosition) -> Result<ProxyHandlerResult> {
        Ok(ProxyHandlerResult::Stop)
    }

    fn failed(&mut self, error: &Error) {
        assert!(error.to_string().contains("enough"), "{error}");
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_handler_is_told_of_an_abort_once_whether_or_not_it_runs() {
    type Before = fn(&Proxy<CountFailures>);
    let befores: [Before; 4] = [
        |_| (),
        |proxy| proxy.start(true).unwrap(),
        |proxy| proxy.start(true).and_then(|()| proxy.stop()).unwrap(),
        |proxy| {
            proxy.start(true).unwrap();
            let position = push(proxy, 0);
            assert!(sync(proxy, position));
        },
    ];
    for (n, before) in befores.into_iter().enumerate() {
        let failures = Arc::new(AtomicU64::new(0));
        let proxy = Proxy::new(&gpu(), CountFailures(failures.clone())).unwrap();
        before(&proxy);
        proxy.abort("enough");
        proxy.abort("enough and more");
        assert!(proxy.stop().is_err());
        assert_eq!(failures.load(Ordering::Relaxed), 1, "case {n}");
        assert!(proxy.start(true).is_err());
    }
}

#[test]
fn the_thread_is_prepared_at_each_start() {
    let starts = Arc::new(AtomicU64::new(0));
    let count = starts.clone();
    let proxy = Proxy::builder(&gpu())
        .thread_init(move || {
            assert_eq!(thread::current().name(), Some("mscclpp-proxy"));
            count.fetch_add(1, Ordering::Relaxed);
        })
        .build(|_: ProxyTrigger| ProxyHandlerResult::Continue)
        .unwrap();
    for n in 1..=3 {
        proxy.start(true).unwrap();
        assert_eq!(starts.load(Ordering::Relaxed), n);
        proxy.stop().unwrap();
    }
}

#[test]
fn a_panic_fails_the_proxy_and_frees_kernels() {
    for in_init in [true, false] {
        let proxy = Proxy::builder(&gpu())
            .fifo_size(2)
            .thread_init(move || assert!(!in_init, "no mood"))
            .build(|_: ProxyTrigger| -> ProxyHandlerResult { panic!("no mood") })
            .unwrap();
        let position = push(&proxy, 0);
        let started = proxy.start(true);
        assert_eq!(started.is_err(), in_init);
        assert!(!sync(&proxy, position));
        // Pushes that find no room end too.
        assert!((0..3).map(|n| push(&proxy, n)).any(|position| position == FifoHandle::FAILED));
        let error = proxy.stop().unwrap_err();
        assert!(matches!(&error, Error::Panicked { message } if message == "no mood"), "{error}");
        assert!(proxy.start(true).is_err(), "for good");
    }
}

#[test]
fn an_abort_frees_kernels_and_ends_the_thread() {
    let proxy = Proxy::builder(&gpu())
        .idle(IdlePolicy::NEVER_SLEEP)
        .build(|_: ProxyTrigger| ProxyHandlerResult::Stop)
        .unwrap();
    let position = push(&proxy, 0);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| sync(&proxy, position));
        proxy.abort("enough");
        assert!(!waiting.join().unwrap());
    });
    assert!(proxy.stop().unwrap_err().to_string().contains("enough"));
}

/// A handler whose operations are complete only when the test allows it.
struct Slow {
    started: u64,
    /// Whether it reports its operations only from `finish` on.
    silent: bool,
    may_complete: Arc<AtomicBool>,
    completed: Arc<AtomicU64>,
}

impl ProxyHandler for Slow {
    fn handle(&mut self, trigger: ProxyTrigger, position: FifoPosition) -> Result<ProxyHandlerResult> {
        assert_eq!(trigger.fst, position.raw());
        self.started += 1;
        Ok(ProxyHandlerResult::Continue)
    }

    fn progress(&mut self) -> Result<Progress> {
        if self.may_complete.load(Ordering::Relaxed) {
            self.completed.store(self.started, Ordering::Relaxed);
        }
        let all = self.completed.load(Ordering::Relaxed) == self.started;
        Ok(if all || self.silent { Progress::Idle } else { Progress::Busy })
    }

    fn finish(&mut self) -> Result<()> {
        assert_eq!(self.started, 20, "everything was handled before");
        self.silent = false;
        Ok(())
    }
}

/// Checks that a stop waits for the handler's operations, and logs a long wait: here they complete only after that.
#[test]
fn a_stop_waits_for_what_was_started() {
    for silent in [false, true] {
        let (may_complete, completed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let allowed = may_complete.clone();
        let log = Lines::then(move || allowed.store(true, Ordering::Relaxed));
        let handler = Slow { started: 0, silent, may_complete, completed: completed.clone() };
        let proxy = Proxy::builder(&gpu()).log_waits_after(Duration::from_millis(1)).build(handler).unwrap();
        (0..20).for_each(|n| assert_eq!(push(&proxy, n).raw(), n));
        proxy.start(true).unwrap();
        let writer = log.clone();
        let subscriber =
            tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).finish();
        tracing::subscriber::with_default(subscriber, || proxy.stop()).unwrap();
        assert_eq!(completed.load(Ordering::Relaxed), 20);
        let text = log.text();
        let line = format!("WARN mscclpp::wait: waiting for the proxy of {} to stop: trigger ", gpu());
        assert!(text.contains(&line), "{text}");
    }
}

/// Checks that kernels that push for ever do not hold up a stop.
#[test]
fn a_stop_ends_while_triggers_keep_coming() {
    let (seen, triggers) = mpsc::channel();
    let handler = move |_: ProxyTrigger| {
        // The test receives the first ones only.
        let _ = seen.send(());
        ProxyHandlerResult::Continue
    };
    let proxy = Proxy::builder(&gpu()).fifo_size(4).build(handler).unwrap();
    proxy.start(true).unwrap();
    let (kernel, stream) = (kernels().kernel("fifo_push_for_ever"), gpu().stream().unwrap());
    let args = KernelArgs::new().with(proxy.fifo().device_handle());
    // SAFETY: the handle is the kernel's argument, and the proxy lives until the stream is done.
    unsafe { kernel.launch(&stream, LaunchConfig::linear(3, 1), &args).unwrap() };
    for _ in 0..20 {
        triggers.recv_timeout(LIMIT).unwrap();
    }
    proxy.stop().unwrap();
    assert!(!proxy.is_running());
    assert!(!stream.query().unwrap(), "the kernel waits for room");
    proxy.abort("the test is over");
    stream.synchronize_timeout(LIMIT).unwrap();
}
