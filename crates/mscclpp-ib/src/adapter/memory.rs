//! Memory that an adapter may read or write.

use std::{os::fd::AsRawFd, ptr::NonNull, sync::Arc};

use mscclpp_core::MemoryRegion;
use mscclpp_gpu::Platform;
use mscclpp_verbs_sys as sys;

use super::{Adapter, last_errno};
use crate::error::{Error, Result};

/// What an adapter may do with the memory, and in which order its writes arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// This side's adapter reads it.
    Source,
    /// The peer's adapter writes data. Data may overtake other data on the way (relaxed ordering).
    Relaxed,
    /// The peer's adapter writes words or adds to them. That never overtakes anything before it.
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

// SAFETY: its keys only are read; the library registers and deregisters from any thread.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

impl Mr {
    /// Registers a region, which must outlive this.
    pub(crate) fn of_region(adapter: &Arc<Adapter>, region: &MemoryRegion, access: Access) -> Result<Self> {
        let on_gpu = region.gpu().filter(|gpu| gpu.platform() != Platform::Host);
        let Some(gpu) = on_gpu else {
            // SAFETY: the region is memory of this process as long as it lives; the caller sees to that.
            return unsafe { Self::of_host(adapter, region.ptr().0, region.len(), access) };
        };
        let mut attempts = Vec::new();
        if let Some(register) = adapter.verbs.reg_dmabuf_mr {
            // SAFETY: the region is live memory of the GPU.
            match unsafe { gpu.export_dma_buf(region.ptr(), region.len()) } {
                Ok(buf) => {
                    // SAFETY: the descriptor is open during the call, and the kernel keeps what it needs of it.
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
        // SAFETY: as above; the kernel's peer-memory module takes a GPU's address for what it is.
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
    /// The range must be memory of this process until this is dropped, with what `access` allows done to it.
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
    /// As [`Mr::of_host`], or a GPU's memory.
    unsafe fn register(adapter: &Arc<Adapter>, address: u64, len: u64, access: Access) -> Result<Self, i32> {
        let (pd, start) = (adapter.pd.as_ptr(), std::ptr::with_exposed_provenance_mut(address as usize));
        let flags = access.flags();
        let mr = match adapter.verbs.reg_mr_iova2 {
            // SAFETY: the protection domain lives, and the range is as the caller promises.
            Some(register) => unsafe { register(pd, start, len as usize, address, flags) },
            // The older call does not know flags that an adapter may ignore.
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

    /// By which this side's work requests name it.
    pub(crate) fn lkey(&self) -> u32 {
        // SAFETY: it is registered as long as `self`.
        unsafe { self.mr.as_ref() }.lkey
    }

    /// By which a peer's work requests name it.
    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.mr.as_ref() }.rkey
    }
}

/// What the system says, and what to do about it.
fn reason(errno: i32) -> String {
    let hint = match errno {
        libc::ENOMEM => {
            " (is the limit of locked memory too low? see ulimit -l, LimitMEMLOCK of systemd, --ulimit memlock=-1 of docker)"
        }
        // What the kernel calls ENOTSUPP has no name outside.
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
        // SAFETY: registered once, given back once.
        let errno = unsafe { (self.adapter.verbs.dereg_mr)(self.mr.as_ptr()) };
        if errno != 0 {
            tracing::warn!(target: "mscclpp::conn", device = self.adapter.name(), errno, "ibv_dereg_mr failed");
        }
    }
}
