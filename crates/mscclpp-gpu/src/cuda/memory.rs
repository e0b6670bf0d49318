//! Device memory: made here, or mapped from another process.
//!
//! `allocate` makes a virtual-memory allocation with a shareable handle, if the device and its set-up allow that
//! (which is found out once, by making one). Otherwise it makes a plain allocation, which legacy IPC can share.

use mscclpp_gpu_sys::cuda::Driver;

use super::{
    Device,
    virtual_memory::{Mapping, Physical, Placement},
};
use crate::{
    DevicePtr, Error, Result,
    backend::MemoryBackend,
    driver::{api, failure::check, memory::Imported},
    memory::ExportHandle,
};

impl api::Memory<Self> for Driver {
    /// Allocates memory of `device` that holds at least `bytes` bytes, not yet zeroed.
    fn allocate(device: &'static Device, bytes: u64) -> Result<Box<dyn MemoryBackend>> {
        let driver = device.driver();
        let _entered = device.context.enter()?;
        match &device.extra.placement {
            Placement::Virtual { prop, granularity } => {
                let size = bytes.checked_next_multiple_of(*granularity).ok_or_else(|| {
                    Error::system(format!("allocating {bytes} bytes"), "more than can be addressed")
                })?;
                let physical = Physical::create(driver, size as usize, prop)?;
                Ok(Box::new(Mapping::new(device, &physical, size)?))
            }
            Placement::Plain => {
                let mut address = 0;
                // SAFETY: `address` is valid for the write.
                let result = unsafe { (driver.mem_alloc)(&raw mut address, bytes as usize) };
                check(driver, result, format!("cuMemAlloc({bytes} bytes)"))?;
                Ok(Box::new(Plain { device, address }))
            }
        }
    }

    /// Maps memory that another process exported. The same legacy handle must not be opened twice: the caller keeps one
    /// mapping per allocation.
    fn import(device: &'static Device, handle: &ExportHandle, size: u64) -> Result<Box<dyn MemoryBackend>> {
        let driver = device.driver();
        let _entered = device.context.enter()?;
        if let ExportHandle::IpcHandle(bytes) = handle {
            return Ok(Box::new(Imported::open(device, *bytes, size)?));
        }
        let physical = Physical::import(driver, handle)?;
        if let Placement::Virtual { granularity, .. } = &device.extra.placement
            && (size == 0 || !size.is_multiple_of(*granularity))
        {
            return Err(Error::invalid(format!(
                "an imported allocation of {size} bytes is no multiple of the granularity, {granularity} bytes"
            )));
        }
        Ok(Box::new(Mapping::new(device, &physical, size)?))
    }
}

/// A plain allocation.
struct Plain {
    device: &'static Device,
    address: u64,
}

impl MemoryBackend for Plain {
    fn ptr(&self) -> DevicePtr {
        DevicePtr(self.address)
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        // SAFETY: made by `cuMemAlloc`, freed once.
        self.device.context.take_down(|driver| ("cuMemFree", unsafe { (driver.mem_free)(self.address) }));
    }
}
