use std::{
    ffi::c_void,
    sync::Arc,
    time::{Duration, Instant},
};

use mscclpp_os::waiting::Backoff;

use crate::{Error, Gpu, Result, backend::EventBackend, fork::OfProcess};

/// A point in a stream. Clones are the same event.
#[derive(Clone)]
pub struct Event {
    backend: OfProcess<Arc<dyn EventBackend>>,
}

impl Event {
    fn new(backend: Arc<dyn EventBackend>) -> Self {
        Self { backend: OfProcess::new(backend) }
    }

    /// An event that other code made (a `CUevent` of PyTorch, CuPy or cudarc). It is not destroyed here.
    ///
    /// # Safety
    /// `raw` must be an event of `gpu`'s primary context and stay alive as long as this value and its clones.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] on simulated devices, which have no raw events.
    pub unsafe fn from_raw(gpu: &Gpu, raw: *mut c_void) -> Result<Self> {
        // SAFETY: the caller's promise.
        Ok(Self::new(unsafe { gpu.backend()?.wrap_event(raw)? }))
    }

    /// Returns the event for use, or an error in a forked child.
    pub(crate) fn backend(&self) -> Result<&Arc<dyn EventBackend>> {
        self.backend.here()
    }

    /// Whether the work before the last recorded point is complete; true if the event was never recorded.
    ///
    /// # Errors
    /// The first error of that work.
    pub fn query(&self) -> Result<bool> {
        self.backend()?.query()
    }

    /// Blocks until the work before the last recorded point is complete, for at most `timeout`.
    ///
    /// # Errors
    /// [`Error::Timeout`], in which case the work goes on; or the first error of the work. The next
    /// [`Stream::synchronize`](crate::Stream::synchronize) reports waits of kernels that failed.
    pub fn synchronize_timeout(&self, timeout: Duration) -> Result<()> {
        poll_until(timeout, || self.query(), || "the work before an event".to_owned())
    }

    /// Returns the milliseconds from `start` to this event. Both must be recorded, complete and made with timing.
    ///
    /// # Errors
    /// [`Error::Driver`] or [`Error::InvalidArgument`] if they are not.
    pub fn elapsed_ms(&self, start: &Event) -> Result<f32> {
        self.backend()?.elapsed_ms(&**start.backend()?)
    }
}

impl Gpu {
    /// Makes an event. Events made `with_timing` can be given to [`Event::elapsed_ms`].
    ///
    /// # Errors
    /// [`Error::Driver`] or [`Error::System`].
    pub fn event(&self, with_timing: bool) -> Result<Event> {
        Ok(Event::new(self.backend()?.create_event(with_timing)?))
    }
}

mscclpp_os::debug_fields!(Event, ..);

/// Calls `done` until it returns true or `timeout` has passed: first at once, then yielding in between, then sleeping up
/// to 50 microseconds.
pub(crate) fn poll_until(
    timeout: Duration,
    mut done: impl FnMut() -> Result<bool>,
    what: impl FnOnce() -> String,
) -> Result<()> {
    let start = Instant::now();
    let mut backoff = Backoff::default();
    while !done()? {
        if start.elapsed() >= timeout {
            return Err(Error::Timeout { operation: what(), after: timeout, remedy: "" });
        }
        backoff.wait();
    }
    Ok(())
}
