//! Memory that NCCL has allocated, and that all ranks have registered as a symmetric window.

use std::ptr;

use mscclpp::{DeviceBuffer, DevicePtr, Gpu, Stream};

use super::{
    Comm,
    library::{Handle, SYMMETRIC, WindowFunctions},
};
use crate::{Result, data::Memory, pair::Pair, watchdog::within};

/// A window, if NCCL has them here.
pub(crate) struct Windows<'a> {
    memory: std::result::Result<WindowMemory<'a>, String>,
}

pub(crate) struct WindowMemory<'a> {
    allocated: Allocated<'a>,
    window: Handle,
    /// The host reaches the memory through this.
    stage: DeviceBuffer,
    stream: Stream,
}

/// What is copied at a time.
const STAGE: u64 = 16 << 20;

impl<'a> Windows<'a> {
    /// Of so many bytes, on all ranks, which make the same call. Where NCCL cannot have windows, there are none on any.
    pub(crate) fn new(comm: &'a Comm<'a>, pair: &Pair, bytes: u64) -> Result<Self> {
        let Some(functions) = &comm.library.windows else {
            let version = comm.library.version();
            return Ok(Self { memory: Err(format!("version {version} has no functions for them")) });
        };
        // Each step only if the one before has succeeded on all ranks, since the second waits for all.
        let allocated = agreed(pair, Allocated::new(comm, functions, bytes))?;
        let memory = match allocated {
            Ok(allocated) => agreed(pair, WindowMemory::new(allocated, &pair.gpu))?,
            Err(reason) => Err(reason),
        };
        Ok(Self { memory })
    }

    pub(crate) fn memory(&self) -> Option<&WindowMemory<'a>> {
        self.memory.as_ref().ok()
    }

    /// Whether there are any, and why not.
    pub(crate) fn note(&self) -> String {
        match &self.memory {
            Ok(_) => "windows: NCCL with memory of ncclMemAlloc that is registered as a symmetric window"
                .to_owned(),
            Err(reason) => format!("NCCL is not measured with registered windows: {reason}"),
        }
    }
}

/// What all ranks have; or why a rank has not.
fn agreed<T>(pair: &Pair, ours: Result<T>) -> Result<std::result::Result<T, String>> {
    let all = pair.ranks.say(&ours.as_ref().err().map(ToString::to_string))?;
    let failed = all.into_iter().enumerate().find_map(|(rank, reason)| Some((rank, reason?)));
    Ok(match (ours, failed) {
        (Ok(ours), None) => Ok(ours),
        (_, Some((rank, reason))) => Err(format!("on rank {rank}, {reason}")),
        (Err(error), None) => Err(error.to_string()),
    })
}

/// Memory of `ncclMemAlloc`.
struct Allocated<'a> {
    comm: &'a Comm<'a>,
    functions: &'a WindowFunctions,
    base: Handle,
    bytes: u64,
}

impl<'a> Allocated<'a> {
    fn new(comm: &'a Comm<'a>, functions: &'a WindowFunctions, bytes: u64) -> Result<Self> {
        let mut base = ptr::null_mut();
        // SAFETY: it writes one address; the device is the current one.
        let code = within(comm.limit, "ncclMemAlloc", || unsafe {
            (functions.allocate)(&raw mut base, bytes as usize)
        });
        comm.library.check("ncclMemAlloc", code)?;
        Ok(Self { comm, functions, base, bytes })
    }
}

impl Drop for Allocated<'_> {
    fn drop(&mut self) {
        // SAFETY: it was allocated by the function's counterpart, and is no window any more.
        within(self.comm.limit, "ncclMemFree", || unsafe { (self.functions.free)(self.base) });
    }
}

impl<'a> WindowMemory<'a> {
    fn new(allocated: Allocated<'a>, gpu: &Gpu) -> Result<Self> {
        let Allocated { comm, functions, base, bytes } = allocated;
        let mut window = ptr::null_mut();
        let raw = comm.raw()?;
        // SAFETY: the memory is NCCL's own and of that size; it writes one handle.
        let code = within(comm.limit, "ncclCommWindowRegister", || unsafe {
            (functions.register)(raw, base, bytes as usize, &raw mut window, SYMMETRIC)
        });
        comm.library.check("ncclCommWindowRegister", code)?;
        if window.is_null() {
            return Err("NCCL has no symmetric memory between these devices".into());
        }
        Ok(Self { allocated, window, stage: gpu.allocate(STAGE.min(bytes))?, stream: gpu.stream()? })
    }

    pub(crate) fn ptr(&self) -> DevicePtr {
        DevicePtr(self.allocated.base as u64)
    }

    /// The places of `len` bytes from `offset` on, each of a piece of so many bytes.
    fn pieces(&self, offset: u64, len: u64) -> Result<impl Iterator<Item = (DevicePtr, u64)> + use<>> {
        let bytes = self.allocated.bytes;
        if offset.checked_add(len).is_none_or(|end| end > bytes) {
            return Err(format!("{len} bytes at {offset} of a window of {bytes} bytes").into());
        }
        let (base, most) = (self.ptr().add(offset), self.stage.len());
        Ok((0..len.div_ceil(most)).map(move |n| (base.add(n * most), most.min(len - n * most))))
    }
}

impl Memory for WindowMemory<'_> {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let pieces = self.pieces(offset, bytes.len() as u64)?;
        for ((place, len), bytes) in pieces.zip(bytes.chunks(self.stage.len() as usize)) {
            self.stage.write(0, bytes)?;
            // SAFETY: both places are of that length, by `pieces`, and it is waited for.
            unsafe { self.stream.copy(place, self.stage.ptr(), len)? };
            self.stream.synchronize()?;
        }
        Ok(())
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let pieces = self.pieces(offset, bytes.len() as u64)?;
        for ((place, len), bytes) in pieces.zip(bytes.chunks_mut(self.stage.len() as usize)) {
            // SAFETY: as in `write`.
            unsafe { self.stream.copy(self.stage.ptr(), place, len)? };
            self.stream.synchronize()?;
            self.stage.read(0, bytes)?;
        }
        Ok(())
    }

    fn fill(&self, offset: u64, len: u64, value: u8) -> Result<()> {
        for (place, len) in self.pieces(offset, len)? {
            // SAFETY: as in `write`.
            unsafe { self.stream.fill(place, len, value)? };
        }
        Ok(self.stream.synchronize()?)
    }
}

impl Drop for WindowMemory<'_> {
    fn drop(&mut self) {
        let Allocated { comm, functions, .. } = self.allocated;
        // An aborted communicator has no windows any more.
        if let Ok(raw) = comm.raw() {
            let window = self.window;
            // SAFETY: the window is of this communicator, and no call uses it any more.
            within(comm.limit, "ncclCommWindowDeregister", || unsafe { (functions.deregister)(raw, window) });
        }
    }
}
