//! Page-locked host memory, kept for reuse.
//!
//! Freeing page-locked memory waits until every running kernel is complete, and holds off launches meanwhile. If a
//! kernel waits for another that is still to be launched, freeing never ends. So the memory is not freed, but kept
//! until it is needed again or the process ends. There is as much of it as was in use at once, rounded up.

use parking_lot::Mutex;

use crate::{DevicePtr, Result, backend::MemoryBackend};

/// Sizes are multiples of this, so that small ones can take each other's place.
const GRANULARITY: u64 = 4096;

/// The pinned memory that is not in use. It lives as long as the process.
#[derive(Default)]
pub(crate) struct PinnedSpares {
    blocks: Mutex<Vec<Block>>,
}

/// Page-locked memory, mapped into the device. It is never freed.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    pub(crate) host: *mut u8,
    /// The address for the device.
    pub(crate) address: u64,
    pub(crate) len: u64,
}

// SAFETY: the block is owned by the one value that holds it; the memory is only reached through atomics while it is in
// use, and by one thread while it is not.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

/// A block in use, which goes back to the spares when this is dropped.
struct Pinned {
    spares: &'static PinnedSpares,
    block: Block,
}

/// `bytes` zeroed bytes, or some more: a spare block, or one that `create` makes of so many bytes, all of them its own.
pub(crate) fn allocate(
    spares: &'static PinnedSpares,
    bytes: u64,
    create: impl FnOnce(u64) -> Result<Block>,
) -> Result<Box<dyn MemoryBackend>> {
    let len = bytes.checked_next_multiple_of(GRANULARITY).unwrap_or(bytes);
    let block = match spares.take(len) {
        Some(block) => block,
        None => create(len)?,
    };
    // SAFETY: `block.len` bytes that nobody else holds.
    unsafe { block.host.write_bytes(0, block.len as usize) };
    Ok(Box::new(Pinned { spares, block }))
}

impl PinnedSpares {
    /// The smallest that fits, unless it is more than twice what is wanted.
    fn take(&self, len: u64) -> Option<Block> {
        let mut blocks = self.blocks.lock();
        let fitting =
            blocks.iter().enumerate().filter(|(_, block)| (len..=len.saturating_mul(2)).contains(&block.len));
        let index = fitting.min_by_key(|(_, block)| block.len).map(|(index, _)| index)?;
        Some(blocks.swap_remove(index))
    }
}

impl MemoryBackend for Pinned {
    fn ptr(&self) -> DevicePtr {
        DevicePtr(self.block.address)
    }

    fn host_ptr(&self) -> *mut u8 {
        self.block.host
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.spares.blocks.lock().push(self.block);
    }
}
