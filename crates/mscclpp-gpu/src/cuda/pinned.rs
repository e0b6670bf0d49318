use mscclpp_gpu_sys::cuda::{MEMHOSTALLOC_DEVICEMAP, MEMHOSTALLOC_PORTABLE};

use super::{
    device::Device,
    failure::{check, log_failure},
};
use crate::{
    Result,
    backend::MemoryBackend,
    driver::pinned::{self, Block},
};

/// `bytes` zeroed bytes of page-locked memory, or some more.
pub(super) fn allocate(device: &'static Device, bytes: u64) -> Result<Box<dyn MemoryBackend>> {
    pinned::allocate(device.pinned_spares(), bytes, |len| block(device, len))
}

/// Page-locked memory of `len` bytes, mapped into the device.
fn block(device: &'static Device, len: u64) -> Result<Block> {
    let driver = device.driver();
    let _entered = device.context().enter()?;
    let mut host = std::ptr::null_mut();
    let flags = MEMHOSTALLOC_PORTABLE | MEMHOSTALLOC_DEVICEMAP;
    // SAFETY: `host` is valid for the write.
    let result = unsafe { (driver.mem_host_alloc)(&raw mut host, len as usize, flags) };
    check(driver, result, format!("cuMemHostAlloc({len} bytes; `ulimit -l` limits locked memory)"))?;
    let mut address = 0;
    // SAFETY: `address` is valid for the write; `host` is page-locked memory that is mapped into the device.
    let result = unsafe { (driver.mem_host_get_device_pointer)(&raw mut address, host, 0) };
    if let Err(error) = check(driver, result, "cuMemHostGetDevicePointer") {
        // SAFETY: just made, freed once.
        log_failure(driver, unsafe { (driver.mem_free_host)(host) }, "cuMemFreeHost");
        return Err(error);
    }
    Ok(Block { host: host.cast(), address, len })
}
