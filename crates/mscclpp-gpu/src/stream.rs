use std::{ffi::c_void, fmt, sync::Arc, time::Duration};

use crate::{Abort, DevicePtr, Error, Event, Gpu, Graph, Result, backend::StreamBackend};

/// An ordered queue of work for one device. Clones are the same queue.
///
/// Any thread may submit. Submitting does not wait for the work; an error of the work comes out of
/// [`Stream::synchronize`], [`Stream::query`] or a later submission. Dropping a stream waits for nothing: its work goes on,
/// and what launches keep lives until it is complete.
#[derive(Clone)]
pub struct Stream {
    gpu: Gpu,
    backend: Arc<dyn StreamBackend>,
}

impl Stream {
    pub(crate) fn new(gpu: Gpu, backend: Arc<dyn StreamBackend>) -> Self {
        Self { gpu, backend }
    }

    pub(crate) fn backend(&self) -> &Arc<dyn StreamBackend> {
        &self.backend
    }

    /// A stream that someone else made (a `CUstream` of PyTorch, CuPy, cudarc). It is not destroyed here.
    ///
    /// # Safety
    /// `raw` must be a stream of `gpu`'s primary context and stay alive as long as this value and its clones.
    ///
    /// # Errors
    /// [`crate::Error::InvalidArgument`] on the Host platform, which has no raw streams.
    pub unsafe fn from_raw(gpu: &Gpu, raw: *mut c_void) -> Result<Self> {
        // SAFETY: the caller's promise.
        let backend = unsafe { gpu.backend().wrap_stream(raw)? };
        Ok(Self::new(gpu.clone(), backend))
    }

    /// The driver's handle (`CUstream`), null for the default stream and on the Host platform.
    #[must_use]
    pub fn raw(&self) -> *mut c_void {
        self.backend.raw()
    }

    /// The device it belongs to.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Blocks until all work submitted so far is complete.
    ///
    /// No deadline of its own: device waits have theirs. See [`Stream::synchronize_timeout`].
    ///
    /// # Errors
    /// The first error of the work.
    pub fn synchronize(&self) -> Result<()> {
        self.backend.synchronize()
    }

    /// As [`Stream::synchronize`], for at most `timeout`. Polls, backing off to 50 us.
    ///
    /// # Errors
    /// [`crate::Error::Timeout`]: the work goes on and the call can be repeated. It names the peers whom kernels can wait
    /// for through the objects that their launches were given ([`crate::KernelArgs`]). These objects live as long as the
    /// work, so returning this error, from `main` too, leaves nothing invalid behind.
    pub fn synchronize_timeout(&self, timeout: Duration) -> Result<()> {
        self.poll_until_complete(timeout).map_err(|error| match error {
            Error::Timeout { operation, after, .. } => {
                let peers = crate::argument::peers_of(&self.backend.in_use());
                crate::abort::waiting_for(&peers, "whose kernels can wait for", operation, after)
            }
            other => other,
        })
    }

    pub(crate) fn poll_until_complete(&self, timeout: Duration) -> Result<()> {
        crate::event::poll_until(timeout, || self.query(), || format!("work on a stream of {}", self.gpu))
    }

    /// As [`Stream::synchronize_timeout`], and when time runs out it ends the waits of the kernels: it aborts `what` they
    /// wait through, and waits until they are complete, 5 s at most. So no kernel is left behind, and the device stays
    /// usable; `what` does not, an abort is for good.
    ///
    /// `what` is a semaphore, a channel, a proxy service, a communicator, or a list of one of these: all that kernels on
    /// this stream wait through. Also if the work is complete in time, it is asked whether a wait failed.
    ///
    /// # Errors
    /// If the work is complete: what [`Abort::check`] says, such as the loss of a peer. If it was aborted: what was known
    /// before, else [`crate::Error::Timeout`] that names the peers whom `what` waits for. An error of the work.
    pub fn synchronize_or_abort<A: Abort + ?Sized>(
        &self,
        limit: Duration,
        what: &A,
    ) -> std::result::Result<(), A::Error> {
        crate::abort::synchronize_or_abort(self, limit, what)
    }

    /// Whether all work submitted so far is complete. Does not block.
    ///
    /// # Errors
    /// The first error of the work.
    pub fn query(&self) -> Result<bool> {
        self.backend.query()
    }

    /// Copies `bytes` from `src` to `dst`, both reachable from the device (its own, a peer's, or host memory).
    ///
    /// # Safety
    /// Both ranges must be valid until the copy is complete and nothing else may write them meanwhile.
    ///
    /// # Errors
    /// [`crate::Error::Driver`].
    pub unsafe fn copy(&self, dst: DevicePtr, src: DevicePtr, bytes: u64) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.backend.copy(dst, src, bytes) }
    }

    /// Sets `bytes` bytes from `dst` on to `value`.
    ///
    /// # Safety
    /// As [`Stream::copy`].
    ///
    /// # Errors
    /// [`crate::Error::Driver`].
    pub unsafe fn fill(&self, dst: DevicePtr, bytes: u64, value: u8) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.backend.fill(dst, bytes, value) }
    }

    /// Stores the 8 bytes of `value` at `dst` (8-byte aligned) after all earlier work of the stream, whose writes are
    /// visible to whoever sees the new value.
    ///
    /// # Safety
    /// As [`Stream::copy`].
    ///
    /// # Errors
    /// [`crate::Error::Driver`].
    pub unsafe fn write_u64(&self, dst: DevicePtr, value: u64) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.backend.write_u64(dst, value) }
    }

    /// [`Stream::write_u64`] twice, in this order, which is submitted, and on GPUs done, faster than two calls.
    ///
    /// # Safety
    /// As [`Stream::copy`].
    ///
    /// # Errors
    /// As [`Stream::write_u64`]; the first value may have been submitted then.
    pub unsafe fn write_two_u64(&self, values: [(DevicePtr, u64); 2]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            if !self.backend.write_two_at_once(values)? {
                for (dst, value) in values {
                    self.backend.write_u64(dst, value)?;
                }
            }
        }
        Ok(())
    }

    /// Marks this point of the stream in `event`.
    ///
    /// # Errors
    /// [`crate::Error::Driver`]; [`crate::Error::InvalidArgument`] for an event of another platform.
    pub fn record(&self, event: &Event) -> Result<()> {
        self.backend.record(event.backend())
    }

    /// Later work of this stream waits until what `event` marks is complete.
    ///
    /// # Errors
    /// As [`Stream::record`].
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        self.backend.wait_event(event.backend())
    }

    /// From here on, work submitted to the stream is recorded instead of run.
    ///
    /// The capture is thread-local in CUDA's sense. End it with [`Stream::end_capture`]. On the Host platform it is of
    /// this stream alone: other streams cannot join it through events.
    ///
    /// # Errors
    /// [`crate::Error::Driver`] or [`crate::Error::InvalidArgument`] if it is capturing already.
    pub fn begin_capture(&self) -> Result<()> {
        self.backend.begin_capture()
    }

    /// Ends the capture; the graph can be launched any number of times.
    ///
    /// # Errors
    /// [`crate::Error::Driver`] or [`crate::Error::InvalidArgument`] if it was not capturing.
    pub fn end_capture(&self) -> Result<Graph> {
        Ok(Graph::new(self.backend.end_capture()?))
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("gpu", &self.gpu.to_string()).field("raw", &self.raw()).finish()
    }
}
