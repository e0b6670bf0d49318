//! Runs work on both ranks' devices at once, and times it by the devices' events. Its waits end when something goes
//! wrong.

use mscclpp::{errors::GpuError, prelude::*};

use crate::{Result, device_clock::DeviceClock, pair::Pair, ranks::Ranks};

/// This rank's stream and clock.
pub(crate) struct Stopwatch<'a> {
    pair: &'a Pair,
    /// All that the timed kernels wait on.
    semaphores: Vec<Semaphore>,
    clock: DeviceClock,
    /// Device memory: not 0 when a wait of a kernel ended without what it waited for.
    failed: DeviceBuffer,
}

impl<'a> Stopwatch<'a> {
    pub(crate) fn new(pair: &'a Pair, semaphores: Vec<Semaphore>) -> Result<Self> {
        let gpu = &pair.gpu;
        Ok(Self { pair, semaphores, clock: DeviceClock::new(gpu)?, failed: gpu.allocate(4)? })
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

    /// Runs what `submit` puts on the stream, on both sides at once. The microseconds it took here; none if a wait failed
    /// on either side.
    pub(crate) fn time(&self, submit: impl FnOnce(&Stream) -> Result<(), GpuError>) -> Result<Option<f64>> {
        let pair = self.pair;
        // Rank 0 reports its time; rank 1's work is submitted before, so that no start is waited for.
        if pair.ranks.rank == 0 {
            pair.ranks.meet()?;
        }
        self.clock.start(submit)?;
        if pair.ranks.rank == 1 {
            pair.ranks.meet()?;
        }
        if let Err(error) = self.clock.wait() {
            self.abort("a launch took too long");
            self.clock.wait()?;
            return Err(error.into());
        }
        let mut failed = [0; 4];
        self.failed.read(0, &mut failed)?;
        if failed != [0; 4] {
            for semaphore in &self.semaphores {
                semaphore.check().map_err(|error| pair.ranks.comm.explain(error))?;
            }
        }
        if !pair.ranks.both(failed == [0; 4])? {
            return Ok(None);
        }
        Ok(Some(self.clock.elapsed_us()?))
    }

    fn abort(&self, reason: &str) {
        for semaphore in &self.semaphores {
            semaphore.abort(reason);
        }
    }
}

impl Drop for Stopwatch<'_> {
    fn drop(&mut self) {
        // After an error a kernel may still wait: it must end before what it works on goes.
        if self.clock.is_busy() {
            self.abort("the benchmark ends");
            let _ = self.clock.wait();
        }
    }
}
