//! Page-locked host memory, kept for reuse.
//!
//! Freeing it waits until every kernel that runs is complete, and holds off launches meanwhile: freeing it while a kernel
//! waits for one that is still to be launched never ends. So it is not freed, but kept until it is wanted again or the
//! process ends. There is as much of it as was in use at once, rounded up.

use mscclpp_gpu_sys::cuda::{MEMHOSTALLOC_DEVICEMAP, MEMHOSTALLOC_PORTABLE};
use parking_lot::Mutex;

use super::{
    device::Device,
    failure::{check, log_failure},
};
use crate::{DevicePtr, Result, backend::MemoryBackend};

/// Sizes are multiples of this, so that small ones can take each other's place.
const GRANULARITY: u64 = 4096;

/// What is not in use. Lives as long as the process.
#[derive(Default)]
pub(super) struct PinnedSpares {
    blocks: Mutex<Vec<Block>>,
}

/// Page-locked memory, mapped into the device.
struct Block {
    host: *mut u8,
    address: u64,
    len: u64,
}

// SAFETY: the block is owned by the one value that holds it; the memory is only reached through atomics while it is in
// use, and by one thread while it is not.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

/// A block in use, which goes back to the spares when this is dropped.
struct Pinned {
    device: &'static Device,
    block: Option<Block>,
}

/// `bytes` zeroed bytes, or some more.
pub(super) fn allocate(device: &'static Device, bytes: u64) -> Result<Box<dyn MemoryBackend>> {
    let len = bytes.checked_next_multiple_of(GRANULARITY).unwrap_or(bytes);
    let block = match device.pinned_spares().take(len) {
        Some(block) => block,
        None => Block::create(device, len)?,
    };
    // SAFETY: `block.len` bytes that nobody else holds.
    unsafe { block.host.write_bytes(0, block.len as usize) };
    Ok(Box::new(Pinned { device, block: Some(block) }))
}

impl PinnedSpares {
    /// The smallest that fits, unless it is more than twice what is wanted.
    fn take(&self, len: u64) -> Option<Block> {
        let mut blocks = self.blocks.lock();
        let fitting = blocks.iter().enumerate().filter(|(_, block)| (len..=2 * len).contains(&block.len));
        let index = fitting.min_by_key(|(_, block)| block.len).map(|(index, _)| index)?;
        Some(blocks.swap_remove(index))
    }
}

impl Block {
    fn create(device: &'static Device, len: u64) -> Result<Self> {
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
        Ok(Self { host: host.cast(), address, len })
    }
}

impl MemoryBackend for Pinned {
    fn ptr(&self) -> DevicePtr {
        DevicePtr(self.block.as_ref().map_or(0, |block| block.address))
    }

    fn host_ptr(&self) -> *mut u8 {
        self.block.as_ref().map_or(std::ptr::null_mut(), |block| block.host)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.device.pinned_spares().blocks.lock().extend(self.block.take());
    }
}
