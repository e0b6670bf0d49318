use std::{ffi::c_void, sync::Arc, time::Duration};

use crate::{
    DevicePtr, Error, Event, Gpu, Result, backend::StreamBackend, event::poll_until, fork::OfProcess,
    object::check_all,
};

/// An ordered queue of work for one device. Clones are the same queue.
///
/// Any thread may submit work. Submitting does not wait for the work; [`Stream::synchronize`], [`Stream::query`] or a
/// later submission returns an error of the work. Dropping a stream waits for nothing: its work goes on, and the objects
/// that launches keep live until it is complete.
#[derive(Clone)]
pub struct Stream {
    gpu: Gpu,
    backend: OfProcess<Arc<dyn StreamBackend>>,
}

impl Stream {
    fn new(gpu: Gpu, backend: Arc<dyn StreamBackend>) -> Self {
        Self { gpu, backend: OfProcess::new(backend) }
    }

    /// Returns the stream for use, or an error in a forked child.
    pub(crate) fn backend(&self) -> Result<&Arc<dyn StreamBackend>> {
        self.backend.here()
    }

    /// A stream that other code made (a `CUstream` of PyTorch, CuPy or cudarc). It is not destroyed here.
    ///
    /// A program may call this for each launch: all values of one stream share its state in this library. The objects of
    /// launches are released, as for any stream, when this library waits for it, finds it idle, or sees during later
    /// launches and allocations that they are complete. The objects of the last few launches may stay until one of these,
    /// or [`Gpu::synchronize`].
    ///
    /// The handles of the default stream (0 and 1) and of the per-thread stream (`cudaStreamPerThread`, 2) are taken too. The
    /// latter means another stream in each thread, so the value is the stream of the calling thread, and any use of it by another
    /// thread is an error.
    ///
    /// # Safety
    /// `raw` must be a stream of `gpu`'s primary context and stay alive as long as this value and its clones.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] on simulated devices, which have no raw streams.
    pub unsafe fn from_raw(gpu: &Gpu, raw: *mut c_void) -> Result<Self> {
        // SAFETY: the caller's promise.
        let backend = unsafe { gpu.backend()?.wrap_stream(raw)? };
        Ok(Self::new(gpu.clone(), backend))
    }

    /// The driver's handle (`CUstream`); null for the default stream and on simulated devices.
    #[must_use]
    pub fn raw(&self) -> *mut c_void {
        self.backend.raw()
    }

    /// The stream's device.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Whether the other is the same stream.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.backend, &other.backend)
    }

    /// Whether other code made it, and may destroy it: see [`Stream::from_raw`].
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.backend.is_foreign()
    }

    /// Whether it is being captured: whether work that is submitted to it becomes part of a graph. Does not block, and
    /// disturbs no capture.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver), such as for the default stream while another stream that waits for it is
    /// being captured: it can then neither be used nor queried.
    pub fn is_capturing(&self) -> Result<bool> {
        self.backend()?.is_being_captured()
    }

    /// Returns the number of the capture that it is part of, if it is: the same for all streams of that capture, and
    /// different from that of any other capture that is under way. Does not block, and disturbs no capture.
    ///
    /// # Errors
    /// The same as [`Stream::is_capturing`].
    pub fn capture_id(&self) -> Result<Option<u64>> {
        self.backend()?.capture_id()
    }

    /// Blocks until all work submitted so far is complete.
    ///
    /// It has no deadline, because the waits of device code have their own. See [`Stream::synchronize_timeout`].
    ///
    /// A wait of a kernel that fails makes the kernel's call return false, and the work goes on. If it was a wait through
    /// an object that the launch keeps ([`KernelArgs`](crate::KernelArgs)), that is an error here, once: the next call
    /// succeeds, unless an object that has failed for good was given to another launch meanwhile. It covers launches, and
    /// those of graphs, since the last call, also if they were complete long before. Of the objects that have failed
    /// since then, the first 64 are asked. Waits are not checked for objects whose handles the kernels got as plain
    /// values. For these, ask the semaphore or channel ([`Abort::check`](crate::Abort::check)).
    ///
    /// # Errors
    /// The first error of the work. If that is complete: [`Error::Wait`], with the error of the object that failed, such
    /// as `lost rank 2`; the first of these, if there are several.
    pub fn synchronize(&self) -> Result<()> {
        self.backend()?.synchronize()?;
        self.check_failed()
    }

    /// Asks the objects of complete launches that have failed, once.
    pub(crate) fn check_failed(&self) -> Result<()> {
        check_all(&self.backend.take_failed())
    }

    pub(crate) fn poll_until_complete(&self, timeout: Duration) -> Result<()> {
        poll_until(timeout, || self.query(), || format!("work on a stream of {}", self.gpu))
    }

    /// Whether all work submitted so far is complete. Does not block. The next synchronize reports waits of kernels that
    /// failed.
    ///
    /// # Errors
    /// The first error of that work.
    pub fn query(&self) -> Result<bool> {
        self.backend()?.query()
    }

    /// Waits like [`Stream::query`], for at most `timeout`. For programs that wait in steps and do something in between.
    ///
    /// # Errors
    /// The same as [`Stream::query`].
    pub fn query_timeout(&self, timeout: Duration) -> Result<bool> {
        match self.poll_until_complete(timeout) {
            Ok(()) => Ok(true),
            Err(Error::Timeout { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Copies `bytes` bytes from `src` to `dst`. The device must reach both: its own memory, a peer's, or host memory.
    ///
    /// # Safety
    /// Both ranges must be valid until the copy is complete, and nothing else may write to them meanwhile.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub unsafe fn copy(&self, dst: DevicePtr, src: DevicePtr, bytes: u64) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.backend()?.copy(dst, src, bytes) }
    }

    /// Sets `bytes` bytes from `dst` on to `value`.
    ///
    /// # Safety
    /// The same as [`Stream::copy`].
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub unsafe fn fill(&self, dst: DevicePtr, bytes: u64, value: u8) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.backend()?.fill(dst, bytes, value) }
    }

    /// Stores the 8 bytes of `value` at `dst` (8-byte aligned) after all earlier work of the stream. A reader that sees
    /// the new value also sees what that work wrote.
    ///
    /// # Safety
    /// The same as [`Stream::copy`].
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub unsafe fn write_u64(&self, dst: DevicePtr, value: u64) -> Result<()> {
        is_word(dst)?;
        // SAFETY: the caller's promise.
        unsafe { self.backend()?.write_u64(dst, value) }
    }

    /// Does [`Stream::write_u64`] twice, in this order. This is submitted faster than two calls, and on GPUs also done
    /// faster.
    ///
    /// # Safety
    /// The same as [`Stream::copy`].
    ///
    /// # Errors
    /// As for [`Stream::write_u64`]; in that case the first value may have been submitted.
    pub unsafe fn write_two_u64(&self, values: [(DevicePtr, u64); 2]) -> Result<()> {
        values.iter().try_for_each(|(dst, _)| is_word(*dst))?;
        // SAFETY: the caller's promise.
        unsafe {
            if !self.backend()?.write_two_at_once(values)? {
                for (dst, value) in values {
                    self.backend()?.write_u64(dst, value)?;
                }
            }
        }
        Ok(())
    }

    /// Marks this point of the stream in `event`.
    ///
    /// # Errors
    /// [`Error::Driver`]; [`Error::InvalidArgument`] for an event of
    /// another platform.
    pub fn record(&self, event: &Event) -> Result<()> {
        self.backend()?.record(event.backend()?)
    }

    /// Makes later work of this stream wait until the work before `event` is complete.
    ///
    /// # Errors
    /// The same as [`Stream::record`].
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        self.backend()?.wait_event(event.backend()?)
    }

    /// Makes later work of this stream wait until all work that `other` has so far is complete. Does not block.
    ///
    /// # Errors
    /// The errors of [`Stream::record`], and those of making an event.
    pub fn wait_stream(&self, other: &Self) -> Result<()> {
        let event = other.gpu().event(false)?;
        other.record(&event)?;
        self.wait_event(&event)
    }

    /// Calls `put`, which puts work into this stream that belongs to `others` as well. The work comes after everything that
    /// these have so far, and before everything that they get later, also if `put` fails half way. Does not block.
    ///
    /// # Errors
    /// Those of `put`; else those of [`Stream::wait_stream`]. If `others` cannot be waited for, `put` is not called.
    ///
    /// # Examples
    /// ```
    /// # use mscclpp_gpu::{Error, Platform};
    /// let gpu = Platform::Sim.gpu(0)?;
    /// let (stream, other, buffer) = (gpu.stream()?, gpu.stream()?, gpu.allocate(8)?);
    /// // SAFETY: the buffer outlives the work, and the two writes are in order.
    /// stream.join(&[&other], || unsafe { stream.write_u64(buffer.ptr(), 1) })?;
    /// unsafe { other.write_u64(buffer.ptr(), 2)? };
    /// other.synchronize()?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn join<T, E: From<Error>>(
        &self,
        others: &[&Self],
        put: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        others.iter().try_for_each(|other| self.wait_stream(other))?;
        let done = put();
        // One that cannot be ordered does not keep the rest from it.
        let ordered = others.iter().map(|other| other.wait_stream(self)).fold(Ok(()), Result::and);
        let done = done?;
        ordered?;
        Ok(done)
    }
}

fn is_word(dst: DevicePtr) -> Result<()> {
    match dst.0.is_multiple_of(8) {
        true => Ok(()),
        false => Err(Error::invalid(format!("write_u64: {dst:?} is no multiple of 8"))),
    }
}

impl Gpu {
    /// Makes a stream that does not synchronise with the default stream.
    ///
    /// # Errors
    /// [`Error::Driver`] or [`Error::System`].
    pub fn stream(&self) -> Result<Stream> {
        Ok(Stream::new(self.clone(), self.backend()?.create_stream()?))
    }

    /// The default stream of the device. On CUDA this is the legacy default stream. On simulated devices it is a stream like any
    /// other, and does not synchronise with other streams.
    ///
    /// # Errors
    /// [`Error::Driver`] or [`Error::System`].
    pub fn default_stream(&self) -> Result<Stream> {
        Ok(Stream::new(self.clone(), self.backend()?.default_stream()?))
    }
}

mscclpp_os::debug_fields!(Stream, |this| gpu: this.gpu.to_string(), raw: this.raw());
