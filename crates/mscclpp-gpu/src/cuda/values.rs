//! Value writes of streams. A device that has none gets each value by a copy from a slot of page-locked memory, which is
//! not used again before its copy is complete.

use std::sync::atomic::{AtomicU64, Ordering};

use mscclpp_gpu_sys::cuda::{
    CAN_USE_64_BIT_STREAM_MEM_OPS, CUdevice, CUdeviceptr, CUstream, CUstreamBatchMemOpParams,
    CUstreamBatchMemOpType, CUstreamWriteValue_flags, CuResult, Driver,
};
use parking_lot::Mutex;

use super::Device;
use crate::{
    DevicePtr, Error, Result,
    backend::{DeviceBackend, EventBackend, MemoryBackend, StreamBackend},
    driver::{DriverStream, api::Values, device::attribute, event::Event, stream::Stream},
};

/// `cuStreamWriteValue64`
type WriteValue = unsafe extern "C" fn(CUstream, CUdeviceptr, u64, u32) -> CuResult;

/// `cuStreamBatchMemOp`
type BatchMemOp = unsafe extern "C" fn(CUstream, u32, *mut CUstreamBatchMemOpParams, u32) -> CuResult;

/// The ways in which a device writes values.
pub(super) struct ValueWrites {
    /// The driver's value writes, unless the device has none.
    pub(super) write: Option<WriteValue>,
    /// The driver's write of several values at once.
    batch: Option<BatchMemOp>,
    /// The slots, as many as were ever needed at once.
    slots: Mutex<Vec<Slot>>,
}

struct Slot {
    memory: Box<dyn MemoryBackend>,
    /// The event after the copy.
    copied: Event<Driver>,
}

/// Value writes with a barrier before them: all earlier writes of the stream are visible before the value is.
const WITH_BARRIER: u32 = CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32;

impl Values<Self> for Driver {
    unsafe fn write_u64(stream: &Stream<Driver>, dst: DevicePtr, value: u64) -> Result<()> {
        if let Some(write) = stream.device.extra.value_writes.write {
            // SAFETY: the caller promises the 8 bytes until the write is complete.
            return stream.submit(|_| unsafe {
                ("cuStreamWriteValue64", write(stream.handle(), dst.0, value, WITH_BARRIER))
            });
        }
        if stream.is_capturing()? {
            return Err(Error::invalid(format!(
                "{} has no stream value writes, and what stands in for them cannot be captured",
                stream.device
            )));
        }
        // SAFETY: the caller's promise.
        unsafe { stream.device.extra.value_writes.write_by_copy(stream, dst, value) }
    }

    unsafe fn write_two_at_once(stream: &Stream<Driver>, values: [(DevicePtr, u64); 2]) -> Result<bool> {
        let Some(batch) = stream.device.extra.value_writes.batch else { return Ok(false) };
        let mut writes = values.map(|(dst, value)| {
            // The driver looks at all of an element, so what a write does not use is zero.
            let mut write = CUstreamBatchMemOpParams { pad: [0; 6] };
            write.writeValue.operation = CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_64;
            write.writeValue.address = dst.0;
            write.writeValue.__bindgen_anon_1.value64 = value;
            write.writeValue.flags = WITH_BARRIER;
            write
        });
        stream.submit(|_| {
            // SAFETY: the caller promises the words until the writes are complete; the driver copies the elements.
            ("cuStreamBatchMemOp", unsafe { batch(stream.handle(), 2, writes.as_mut_ptr(), 0) })
        })?;
        Ok(true)
    }
}

impl ValueWrites {
    pub(super) fn of(driver: &Driver, device: CUdevice) -> Self {
        let can = attribute(driver, device, CAN_USE_64_BIT_STREAM_MEM_OPS).is_ok_and(|can| can != 0);
        Self {
            write: driver.stream_write_value64.filter(|_| can),
            batch: driver.stream_batch_mem_op.filter(|_| can),
            slots: Mutex::default(),
        }
    }

    /// Stores `value` at `dst` after all earlier work of `stream`, which is not capturing.
    ///
    /// # Safety
    /// `dst` is valid for 8 bytes until the copy is complete.
    unsafe fn write_by_copy(&self, stream: &Stream<Driver>, dst: DevicePtr, value: u64) -> Result<()> {
        // The slot is taken out, so that no other thread finds it free between the query and the record.
        let slot = self.take_free(stream.device)?;
        // SAFETY: 8 aligned bytes of page-locked memory that only this thread uses now. The store is seen by the copy, as
        // submitting orders earlier writes of the host before the work.
        unsafe { AtomicU64::from_ptr(slot.memory.host_ptr().cast()) }.store(value, Ordering::Release);
        // SAFETY: the caller promises `dst`; the slot stays until the event behind the copy is complete.
        let copied = unsafe { stream.copy(dst, slot.memory.ptr(), 8) };
        let recorded = copied.and_then(|()| stream.record_event(&slot.copied));
        // The slot is put back even after a failure: freeing page-locked memory could wait for the device.
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
        Ok(Slot { memory: device.allocate_pinned(8)?, copied: Event::create(device, false)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Platform;

    #[test]
    fn values_written_by_copies_arrive_in_the_order_of_the_stream() {
        let Ok(gpu) = Platform::Cuda.gpu(0) else {
            println!("not tested, as there is no CUDA device");
            return;
        };
        let (word, stream) = (gpu.allocate(8).unwrap(), gpu.stream().unwrap());
        let queue = Stream::<Driver>::of(&**stream.backend().unwrap()).unwrap();
        for value in 1..=1000 {
            // SAFETY: 8 bytes of memory that outlives the stream's work; the stream is not capturing.
            unsafe { queue.device.extra.value_writes.write_by_copy(queue, word.ptr(), value).unwrap() };
        }
        stream.synchronize().unwrap();
        let mut last = [0u64];
        word.read_params(0, &mut last).unwrap();
        assert_eq!(last, [1000]);
    }
}
