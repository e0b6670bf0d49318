//! Proxies with handlers of one's own.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use mscclpp_gpu::{Gpu, Platform};
use mscclpp_proxy::{
    Error, FifoHandle, IdlePolicy, Progress, Proxy, ProxyHandler, ProxyHandlerResult, ProxyTrigger, Result,
};

const PATIENCE: Duration = Duration::from_secs(60);

fn gpu() -> Gpu {
    Platform::Host.gpu(0).unwrap()
}

fn numbered(n: u64) -> ProxyTrigger {
    ProxyTrigger { fst: n, snd: 0 }
}

/// Pushes as a thread of a kernel.
fn push<H: ProxyHandler>(proxy: &Proxy<H>, n: u64) -> u64 {
    // SAFETY: a simulated device, and `proxy` is alive.
    unsafe { proxy.fifo().device_handle().push(numbered(n), -1) }
}

fn sync<H: ProxyHandler>(proxy: &Proxy<H>, position: u64) -> bool {
    // SAFETY: as above.
    unsafe { proxy.fifo().device_handle().sync(position, -1) }
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
    (0..9).for_each(|n| assert_eq!(push(&proxy, n), n));
    for turn in 0..3 {
        proxy.start(true).unwrap();
        let got: Vec<_> = (0..3).map(|_| triggers.recv_timeout(PATIENCE).unwrap()).collect();
        assert_eq!(got, [3 * turn, 3 * turn + 1, 3 * turn + 2]);
        let deadline = Instant::now() + PATIENCE;
        while proxy.is_running() {
            assert!(Instant::now() < deadline);
            thread::yield_now();
        }
        assert!(triggers.try_recv().is_err());
    }
    proxy.stop().unwrap();
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
        // Those that find no room end too.
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

/// Starts things that are complete when it is told so.
struct Slow {
    started: u64,
    may_complete: Arc<AtomicBool>,
    completed: Arc<AtomicU64>,
}

impl ProxyHandler for Slow {
    fn handle(&mut self, trigger: ProxyTrigger, position: u64) -> Result<ProxyHandlerResult> {
        assert_eq!(trigger.fst, position);
        self.started += 1;
        Ok(ProxyHandlerResult::Continue)
    }

    fn progress(&mut self) -> Result<Progress> {
        if self.may_complete.load(Ordering::Relaxed) {
            self.completed.store(self.started, Ordering::Relaxed);
        }
        let all = self.completed.load(Ordering::Relaxed) == self.started;
        Ok(if all { Progress::Idle } else { Progress::Busy })
    }
}

#[test]
fn a_stop_waits_for_what_was_started() {
    let (may_complete, completed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let handler = Slow { started: 0, may_complete: may_complete.clone(), completed: completed.clone() };
    let proxy = Proxy::new(&gpu(), handler).unwrap();
    (0..20).for_each(|n| assert_eq!(push(&proxy, n), n));
    proxy.start(true).unwrap();
    thread::scope(|scope| {
        let stop = scope.spawn(|| proxy.stop());
        thread::sleep(Duration::from_millis(20));
        assert_eq!(completed.load(Ordering::Relaxed), 0);
        may_complete.store(true, Ordering::Relaxed);
        stop.join().unwrap().unwrap();
    });
    assert_eq!(completed.load(Ordering::Relaxed), 20);
}

/// Kernels that push for ever do not hold up a stop.
#[test]
fn a_stop_ends_while_triggers_keep_coming() {
    let proxy =
        Proxy::builder(&gpu()).fifo_size(4).build(|_: ProxyTrigger| ProxyHandlerResult::Continue).unwrap();
    let done = AtomicBool::new(false);
    proxy.start(true).unwrap();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    push(&proxy, 0);
                }
            });
        }
        thread::sleep(Duration::from_millis(5));
        proxy.stop().unwrap();
        assert!(!proxy.is_running());
        done.store(true, Ordering::Relaxed);
        // Those that wait for room.
        proxy.abort("the test is over");
    });
}
