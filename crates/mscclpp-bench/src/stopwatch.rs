//! Runs work on all ranks' devices at once, and times it by the devices' events. Its waits end when something goes
//! wrong.

use std::{fmt::Display, time::Duration};

use mscclpp::{errors::GpuError, prelude::*};

use crate::{
    Error, Result,
    device_clock::{DeviceClock, LIMIT},
    pair::Pair,
    ranks::Ranks,
    watchdog::end_process,
};

/// How long kernels may take to end after an abort.
const AFTER_ABORT: Duration = Duration::from_secs(5);

/// Ends waits, for a reason.
type Abort<'a> = Box<dyn Fn(&str) + 'a>;

/// This rank's stream and clock.
pub(crate) struct Stopwatch<'a> {
    pair: &'a Pair,
    /// All that the timed kernels wait on.
    semaphores: Vec<Semaphore>,
    /// Ends the waits of timed kernels that wait on something else.
    abort_others: Option<Abort<'a>>,
    /// How long a launch may take.
    limit: Duration,
    clock: DeviceClock,
    /// Device memory: not 0 when a wait of a kernel ended without what it waited for.
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

    /// For kernels whose waits `abort` ends, given the reason, and that may take so long.
    pub(crate) fn of_others(pair: &'a Pair, limit: Duration, abort: impl Fn(&str) + 'a) -> Result<Self> {
        let mut stopwatch = Self::new(pair, Vec::new())?;
        stopwatch.abort_others = Some(Box::new(abort));
        stopwatch.limit = limit;
        Ok(stopwatch)
    }

    pub(crate) fn stream(&self) -> &Stream {
        self.clock.stream()
    }

    pub(crate) fn ranks(&self) -> &Ranks {
        &self.pair.ranks
    }

    /// Where kernels leave the round in which they gave up, plus 1: four bytes of device memory.
    pub(crate) fn failed(&self) -> DevicePtr {
        self.failed.ptr()
    }

    /// Runs what `submit` puts on the stream, on all ranks at once. The microseconds it took here; none if a wait failed
    /// on any.
    pub(crate) fn time<E: From<GpuError> + Into<Error>>(
        &self,
        submit: impl FnOnce(&Stream) -> Result<(), E>,
    ) -> Result<Option<f64>> {
        // Rank 0 reports its time; the others' work is submitted before, so that no start is waited for.
        self.run(self.pair.ranks.rank == 0, submit)
    }

    /// As [`Self::time`], for what may return only when the other ranks do the same.
    pub(crate) fn time_of_waits<E: From<GpuError> + Into<Error>>(
        &self,
        submit: impl FnOnce(&Stream) -> Result<(), E>,
    ) -> Result<Option<f64>> {
        self.run(true, submit)
    }

    /// Meets the other ranks before the work is submitted, or behind.
    fn run<E: From<GpuError> + Into<Error>>(
        &self,
        meets_first: bool,
        submit: impl FnOnce(&Stream) -> Result<(), E>,
    ) -> Result<Option<f64>> {
        let pair = self.pair;
        if meets_first {
            pair.ranks.meet()?;
        }
        self.clock.start(submit).map_err(Into::into)?;
        if !meets_first {
            pair.ranks.meet()?;
        }
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

    /// Until kernels whose waits were aborted because of `error` are complete. What others have launched may go on, and then
    /// the process ends: while it does, memory cannot be given back.
    fn await_abort(&self, error: &dyn Display) {
        let ours = self.abort_others.is_none();
        // That waits were aborted is no news.
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
        // After an error a kernel may still wait: it must end before what it works on goes.
        if self.clock.is_busy() {
            self.abort("the benchmark ends");
            self.await_abort(&"a launch of a benchmark that has failed");
        }
    }
}
