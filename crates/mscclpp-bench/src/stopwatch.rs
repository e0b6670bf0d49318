//! Runs work on all ranks' devices at once, and times it by the devices' events. Its waits end when something goes
//! wrong.

use std::{fmt::Display, ops::Range, time::Duration};

use mscclpp::errors::GpuError;

use crate::{prelude::*, watchdog::end_process};

/// The limit for one launch of a kernel or graph.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// The time in which kernels may end after an abort.
const AFTER_ABORT: Duration = Duration::from_secs(5);

/// A function that ends waits, for the given reason.
type Abort<'a> = Box<dyn Fn(&str) + 'a>;

/// The stream and clock with which this rank times its work.
pub(crate) struct Stopwatch<'a> {
    pair: &'a Pair,
    /// The semaphores on which the timed kernels wait.
    semaphores: Vec<Semaphore>,
    /// Ends the waits of timed kernels that do not wait on semaphores.
    abort_others: Option<Abort<'a>>,
    /// The longest time for a launch.
    limit: Duration,
    clock: DeviceClock,
    /// Device memory that is not 0 if a wait of a kernel failed.
    failed: DeviceBuffer,
}

impl<'a> Stopwatch<'a> {
    pub(crate) fn new(pair: &'a Pair, semaphores: Vec<Semaphore>) -> Result<Self> {
        let gpu = &pair.gpu;
        Ok(Self {
            pair,
            semaphores,
            abort_others: None,
            limit: LIMIT,
            clock: DeviceClock::new(gpu)?,
            failed: gpu.allocate(4)?,
        })
    }

    /// Makes a stopwatch for kernels whose waits `abort` ends for the given reason, and that may take up to `limit`.
    pub(crate) fn of_others(pair: &'a Pair, limit: Duration, abort: impl Fn(&str) + 'a) -> Result<Self> {
        let mut stopwatch = Self::new(pair, Vec::new())?;
        stopwatch.abort_others = Some(Box::new(abort));
        stopwatch.limit = limit;
        Ok(stopwatch)
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.clock.stream
    }

    pub(crate) fn ranks(&self) -> &Ranks {
        &self.pair.ranks
    }

    /// The device address, of four bytes, at which kernels store the round in which they gave up, plus 1.
    pub(crate) fn failed(&self) -> DevicePtr {
        self.failed.ptr()
    }

    /// Runs `count` launches on all ranks at once, of which `submit` puts those of a range on the stream. Returns the
    /// microseconds that they took here, and none if a wait failed on any rank.
    ///
    /// Rank 0 reports its time. The other ranks submit their first launch before they meet rank 0, so that its time contains no
    /// start of theirs. They submit the rest after the meeting, because a driver's queue holds about a thousand launches, and a
    /// full queue empties only once rank 0 has begun.
    pub(crate) fn time(
        &self,
        count: u32,
        submit: impl Fn(&Stream, Range<u32>) -> Result<()>,
    ) -> Result<Option<f64>> {
        self.run(|stream| {
            if self.pair.ranks.rank == 0 {
                self.pair.ranks.meet()?;
                // The time does not have the meeting in it.
                self.clock.begin()?;
                return submit(stream, 0..count);
            }
            submit(stream, 0..1)?;
            self.pair.ranks.meet()?;
            if count > 1 { submit(stream, 1..count) } else { Ok(()) }
        })
    }

    /// Returns the microseconds that the work of `submit` took, which may return only when the other ranks do the same.
    pub(crate) fn time_of_waits(&self, submit: impl Fn(&Stream) -> Result<()>) -> Result<Option<f64>> {
        self.pair.ranks.meet()?;
        self.run(submit)
    }

    fn run(&self, submit: impl FnOnce(&Stream) -> Result<()>) -> Result<Option<f64>> {
        let pair = self.pair;
        self.clock.start(submit)?;
        if let Err(error) = self.clock.wait_for(self.limit) {
            self.abort("a launch took too long");
            self.await_abort(&error);
            return Err(error.into());
        }
        let mut failed = [0; 4];
        self.failed.read(0, &mut failed)?;
        if failed != [0; 4] {
            for semaphore in &self.semaphores {
                semaphore.check().map_err(|error| pair.ranks.comm.explain(error))?;
            }
        }
        if !pair.ranks.all(failed == [0; 4])? {
            return Ok(None);
        }
        Ok(Some(self.clock.elapsed_us()?))
    }

    /// Waits until kernels whose waits were aborted because of `error` are complete. Kernels of others may go on; then the
    /// process ends, because memory that they use cannot be freed.
    fn await_abort(&self, error: &dyn Display) {
        let ours = self.abort_others.is_none();
        // This fails, because the waits were aborted.
        let _ = self.clock.wait_for(if ours { self.limit } else { AFTER_ABORT });
        if !ours && self.clock.is_busy() {
            end_process(&format!("{error}; it goes on after an abort, so this process ends"));
        }
    }

    fn abort(&self, reason: &str) {
        for semaphore in &self.semaphores {
            semaphore.abort(reason);
        }
        if let Some(abort) = &self.abort_others {
            abort(reason);
        }
    }
}

impl Drop for Stopwatch<'_> {
    fn drop(&mut self) {
        // After an error a kernel may still be waiting: it must end before the memory that it uses is freed.
        if self.clock.is_busy() {
            self.abort("the benchmark ends");
            self.await_abort(&"a launch of a benchmark that has failed");
        }
    }
}

/// A stream of a device, and events that time what runs on it.
pub(crate) struct DeviceClock {
    pub(crate) stream: Stream,
    start: Event,
    end: Event,
}

impl DeviceClock {
    pub(crate) fn new(gpu: &Gpu) -> Result<Self, GpuError> {
        Ok(Self { stream: gpu.stream()?, start: gpu.event(true)?, end: gpu.event(true)? })
    }

    /// Submits work by `submit`, between the two events.
    pub(crate) fn start<E: From<GpuError>>(
        &self,
        submit: impl FnOnce(&Stream) -> Result<(), E>,
    ) -> Result<(), E> {
        self.begin()?;
        submit(&self.stream)?;
        Ok(self.stream.record(&self.end)?)
    }

    /// Begins the time anew, behind what was submitted so far.
    pub(crate) fn begin(&self) -> Result<(), GpuError> {
        self.stream.record(&self.start)
    }

    /// Waits for the work, for `limit`; after an error it may be waited for once more.
    pub(crate) fn wait_for(&self, limit: Duration) -> Result<(), GpuError> {
        self.stream.synchronize_timeout(limit)
    }

    /// The time of the work in microseconds.
    pub(crate) fn elapsed_us(&self) -> Result<f64, GpuError> {
        Ok(f64::from(self.end.elapsed_ms(&self.start)?) * 1e3)
    }

    /// Whether submitted work may still be running.
    pub(crate) fn is_busy(&self) -> bool {
        !matches!(self.stream.query(), Ok(true))
    }
}
