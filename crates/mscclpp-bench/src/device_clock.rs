//! A stream of a device, and events that time what runs on it.

use std::time::Duration;

use mscclpp::{Event, Gpu, Stream, errors::GpuError};

/// The limit for one launch of a kernel or graph.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

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
