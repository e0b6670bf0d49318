//! Threads of a kernel that push triggers, and a proxy that counts and checks them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use mscclpp::{
    errors::ProxyError,
    prelude::*,
    proxy::{FifoPosition, Proxy, ProxyHandler, ProxyHandlerResult, ProxyTrigger},
};

use crate::{
    Result,
    kernels::PORT_BENCH,
    stopwatch::{DeviceClock, LIMIT},
};

/// The way in which threads push their triggers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pushing {
    /// A thread pushes a trigger, and waits until it is taken.
    AndSync,
    /// A thread pushes a trigger; the next one waits only for room in the FIFO.
    Pipelined,
}

/// A block of threads that push triggers.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) pushing: Pushing,
    pub(crate) threads: u32,
    /// The triggers of a thread in a launch.
    pub(crate) per_thread: u32,
    /// The number of triggers that the FIFO holds.
    pub(crate) fifo_size: u64,
}

pub(crate) struct Pushers {
    shape: Shape,
    clock: DeviceClock,
    kernel: Kernel,
    proxy: Proxy<Counting>,
    counts: Arc<Counts>,
    /// Device memory that is not 0 if a push or a wait failed.
    failed: DeviceBuffer,
    launches: u64,
}

/// The triggers since the proxy was made.
#[derive(Debug, Default)]
struct Counts {
    taken: AtomicU64,
    wrong: AtomicU64,
}

/// A handler that expects triggers with the thread's number and the number of its earlier pushes in the launch.
struct Counting {
    counts: Arc<Counts>,
    /// The next value expected of each thread.
    next: Vec<u64>,
    per_thread: u64,
}

impl ProxyHandler for Counting {
    fn handle(
        &mut self,
        trigger: ProxyTrigger,
        _position: FifoPosition,
    ) -> Result<ProxyHandlerResult, ProxyError> {
        let Counts { taken, wrong } = &*self.counts;
        match self.next.get_mut(trigger.fst as usize) {
            Some(next) if *next == trigger.snd => *next = (*next + 1) % self.per_thread,
            _ => wrong.store(wrong.load(Ordering::Relaxed) + 1, Ordering::Relaxed),
        }
        // A thread that sees the new count also sees the errors until then.
        taken.store(taken.load(Ordering::Relaxed) + 1, Ordering::Release);
        Ok(ProxyHandlerResult::Continue)
    }
}

impl Pushers {
    /// Starts a proxy. If told to `spoil`, it expects a first trigger that does not come.
    pub(crate) fn new(gpu: &Gpu, shape: Shape, spoil: bool) -> Result<Self> {
        let module = Module::load(gpu, &PORT_BENCH)?;
        let kernel = module.kernel(match shape.pushing {
            Pushing::AndSync => "fifo_push_and_sync",
            Pushing::Pipelined => "fifo_push",
        })?;
        let counts = Arc::<Counts>::default();
        let mut next = vec![0; shape.threads as usize];
        next[0] = u64::from(spoil);
        let handler = Counting { counts: counts.clone(), next, per_thread: shape.per_thread.into() };
        let proxy = Proxy::builder(gpu).fifo_size(shape.fifo_size).build(handler)?;
        proxy.start(true)?;
        let (clock, failed) = (DeviceClock::new(gpu)?, gpu.allocate(4)?);
        Ok(Self { shape, clock, kernel, proxy, counts, failed, launches: 0 })
    }

    /// Makes one launch, and returns the microseconds that it took; none if a push failed, or a trigger was lost, doubled or
    /// wrong, in this launch or before.
    ///
    /// # Errors
    /// A launch that does not end; triggers that do not come; an error of the proxy.
    pub(crate) fn launch(&mut self) -> Result<Option<f64>> {
        let Shape { threads, per_thread, .. } = self.shape;
        let args = KernelArgs::new()
            .with(self.proxy.fifo().device_handle())
            .with(per_thread)
            .with(self.failed.ptr());
        let config = LaunchConfig::linear(1, threads);
        let submitted = self.clock.start(|stream| {
            // SAFETY: these are the kernel's arguments; this waits for its end below, or when this value is dropped.
            unsafe { self.kernel.launch(stream, config, &args) }
        });
        submitted.and_then(|()| self.clock.wait_for(LIMIT))?;
        let mut failed = [0; 4];
        self.failed.read(0, &mut failed)?;
        if failed != [0; 4] {
            self.proxy.health()?;
            return Ok(None);
        }
        self.launches += 1;
        let due = self.launches * u64::from(threads) * u64::from(per_thread);
        let taken = self.await_triggers(due)?;
        let right = taken == due && self.counts.wrong.load(Ordering::Relaxed) == 0;
        Ok(if right { Some(self.clock.elapsed_us()?) } else { None })
    }

    /// Waits until `due` triggers have been taken, and returns how many have.
    fn await_triggers(&self, due: u64) -> Result<u64> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let taken = self.counts.taken.load(Ordering::Acquire);
            if taken >= due {
                return Ok(taken);
            }
            self.proxy.health()?;
            if Instant::now() > deadline {
                return Err(format!("of {due} triggers the proxy has taken {taken}").into());
            }
            thread::sleep(Duration::from_micros(50));
        }
    }
}

impl Drop for Pushers {
    fn drop(&mut self) {
        // After an error the kernel may still be waiting: it must end before the memory that it uses is freed.
        if self.clock.is_busy() {
            self.proxy.abort("the benchmark ends");
            let _ = self.clock.wait_for(LIMIT);
        }
    }
}
