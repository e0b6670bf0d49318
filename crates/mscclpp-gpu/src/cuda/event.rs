use std::{any::Any, sync::Arc};

use mscclpp_gpu_sys::cuda::{CUevent, CUevent_flags, CuResult};

use super::{
    device::Device,
    failure::{check, failure, log_failure},
};
use crate::{Error, Result, backend::EventBackend};

pub(super) struct CudaEvent {
    device: &'static Device,
    raw: CUevent,
}

// SAFETY: the driver's functions may be called with an event from any thread; `raw` is never dereferenced here.
unsafe impl Send for CudaEvent {}
// SAFETY: as above.
unsafe impl Sync for CudaEvent {}

impl CudaEvent {
    pub(super) fn create(device: &'static Device, with_timing: bool) -> Result<Self> {
        let flags = if with_timing {
            CUevent_flags::CU_EVENT_DEFAULT
        } else {
            CUevent_flags::CU_EVENT_DISABLE_TIMING
        };
        let _entered = device.context().enter()?;
        let driver = device.driver();
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is valid for the write; the device's context is current.
        check(driver, unsafe { (driver.event_create)(&raw mut raw, flags as u32) }, "cuEventCreate")?;
        Ok(Self { device, raw })
    }

    /// The event behind the trait, unless it is one of another platform.
    pub(super) fn of(event: &dyn EventBackend) -> Result<&Self> {
        (event as &dyn Any)
            .downcast_ref()
            .ok_or_else(|| Error::InvalidArgument("the event is one of another platform".to_owned()))
    }

    pub(super) fn raw(&self) -> CUevent {
        self.raw
    }
}

impl EventBackend for CudaEvent {
    fn query(&self) -> Result<bool> {
        let _entered = self.device.context().enter()?;
        let driver = self.device.driver();
        // SAFETY: `raw` lives as long as `self`.
        match unsafe { (driver.event_query)(self.raw) } {
            CuResult::SUCCESS => Ok(true),
            CuResult::NOT_READY => Ok(false),
            result => Err(failure(driver, result, "cuEventQuery")),
        }
    }

    fn elapsed_ms(&self, start: &dyn EventBackend) -> Result<f32> {
        let start = Self::of(start)?;
        let _entered = self.device.context().enter()?;
        let driver = self.device.driver();
        let mut elapsed = 0.0;
        // SAFETY: both events live; `elapsed` is valid for the write.
        let result = unsafe { (driver.event_elapsed_time)(&raw mut elapsed, start.raw, self.raw) };
        check(
            driver,
            result,
            "cuEventElapsedTime (both events must be recorded, complete and made with timing)",
        )?;
        Ok(elapsed)
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        let Some(_entered) = self.device.context().enter_to_drop() else { return };
        let driver = self.device.driver();
        // SAFETY: made by `create`, destroyed once; the driver frees it when its work is complete.
        log_failure(driver, unsafe { (driver.event_destroy)(self.raw) }, "cuEventDestroy");
    }
}

/// Both traits of one platform are found behind an `Arc` in the same way.
pub(super) fn event_of(event: &Arc<dyn EventBackend>) -> Result<&CudaEvent> {
    CudaEvent::of(&**event)
}
