//! Memory that NCCL has allocated, and that all ranks have registered as a symmetric window.

use std::{
    ffi::{c_int, c_void},
    ptr,
};

use super::{
    Comm,
    library::{Handle, OfComm, SYMMETRIC},
};
use crate::{data::Memory, prelude::*, watchdog::within};

/// A window, or the reason why NCCL has none here.
pub(crate) struct Windows<'a> {
    memory: std::result::Result<WindowMemory<'a>, String>,
}

pub(crate) struct WindowMemory<'a> {
    allocated: Allocated<'a>,
    window: Handle,
    /// The stream by which the host reads and writes the memory.
    stream: Stream,
}

impl<'a> Windows<'a> {
    /// Makes a window of `bytes` bytes on all ranks, which make the same call. If NCCL cannot make it on one, none has it.
    pub(crate) fn new(comm: &'a Comm<'a>, pair: &Pair, bytes: u64) -> Result<Self> {
        let functions =
            [c"ncclMemAlloc", c"ncclMemFree", c"ncclCommWindowRegister", c"ncclCommWindowDeregister"];
        if !functions.into_iter().all(|function| comm.library.has(function)) {
            let version = comm.library.version();
            return Ok(Self { memory: Err(format!("version {version} has no functions for them")) });
        }
        // Each step is made only if the one before has succeeded on all ranks, because the second waits for all.
        let allocated = agreed(pair, Allocated::new(comm, bytes))?;
        let memory = match allocated {
            Ok(allocated) => agreed(pair, WindowMemory::new(allocated, &pair.gpu))?,
            Err(reason) => Err(reason),
        };
        Ok(Self { memory })
    }

    pub(crate) fn memory(&self) -> Option<&WindowMemory<'a>> {
        self.memory.as_ref().ok()
    }

    /// A note that says whether there is a window, or why not.
    pub(crate) fn note(&self) -> String {
        match &self.memory {
            Ok(_) => "windows: NCCL with memory of ncclMemAlloc that is registered as a symmetric window"
                .to_owned(),
            Err(reason) => format!("NCCL is not measured with registered windows: {reason}"),
        }
    }
}

/// The value of this rank if all ranks have one; otherwise the reason of a rank that has none.
fn agreed<T>(pair: &Pair, ours: Result<T>) -> Result<std::result::Result<T, String>> {
    let all = pair.ranks.say(&ours.as_ref().err().map(ToString::to_string))?;
    let failed = all.into_iter().enumerate().find_map(|(rank, reason)| Some((rank, reason?)));
    Ok(match (ours, failed) {
        (Ok(ours), None) => Ok(ours),
        (_, Some((rank, reason))) => Err(format!("on rank {rank}, {reason}")),
        (Err(error), None) => Err(error.to_string()),
    })
}

/// Memory from `ncclMemAlloc`.
struct Allocated<'a> {
    comm: &'a Comm<'a>,
    base: Handle,
    bytes: u64,
}

impl<'a> Allocated<'a> {
    fn new(comm: &'a Comm<'a>, bytes: u64) -> Result<Self> {
        let mut base = ptr::null_mut();
        // SAFETY: the type is that of the header; the function writes one address; the device is the current one.
        let code = unsafe {
            let allocate: unsafe extern "C" fn(*mut Handle, usize) -> c_int =
                comm.library.function(c"ncclMemAlloc")?;
            within(comm.limit, "ncclMemAlloc", || allocate(&raw mut base, bytes as usize))
        };
        comm.library.check(c"ncclMemAlloc", code)?;
        Ok(Self { comm, base, bytes })
    }
}

impl Drop for Allocated<'_> {
    fn drop(&mut self) {
        // SAFETY: the type is that of the header. `ncclMemAlloc` allocated the memory, and it is no longer a window.
        unsafe {
            if let Ok(free) = self.comm.library.function::<OfComm>(c"ncclMemFree") {
                within(self.comm.limit, "ncclMemFree", || free(self.base));
            }
        }
    }
}

impl<'a> WindowMemory<'a> {
    fn new(allocated: Allocated<'a>, gpu: &Gpu) -> Result<Self> {
        let Allocated { comm, base, bytes } = allocated;
        let mut window = ptr::null_mut();
        let raw = comm.raw()?;
        // Nothing may fail behind the registration: the memory would be freed while it is a window.
        let stream = gpu.stream()?;
        // SAFETY: the type is that of the header; the memory is NCCL's own and has that size; the function writes one handle.
        let code = unsafe {
            let register: unsafe extern "C" fn(Handle, *mut c_void, usize, *mut Handle, c_int) -> c_int =
                comm.library.function(c"ncclCommWindowRegister")?;
            within(comm.limit, "ncclCommWindowRegister", || {
                register(raw, base, bytes as usize, &raw mut window, SYMMETRIC)
            })
        };
        comm.library.check(c"ncclCommWindowRegister", code)?;
        if window.is_null() {
            return Err("NCCL has no symmetric memory between these devices".into());
        }
        Ok(Self { allocated, window, stream })
    }

    pub(crate) fn ptr(&self) -> DevicePtr {
        DevicePtr(self.allocated.base as u64)
    }

    /// The address of `len` bytes at an offset.
    fn place(&self, offset: u64, len: u64) -> Result<DevicePtr> {
        let bytes = self.allocated.bytes;
        if offset.checked_add(len).is_none_or(|end| end > bytes) {
            return Err(format!("{len} bytes at {offset} of a window of {bytes} bytes").into());
        }
        Ok(self.ptr().add(offset))
    }
}

impl Memory for WindowMemory<'_> {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let (len, from) = (bytes.len() as u64, DevicePtr::from_ptr(bytes.as_ptr()));
        // SAFETY: both ranges have that length, and this waits for the copy.
        unsafe { self.stream.copy(self.place(offset, len)?, from, len)? };
        Ok(self.stream.synchronize()?)
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let (len, to) = (bytes.len() as u64, DevicePtr::from_ptr(bytes.as_mut_ptr()));
        // SAFETY: both ranges have that length, and this waits for the copy.
        unsafe { self.stream.copy(to, self.place(offset, len)?, len)? };
        Ok(self.stream.synchronize()?)
    }

    fn fill(&self, offset: u64, len: u64, value: u8) -> Result<()> {
        // SAFETY: the range has that length, and this waits for the fill.
        unsafe { self.stream.fill(self.place(offset, len)?, len, value)? };
        Ok(self.stream.synchronize()?)
    }
}

impl Drop for WindowMemory<'_> {
    fn drop(&mut self) {
        let comm = self.allocated.comm;
        // An aborted communicator has no windows.
        let Ok(raw) = comm.raw() else { return };
        // SAFETY: the type is that of the header. The window belongs to this communicator, and no call uses it any more.
        unsafe {
            let deregister: Result<unsafe extern "C" fn(Handle, Handle) -> c_int> =
                comm.library.function(c"ncclCommWindowDeregister");
            if let Ok(deregister) = deregister {
                within(comm.limit, "ncclCommWindowDeregister", || deregister(raw, self.window));
            }
        }
    }
}
