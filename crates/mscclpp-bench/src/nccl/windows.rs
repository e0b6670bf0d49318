//! Memory that NCCL has allocated, and that all ranks have registered as a symmetric window.

use std::ptr;

use mscclpp::{DeviceBuffer, DevicePtr, Gpu, Stream};

use super::{
    Comm,
    library::{Handle, SYMMETRIC, WindowFunctions},
};
use crate::{Result, data::Memory, pair::Pair, watchdog::within};

/// A window, or the reason why NCCL has none here.
pub(crate) struct Windows<'a> {
    memory: std::result::Result<WindowMemory<'a>, String>,
}

pub(crate) struct WindowMemory<'a> {
    allocated: Allocated<'a>,
    window: Handle,
    /// The buffer through which the host reads and writes the memory.
    stage: DeviceBuffer,
    stream: Stream,
}

/// The most bytes that are copied at a time.
const STAGE: u64 = 16 << 20;

impl<'a> Windows<'a> {
    /// Makes a window of `bytes` bytes on all ranks, which make the same call. If NCCL cannot make it on one, none has it.
    pub(crate) fn new(comm: &'a Comm<'a>, pair: &Pair, bytes: u64) -> Result<Self> {
        let Some(functions) = &comm.library.windows else {
            let version = comm.library.version();
            return Ok(Self { memory: Err(format!("version {version} has no functions for them")) });
        };
        // Each step is made only if the one before has succeeded on all ranks, because the second waits for all.
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
    functions: &'a WindowFunctions,
    base: Handle,
    bytes: u64,
}

impl<'a> Allocated<'a> {
    fn new(comm: &'a Comm<'a>, functions: &'a WindowFunctions, bytes: u64) -> Result<Self> {
        let mut base = ptr::null_mut();
        // SAFETY: the function writes one address; the device is the current one.
        let code = within(comm.limit, "ncclMemAlloc", || unsafe {
            (functions.allocate)(&raw mut base, bytes as usize)
        });
        comm.library.check("ncclMemAlloc", code)?;
        Ok(Self { comm, functions, base, bytes })
    }
}

impl Drop for Allocated<'_> {
    fn drop(&mut self) {
        // SAFETY: `ncclMemAlloc` allocated the memory, and it is no longer a window.
        within(self.comm.limit, "ncclMemFree", || unsafe { (self.functions.free)(self.base) });
    }
}

impl<'a> WindowMemory<'a> {
    fn new(allocated: Allocated<'a>, gpu: &Gpu) -> Result<Self> {
        let Allocated { comm, functions, base, bytes } = allocated;
        let mut window = ptr::null_mut();
        let raw = comm.raw()?;
        // SAFETY: the memory is NCCL's own and has that size; the function writes one handle.
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

    /// The addresses and lengths of the chunks into which `len` bytes from `offset` on are divided.
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
            // SAFETY: both ranges have that length, by `pieces`, and this waits for the copy.
            unsafe { self.stream.copy(place, self.stage.ptr(), len)? };
            self.stream.synchronize()?;
        }
        Ok(())
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let pieces = self.pieces(offset, bytes.len() as u64)?;
        for ((place, len), bytes) in pieces.zip(bytes.chunks_mut(self.stage.len() as usize)) {
            // SAFETY: both ranges have that length, by `pieces`, and this waits for the copy.
            unsafe { self.stream.copy(self.stage.ptr(), place, len)? };
            self.stream.synchronize()?;
            self.stage.read(0, bytes)?;
        }
        Ok(())
    }

    fn fill(&self, offset: u64, len: u64, value: u8) -> Result<()> {
        for (place, len) in self.pieces(offset, len)? {
            // SAFETY: the range has that length, by `pieces`, and this waits for the fill.
            unsafe { self.stream.fill(place, len, value)? };
        }
        Ok(self.stream.synchronize()?)
    }
}

impl Drop for WindowMemory<'_> {
    fn drop(&mut self) {
        let Allocated { comm, functions, .. } = self.allocated;
        // An aborted communicator has no windows.
        if let Ok(raw) = comm.raw() {
            let window = self.window;
            // SAFETY: the window belongs to this communicator, and no call uses it any more.
            within(comm.limit, "ncclCommWindowDeregister", || unsafe { (functions.deregister)(raw, window) });
        }
    }
}
