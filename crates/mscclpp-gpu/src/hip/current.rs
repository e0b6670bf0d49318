//! Makes a device the calling thread's device for one call, and then restores the previous one.

use std::{ffi::c_int, marker::PhantomData};

use mscclpp_gpu_sys::hip::{CAPTURE_MODE_RELAXED, Hip};

use super::failure::{check, log_error, log_failure};
use crate::Result;

/// A device as HIP knows it.
#[derive(Clone, Copy)]
pub(super) struct Ordinal {
    pub(super) hip: &'static Hip,
    pub(super) number: c_int,
}

impl Ordinal {
    /// Makes it the calling thread's device for good.
    pub(super) fn set_current(&self) -> Result<()> {
        // SAFETY: it takes a number, and refuses wrong ones.
        check(self.hip, unsafe { (self.hip.set_device)(self.number) }, "hipSetDevice")
    }

    /// Makes it the calling thread's device until the guard is dropped. For submissions, which may be part of a capture.
    pub(super) fn bind(&self) -> Result<Bound> {
        let hip = self.hip;
        let mut current = 0;
        // SAFETY: `current` is valid for the write.
        check(hip, unsafe { (hip.get_device)(&raw mut current) }, "hipGetDevice")?;
        let previous = (current != self.number).then_some(current);
        if previous.is_some() {
            self.set_current()?;
        }
        Ok(Bound { hip, previous, _this_thread: PhantomData })
    }

    /// As [`Ordinal::bind`], and relaxes the thread's capture mode: for calls that a capture in progress, of this thread or
    /// another, would forbid or be broken by.
    pub(super) fn enter(&self) -> Result<Relaxed> {
        let bound = self.bind()?;
        Ok(Relaxed { mode: self.relax_capture()?, bound })
    }

    /// Relaxes the calling thread's capture mode for good, and gives the mode that was.
    pub(super) fn relax_capture(&self) -> Result<u32> {
        let mut mode = CAPTURE_MODE_RELAXED;
        // SAFETY: `mode` is valid for reading and for the write of the mode that was.
        let result = unsafe { (self.hip.thread_exchange_stream_capture_mode)(&raw mut mode) };
        check(self.hip, result, "hipThreadExchangeStreamCaptureMode")?;
        Ok(mode)
    }

    /// As [`Ordinal::enter`], to take something down. `None` if that is not possible any more.
    pub(super) fn enter_to_drop(&self) -> Option<Relaxed> {
        self.enter().inspect_err(log_error).ok()
    }
}

/// The device is the thread's.
#[must_use]
pub(super) struct Bound {
    hip: &'static Hip,
    previous: Option<c_int>,
    _this_thread: PhantomData<*mut ()>,
}

impl Drop for Bound {
    fn drop(&mut self) {
        if let Some(previous) = self.previous {
            // SAFETY: it was the thread's device when the guard was made.
            let result = unsafe { (self.hip.set_device)(previous) };
            log_failure(self.hip, result, "hipSetDevice (putting back the device that was)");
        }
    }
}

/// The device is the thread's, and its capture mode relaxed.
#[must_use]
pub(super) struct Relaxed {
    mode: u32,
    bound: Bound,
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        let hip = self.bound.hip;
        // SAFETY: `mode` is what the runtime gave; it is valid for reading and for the write.
        let result = unsafe { (hip.thread_exchange_stream_capture_mode)(&raw mut self.mode) };
        log_failure(hip, result, "hipThreadExchangeStreamCaptureMode");
    }
}
