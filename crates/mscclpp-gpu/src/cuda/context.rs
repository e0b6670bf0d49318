//! Makes a device's context current for one call, and then restores the previous one.

use std::marker::PhantomData;

use mscclpp_gpu_sys::cuda::{CUcontext, CUdevice, CUstreamCaptureMode, Driver};

use super::failure::{check, log_error, log_failure};
use crate::Result;

/// A retained primary context.
pub(super) struct PrimaryContext {
    pub(super) driver: &'static Driver,
    device: CUdevice,
    raw: CUcontext,
}

// SAFETY: the driver's functions may be called from any thread with any context; `raw` is never dereferenced here.
unsafe impl Send for PrimaryContext {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for PrimaryContext {}

impl PrimaryContext {
    pub(super) fn retain(driver: &'static Driver, device: CUdevice) -> Result<Self> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is valid for the write.
        let result = unsafe { (driver.device_primary_ctx_retain)(&raw mut raw, device) };
        check(driver, result, format!("cuDevicePrimaryCtxRetain(device {device})"))?;
        Ok(Self { driver, device, raw })
    }

    pub(super) fn raw(&self) -> CUcontext {
        self.raw
    }

    /// Makes it current in the calling thread for good.
    pub(super) fn set_current(&self) -> Result<()> {
        // SAFETY: the context is retained.
        check(self.driver, unsafe { (self.driver.ctx_set_current)(self.raw) }, "cuCtxSetCurrent")
    }

    /// Makes it current until the guard is dropped. For submissions, which may be part of a capture.
    pub(super) fn bind(&self) -> Result<Bound> {
        let driver = self.driver;
        let mut current = std::ptr::null_mut();
        // SAFETY: `current` is valid for the write.
        check(driver, unsafe { (driver.ctx_get_current)(&raw mut current) }, "cuCtxGetCurrent")?;
        let previous = if current == self.raw {
            None
        } else {
            self.set_current()?;
            (!current.is_null()).then_some(current)
        };
        Ok(Bound { driver, previous, _this_thread: PhantomData })
    }

    /// As [`PrimaryContext::bind`], and relaxes the thread's capture mode: for calls that a capture in progress, of
    /// this thread or another, would forbid or be broken by.
    pub(super) fn enter(&self) -> Result<Relaxed> {
        let bound = self.bind()?;
        Ok(Relaxed { mode: self.relax_capture()?, bound })
    }

    /// Relaxes the calling thread's capture mode for good, and gives the mode that was.
    pub(super) fn relax_capture(&self) -> Result<u32> {
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as u32;
        // SAFETY: `mode` is valid for reading and for the write of the mode that was.
        let result = unsafe { (self.driver.thread_exchange_stream_capture_mode)(&raw mut mode) };
        check(self.driver, result, "cuThreadExchangeStreamCaptureMode")?;
        Ok(mode)
    }

    /// As [`PrimaryContext::enter`], to take something down. `None` if that is not possible any more.
    pub(super) fn enter_to_drop(&self) -> Option<Relaxed> {
        match self.enter() {
            Ok(entered) => Some(entered),
            Err(error) => {
                log_error(&error);
                None
            }
        }
    }
}

impl Drop for PrimaryContext {
    fn drop(&mut self) {
        // SAFETY: retained once by `retain`; what was made in it is gone or was never made.
        let result = unsafe { (self.driver.device_primary_ctx_release)(self.device) };
        log_failure(self.driver, result, "cuDevicePrimaryCtxRelease");
    }
}

/// The context is current in this thread.
#[must_use]
pub(super) struct Bound {
    driver: &'static Driver,
    previous: Option<CUcontext>,
    _this_thread: PhantomData<*mut ()>,
}

impl Drop for Bound {
    fn drop(&mut self) {
        if let Some(previous) = self.previous {
            // SAFETY: it was current in this thread when the guard was made.
            let result = unsafe { (self.driver.ctx_set_current)(previous) };
            log_failure(self.driver, result, "cuCtxSetCurrent (putting back the context that was)");
        }
    }
}

/// The context is current in this thread, and its capture mode relaxed.
#[must_use]
pub(super) struct Relaxed {
    mode: u32,
    bound: Bound,
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        let driver = self.bound.driver;
        // SAFETY: `mode` is what the driver gave; it is valid for reading and for the write.
        let result = unsafe { (driver.thread_exchange_stream_capture_mode)(&raw mut self.mode) };
        log_failure(driver, result, "cuThreadExchangeStreamCaptureMode");
    }
}
