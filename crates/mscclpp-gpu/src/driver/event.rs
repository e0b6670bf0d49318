use std::{any::Any, ffi::c_void};

use mscclpp_gpu_sys::{Code, EVENT_DEFAULT, EVENT_DISABLE_TIMING, Entry};

use super::{
    api::{Api, Handle},
    device::Device,
    failure::check,
};
use crate::{Error, Result, backend::EventBackend};

pub(crate) struct Event<D: Api> {
    device: &'static Device<D>,
    raw: Handle<D::Event>,
    owned: bool,
}

impl<D: Api> Event<D> {
    pub(crate) fn create(device: &'static Device<D>, with_timing: bool) -> Result<Self> {
        let flags = if with_timing { EVENT_DEFAULT } else { EVENT_DISABLE_TIMING };
        let create = device.functions().event_create;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is valid for the write; the device is the thread's.
        device.context.run(|_| create.call(|create| unsafe { create(&raw mut raw, flags) }))?;
        Ok(Self { device, raw: Handle(raw), owned: true })
    }

    /// Somebody's event.
    ///
    /// # Safety
    /// `raw` is a live event of the device, and stays so as long as the value is used.
    pub(super) unsafe fn of_others(device: &'static Device<D>, raw: *mut c_void) -> Self {
        Self { device, raw: Handle(raw.cast()), owned: false }
    }

    pub(super) fn handle(&self) -> *mut D::Event {
        self.raw.0
    }
}

/// The event behind the trait, unless it is one of another platform.
pub(super) fn event_of<D: Api>(event: &dyn EventBackend) -> Result<&Event<D>> {
    (event as &dyn Any).downcast_ref().ok_or_else(|| Error::invalid("the event is one of another platform"))
}

impl<D: Api> EventBackend for Event<D> {
    fn query(&self) -> Result<bool> {
        let _entered = self.device.context.enter()?;
        let driver = self.device.driver();
        let Entry(name, query) = self.device.functions().event_query;
        // SAFETY: the event lives as long as `self`.
        let result = unsafe { query(self.handle()) };
        if result == D::Code::NOT_READY {
            driver.forget();
            return Ok(false);
        }
        check(driver, result, name).map(|()| true)
    }

    fn elapsed_ms(&self, start: &dyn EventBackend) -> Result<f32> {
        let start: &Self = event_of(start)?;
        let _entered = self.device.context.enter()?;
        let Entry(name, elapsed_time) = self.device.functions().event_elapsed_time;
        let mut elapsed = 0.0;
        // SAFETY: both events live; `elapsed` is valid for the write.
        let result = unsafe { elapsed_time(&raw mut elapsed, start.handle(), self.handle()) };
        let advice = "both events must be recorded, complete and made with timing";
        check(self.device.driver(), result, format_args!("{name} ({advice})"))?;
        Ok(elapsed)
    }
}

impl<D: Api> Drop for Event<D> {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        let destroy = self.device.functions().event_destroy;
        // SAFETY: made by `create`, destroyed once; the driver frees it when its work is complete.
        self.device.context.take_down(|_| destroy.call(|destroy| unsafe { destroy(self.handle()) }));
    }
}
