use std::{ffi::c_void, os::fd::BorrowedFd, ptr};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use super::ranges::Known;
use crate::{DevicePtr, Error, Result};

/// A readable and writable mapping, unmapped when dropped.
pub(super) struct Mapping {
    start: *mut c_void,
    len: usize,
    /// Kernels may touch it until it goes.
    known: Option<Known>,
}

// SAFETY: it is an address range of the process, the same for every thread; it hands out no reference to what is in it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// The first `len` bytes of `fd`, shared with everyone who maps them.
    pub(super) fn shared(fd: BorrowedFd<'_>, len: usize) -> Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let start = unsafe {
            mmap(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, fd, 0)
        };
        Self::checked(start, len)
    }

    /// Zeroed memory of this process alone.
    pub(super) fn private(len: usize) -> Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let start = unsafe {
            mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        };
        Self::checked(start, len)
    }

    fn checked(start: rustix::io::Result<*mut c_void>, len: usize) -> Result<Self> {
        let start = start.map_err(|e| Error::system(format!("mmap of {len} bytes"), e))?;
        Ok(Self { start, len, known: Some(Known::new(start.addr(), len as u64)) })
    }

    pub(super) fn ptr(&self) -> DevicePtr {
        DevicePtr::from_ptr(self.start)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // First: the address may be given to somebody else as soon as it is unmapped.
        self.known = None;
        // SAFETY: made by `mmap` with this length and unmapped nowhere else. That nobody uses it any more is the
        // promise of everything unsafe that was done with its address.
        if let Err(error) = unsafe { munmap(self.start, self.len) } {
            tracing::warn!(
                target: "mscclpp::gpu", address = ?self.start, len = self.len, %error,
                "munmap failed; the memory is leaked"
            );
        }
    }
}
