//! Writes eight-byte values on a device that has no stream value writes: each is copied from a slot of pinned memory,
//! which is not used again before its copy is complete.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::{device::Device, event::CudaEvent, pinned, stream::CudaStream};
use crate::{
    DevicePtr, Result,
    backend::{EventBackend, MemoryBackend, StreamBackend},
    driver::DriverStream,
};

/// As many slots as were ever needed at once.
pub(super) struct ValueSlots {
    slots: Mutex<Vec<Slot>>,
}

struct Slot {
    memory: Box<dyn MemoryBackend>,
    /// Recorded behind the copy.
    copied: CudaEvent,
}

impl Slot {
    fn new(device: &'static Device) -> Result<Self> {
        Ok(Self { memory: pinned::allocate(device, 8)?, copied: CudaEvent::create(device, false)? })
    }
}

impl ValueSlots {
    pub(super) const fn new() -> Self {
        Self { slots: Mutex::new(Vec::new()) }
    }

    /// Stores `value` at `dst` after all earlier work of `stream`, which is not capturing.
    ///
    /// # Safety
    /// `dst` is valid for 8 bytes until the copy is complete.
    pub(super) unsafe fn write(&self, stream: &CudaStream, dst: DevicePtr, value: u64) -> Result<()> {
        // Taken out, so that nobody else finds the slot free between the query and the record.
        let slot = self.take_free(stream.device())?;
        // SAFETY: 8 aligned bytes of pinned memory that only this thread uses now. The store is seen by the copy, as
        // submitting orders earlier writes of the host before the work.
        unsafe { AtomicU64::from_ptr(slot.memory.host_ptr().cast()) }.store(value, Ordering::Release);
        // SAFETY: the caller promises `dst`; the slot stays until the event behind the copy is complete.
        let copied = unsafe { stream.copy(dst, slot.memory.ptr(), 8) };
        let recorded = copied.and_then(|()| stream.record_event(&slot.copied));
        // Put back even after a failure: freeing pinned memory could wait for the device.
        self.slots.lock().push(slot);
        recorded
    }

    fn take_free(&self, device: &'static Device) -> Result<Slot> {
        let mut slots = self.slots.lock();
        for index in 0..slots.len() {
            if slots[index].copied.query()? {
                return Ok(slots.swap_remove(index));
            }
        }
        drop(slots);
        Slot::new(device)
    }
}
