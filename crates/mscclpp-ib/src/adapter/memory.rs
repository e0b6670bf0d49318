//! Memory that an adapter may read or write.

use std::{os::fd::AsRawFd, ptr::NonNull, sync::Arc};

use mscclpp_core::MemoryRegion;
use mscclpp_gpu::Platform;
use mscclpp_verbs_sys as sys;

use super::{Adapter, last_errno};
use crate::error::{Error, Result};

/// The accesses that an adapter may make to memory, and the order in which its writes arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// This side's adapter reads the memory.
    Source,
    /// The peer's adapter writes data. Data may overtake other data on the way (relaxed ordering).
    Relaxed,
    /// The peer's adapter writes words or adds to them. Such a write never overtakes an earlier one.
    Strict,
}

impl Access {
    fn flags(self) -> u32 {
        let peers = sys::IBV_ACCESS_LOCAL_WRITE | sys::IBV_ACCESS_REMOTE_WRITE;
        match self {
            Self::Source => 0,
            Self::Relaxed => peers | sys::IBV_ACCESS_RELAXED_ORDERING,
            Self::Strict => peers | sys::IBV_ACCESS_REMOTE_ATOMIC,
        }
    }
}

/// A range of memory registered with an adapter. Dropping this ends the registration; requests of a peer's adapter are
/// refused from then on.
pub(crate) struct Mr {
    mr: NonNull<sys::ibv_mr>,
    adapter: Arc<Adapter>,
}

// SAFETY: only the keys are read; the library registers and deregisters from any thread.
unsafe impl Send for Mr {}
// SAFETY: the same as for `Send`.
unsafe impl Sync for Mr {}

impl Mr {
    /// Registers a region. The region must outlive the registration.
    pub(crate) fn of_region(adapter: &Arc<Adapter>, region: &MemoryRegion, access: Access) -> Result<Self> {
        let on_gpu = region.gpu().filter(|gpu| gpu.platform() != Platform::Sim);
        let Some(gpu) = on_gpu else {
            // SAFETY: the region is memory of this process as long as it lives; the caller sees to that.
            return unsafe { Self::of_host(adapter, region.ptr().0, region.len(), access) };
        };
        let mut attempts = Vec::new();
        if let Some(register) = adapter.verbs.reg_dmabuf_mr {
            // SAFETY: the region is live memory of the GPU.
            match unsafe { gpu.export_dma_buf(region.ptr(), region.len()) } {
                Ok(buf) => {
                    // SAFETY: the descriptor is open during the call, and the kernel keeps its own reference to the
                    // buffer.
                    let mr = unsafe {
                        register(
                            adapter.pd.as_ptr(),
                            buf.offset,
                            region.len() as usize,
                            region.ptr().0,
                            buf.fd.as_raw_fd(),
                            access.flags() as i32,
                        )
                    };
                    match NonNull::new(mr) {
                        Some(mr) => return Ok(Self { mr, adapter: adapter.clone() }),
                        None => attempts.push(format!("by a dmabuf: {}", reason(last_errno()))),
                    }
                }
                Err(error) => attempts.push(format!("by a dmabuf: {error}")),
            }
        } else {
            let why = adapter.verbs.missing().iter().find(|missing| missing.symbol == "ibv_reg_dmabuf_mr");
            attempts.push(format!(
                "by a dmabuf: {}",
                why.map_or("no ibv_reg_dmabuf_mr".to_owned(), ToString::to_string)
            ));
        }
        // SAFETY: the region is live memory of the GPU, whose addresses the kernel's peer-memory module recognises.
        match unsafe { Self::register(adapter, region.ptr().0, region.len(), access) } {
            Ok(mr) => Ok(mr),
            Err(errno) => {
                attempts.push(format!(
                    "by its address, which needs the module nvidia_peermem: {}",
                    reason(errno)
                ));
                Err(Error::Register {
                    device: adapter.name().to_owned(),
                    bytes: region.len(),
                    memory: gpu.to_string(),
                    attempts,
                })
            }
        }
    }

    /// Registers memory of the host.
    ///
    /// # Safety
    /// The range must be memory of this process until this is dropped, and the accesses that `access` allows must be
    /// allowed to the adapter and the peer.
    pub(crate) unsafe fn of_host(
        adapter: &Arc<Adapter>,
        address: u64,
        len: u64,
        access: Access,
    ) -> Result<Self> {
        // SAFETY: the caller's promise.
        unsafe { Self::register(adapter, address, len, access) }.map_err(|errno| Error::Register {
            device: adapter.name().to_owned(),
            bytes: len,
            memory: "host memory".to_owned(),
            attempts: vec![reason(errno)],
        })
    }

    /// # Safety
    /// The same as [`Mr::of_host`], except that the range may also be a GPU's memory.
    unsafe fn register(adapter: &Arc<Adapter>, address: u64, len: u64, access: Access) -> Result<Self, i32> {
        let (pd, start) = (adapter.pd.as_ptr(), std::ptr::with_exposed_provenance_mut(address as usize));
        let flags = access.flags();
        let mr = match adapter.verbs.reg_mr_iova2 {
            // SAFETY: the protection domain lives, and the range is as the caller promises.
            Some(register) => unsafe { register(pd, start, len as usize, address, flags) },
            // The older call does not know the flags that an adapter may ignore.
            // SAFETY: as above.
            None => unsafe {
                (adapter.verbs.reg_mr)(
                    pd,
                    start,
                    len as usize,
                    (flags & !sys::IBV_ACCESS_OPTIONAL_RANGE) as i32,
                )
            },
        };
        match NonNull::new(mr) {
            Some(mr) => Ok(Self { mr, adapter: adapter.clone() }),
            None => Err(last_errno()),
        }
    }

    /// Returns the key by which this side's work requests name the memory.
    pub(crate) fn lkey(&self) -> u32 {
        // SAFETY: the memory is registered as long as `self` lives.
        unsafe { self.mr.as_ref() }.lkey
    }

    /// Returns the key by which a peer's work requests name the memory.
    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: the same as in `lkey`.
        unsafe { self.mr.as_ref() }.rkey
    }
}

/// Returns the system's error text with a hint about what to do.
fn reason(errno: i32) -> String {
    let hint = match errno {
        libc::ENOMEM => {
            " (is the limit of locked memory too low? see ulimit -l, LimitMEMLOCK of systemd, --ulimit memlock=-1 of docker)"
        }
        // The kernel's ENOTSUPP has no name outside the kernel.
        524 | libc::EOPNOTSUPP => {
            " (error 524 is ENOTSUPP: the adapter's driver or kernel does not support it)"
        }
        libc::EFAULT => " (no part of this process's memory that can be pinned)",
        _ => "",
    };
    format!("{}{hint}", std::io::Error::from_raw_os_error(errno))
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: the memory was registered once, and is deregistered once.
        let errno = unsafe { (self.adapter.verbs.dereg_mr)(self.mr.as_ptr()) };
        if errno != 0 {
            tracing::warn!(target: "mscclpp::conn", device = self.adapter.name(), errno, "ibv_dereg_mr failed");
        }
    }
}
