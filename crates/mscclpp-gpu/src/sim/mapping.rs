use std::{ffi::c_void, os::fd::BorrowedFd, ptr};

use parking_lot::Mutex;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use super::{
    forked, races,
    ranges::{AccessibleRange, Whose},
};
use crate::{DevicePtr, Error, ExportHandle, Result, backend::MemoryBackend};

/// A readable and writable mapping with a guard after it, unmapped when dropped.
///
/// Kernels may touch its bytes and none of the rest of its last page (`ranges`). The guard is as large as the memory, and
/// at least [`GUARD`]: no access is possible there, so an offset or an index that is twice too large meets no other
/// memory.
pub(super) struct Mapping {
    start: *mut c_void,
    /// The size of the reserved addresses, with the guard.
    reserved: usize,
    /// The size, and whose memory it is.
    extent: (u64, Whose),
    /// The entry by which kernels may touch the memory, until it is dropped. None while the memory is suspended.
    accessible: Mutex<Option<AccessibleRange>>,
}

/// The least size of a guard: a multiple of every size of pages.
const GUARD: usize = 64 << 10;

// SAFETY: it is an address range of the process, the same for every thread; it hands out no reference to what is in it.
unsafe impl Send for Mapping {}
// SAFETY: the same as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` bytes of `fd`, shared with all processes that map them.
    pub(super) fn shared(fd: BorrowedFd<'_>, bytes: usize, whose: Whose) -> Result<Self> {
        forked::keep_out_children();
        mscclpp_os::raise_descriptors();
        // SAFETY: the addresses are those of a new reservation, which nobody uses yet.
        Self::new(bytes, whose, |start, len| unsafe {
            mmap(start, len, READ_WRITE, MapFlags::SHARED | MapFlags::FIXED, fd, 0)
        })
    }

    /// Maps `bytes` zeroed bytes of this process alone.
    pub(super) fn private(bytes: usize) -> Result<Self> {
        // SAFETY: the same as above.
        Self::new(bytes, Whose::Ours, |start, len| unsafe {
            mmap_anonymous(start, len, READ_WRITE, MapFlags::PRIVATE | MapFlags::FIXED)
        })
    }

    /// Reserves addresses, lets `map` put memory at the first `len` of them, and lets kernels touch it.
    fn new(
        bytes: usize,
        whose: Whose,
        map: impl FnOnce(*mut c_void, usize) -> rustix::io::Result<*mut c_void>,
    ) -> Result<Self> {
        let failed = |e| Error::system(format!("mmap of {bytes} bytes"), e);
        let len = bytes.checked_next_multiple_of(rustix::param::page_size());
        let reserved = len.and_then(|len| len.checked_add(len.max(GUARD)));
        let (len, reserved) = len.zip(reserved).ok_or_else(|| failed(rustix::io::Errno::NOMEM))?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), reserved, ProtFlags::empty(), flags) };
        let extent = (bytes as u64, whose);
        let mapping = Self { start: start.map_err(failed)?, reserved, extent, accessible: Mutex::default() };
        map(mapping.start, len).map_err(failed)?;
        mapping.let_access();
        Ok(mapping)
    }

    /// Lets kernels touch the memory.
    fn let_access(&self) {
        let (bytes, whose) = self.extent;
        let range = || AccessibleRange::new(self.start.addr(), bytes, self.reserved as u64, whose);
        self.accessible.lock().get_or_insert_with(range);
    }
}

impl MemoryBackend for Mapping {
    fn ptr(&self) -> DevicePtr {
        DevicePtr::from_ptr(self.start)
    }

    fn host_ptr(&self) -> *mut u8 {
        self.start.cast()
    }

    fn can_suspend(&self) -> bool {
        true
    }

    /// Keeps kernels from the memory. Its pages are its owner's to give back.
    unsafe fn suspend(&self) -> Result<()> {
        *self.accessible.lock() = None;
        Ok(())
    }

    fn resume(&self, _handle: Option<&ExportHandle>) -> Result<()> {
        self.let_access();
        Ok(())
    }
}

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

impl Drop for Mapping {
    fn drop(&mut self) {
        // This comes first: the address may be given to other code as soon as it is unmapped.
        *self.accessible.get_mut() = None;
        if races::is_on() {
            return races::retire(self.start.addr()..self.start.addr() + self.reserved);
        }
        // SAFETY: made by `mmap` with this length and unmapped nowhere else. That nobody uses it any more is the
        // promise of everything unsafe that was done with its address.
        if let Err(error) = unsafe { munmap(self.start, self.reserved) } {
            tracing::warn!(
                target: "mscclpp::gpu", address = ?self.start, len = self.reserved, %error,
                "munmap failed; the memory is leaked"
            );
        }
    }
}
