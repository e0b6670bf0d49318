use std::{any::Any, sync::Arc};

use mscclpp_gpu_sys::hip::{EVENT_DEFAULT, EVENT_DISABLE_TIMING, Event, HipResult};

use super::{
    device::Device,
    failure::{check, failure, forget, log_failure},
};
use crate::{Error, Result, backend::EventBackend};

pub(super) struct HipEvent {
    device: &'static Device,
    raw: Event,
}

// SAFETY: HIP's functions may be called with an event from any thread; `raw` is never dereferenced here.
unsafe impl Send for HipEvent {}
// SAFETY: as above.
unsafe impl Sync for HipEvent {}

impl HipEvent {
    pub(super) fn create(device: &'static Device, with_timing: bool) -> Result<Self> {
        let flags = if with_timing { EVENT_DEFAULT } else { EVENT_DISABLE_TIMING };
        let _entered = device.ordinal().enter()?;
        let hip = device.hip();
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is valid for the write; the device is the thread's.
        let result = unsafe { (hip.event_create_with_flags)(&raw mut raw, flags) };
        check(hip, result, "hipEventCreateWithFlags")?;
        Ok(Self { device, raw })
    }

    /// The event behind the trait, unless it is one of another platform.
    pub(super) fn of(event: &dyn EventBackend) -> Result<&Self> {
        (event as &dyn Any)
            .downcast_ref()
            .ok_or_else(|| Error::InvalidArgument("the event is one of another platform".to_owned()))
    }

    pub(super) fn raw(&self) -> Event {
        self.raw
    }
}

impl EventBackend for HipEvent {
    fn query(&self) -> Result<bool> {
        let _entered = self.device.ordinal().enter()?;
        let hip = self.device.hip();
        // SAFETY: `raw` lives as long as `self`.
        match unsafe { (hip.event_query)(self.raw) } {
            HipResult::SUCCESS => Ok(true),
            HipResult::NOT_READY => {
                forget(hip);
                Ok(false)
            }
            result => Err(failure(hip, result, "hipEventQuery")),
        }
    }

    fn elapsed_ms(&self, start: &dyn EventBackend) -> Result<f32> {
        let start = Self::of(start)?;
        let _entered = self.device.ordinal().enter()?;
        let hip = self.device.hip();
        let mut elapsed = 0.0;
        // SAFETY: both events live; `elapsed` is valid for the write.
        let result = unsafe { (hip.event_elapsed_time)(&raw mut elapsed, start.raw, self.raw) };
        check(
            hip,
            result,
            "hipEventElapsedTime (both events must be recorded, complete and made with timing)",
        )?;
        Ok(elapsed)
    }
}

impl Drop for HipEvent {
    fn drop(&mut self) {
        let Some(_entered) = self.device.ordinal().enter_to_drop() else { return };
        let hip = self.device.hip();
        // SAFETY: made by `create`, destroyed once; the runtime frees it when its work is complete.
        log_failure(hip, unsafe { (hip.event_destroy)(self.raw) }, "hipEventDestroy");
    }
}

/// Both traits of one platform are found behind an `Arc` in the same way.
pub(super) fn event_of(event: &Arc<dyn EventBackend>) -> Result<&HipEvent> {
    HipEvent::of(&**event)
}
