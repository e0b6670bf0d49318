//! Makes a device the calling thread's for one call, and then restores what the thread had. On CUDA that is the device's
//! primary context; on HIP, the number of the device.

use std::{ffi::c_int, marker::PhantomData};

use mscclpp_gpu_sys::{CAPTURE_MODE_RELAXED, Functions};

use super::{
    api::Api,
    failure::{check, log_error, log_failure},
};
use crate::Result;

/// A device, as a thread may have it.
pub(crate) struct Context<D: Api> {
    pub(crate) driver: &'static D,
    pub(crate) functions: &'static Functions<D>,
    /// The driver's handle of the device.
    pub(crate) device: c_int,
    raw: D::Context,
}

// SAFETY: the driver's functions may be called from any thread with any context; `raw` is never dereferenced here.
unsafe impl<D: Api> Send for Context<D> {}
// SAFETY: as above; nothing in it changes.
unsafe impl<D: Api> Sync for Context<D> {}

impl<D: Api> Context<D> {
    pub(crate) fn retain(driver: &'static D, device: c_int) -> Result<Self> {
        Ok(Self { driver, functions: driver.functions(), device, raw: driver.retain(device)? })
    }

    pub(crate) fn raw(&self) -> D::Context {
        self.raw
    }

    /// Makes it the thread's for good.
    pub(crate) fn set_current(&self) -> Result<()> {
        let set = &self.functions.set_current;
        // SAFETY: a context that is retained.
        check(self.driver, unsafe { (set.1)(self.raw) }, set.0)
    }

    /// Makes it the thread's until the guard is dropped. For submissions, which may be part of a capture.
    pub(crate) fn bind(&self) -> Result<Bound<'_, D>> {
        let get = &self.functions.get_current;
        let mut current = D::NO_CONTEXT;
        // SAFETY: `current` is valid for the write.
        check(self.driver, unsafe { (get.1)(&raw mut current) }, get.0)?;
        let previous = if current == self.raw {
            None
        } else {
            self.set_current()?;
            // A thread that had none keeps this one.
            (current != D::NO_CONTEXT).then_some(current)
        };
        Ok(Bound { context: self, previous, _this_thread: PhantomData })
    }

    /// Binds the context as [`Context::bind`] does, and relaxes the thread's capture mode: for calls that a capture in
    /// progress, of this thread or another, would forbid or be broken by.
    pub(crate) fn enter(&self) -> Result<Relaxed<'_, D>> {
        let bound = self.bind()?;
        Ok(Relaxed { mode: self.relax_capture()?, bound })
    }

    /// Relaxes the calling thread's capture mode for good, and gives the mode that was.
    pub(crate) fn relax_capture(&self) -> Result<u32> {
        let exchange = &self.functions.thread_exchange_stream_capture_mode;
        let mut mode = CAPTURE_MODE_RELAXED;
        // SAFETY: `mode` is valid for reading and for the write of the mode that was.
        check(self.driver, unsafe { (exchange.1)(&raw mut mode) }, exchange.0)?;
        Ok(mode)
    }

    /// Makes one call inside [`Context::enter`]. It gives the name of the function, and its result.
    pub(crate) fn run(&self, call: impl FnOnce(&'static D) -> (&'static str, D::Code)) -> Result<()> {
        let _entered = self.enter()?;
        let (operation, result) = call(self.driver);
        check(self.driver, result, operation)
    }

    /// Runs a call as [`Context::run`] does, in a `drop`: failures are logged.
    pub(crate) fn take_down(&self, call: impl FnOnce(&'static D) -> (&'static str, D::Code)) {
        if let Err(error) = self.run(call) {
            log_error::<D>(&error);
        }
    }
}

impl<D: Api> Drop for Context<D> {
    fn drop(&mut self) {
        self.driver.release(self.device);
    }
}

/// The device is this thread's.
#[must_use]
pub(crate) struct Bound<'a, D: Api> {
    context: &'a Context<D>,
    previous: Option<D::Context>,
    _this_thread: PhantomData<*mut ()>,
}

impl<D: Api> Drop for Bound<'_, D> {
    fn drop(&mut self) {
        if let Some(previous) = self.previous {
            let set = &self.context.functions.set_current;
            // SAFETY: it was the thread's when the guard was made.
            let result = unsafe { (set.1)(previous) };
            log_failure(self.context.driver, result, format_args!("{} (putting back what was)", set.0));
        }
    }
}

/// The device is this thread's, and the thread's capture mode relaxed.
#[must_use]
pub(crate) struct Relaxed<'a, D: Api> {
    mode: u32,
    bound: Bound<'a, D>,
}

impl<D: Api> Drop for Relaxed<'_, D> {
    fn drop(&mut self) {
        let context = self.bound.context;
        let exchange = &context.functions.thread_exchange_stream_capture_mode;
        // SAFETY: `mode` is what the driver gave; it is valid for reading and for the write.
        log_failure(context.driver, unsafe { (exchange.1)(&raw mut self.mode) }, exchange.0);
    }
}
