//! Memory of the interface's own, and what programs register.

use std::{
    collections::HashMap,
    ffi::{c_int, c_void},
    ptr,
    sync::{
        LazyLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use mscclpp::{DeviceBuffer, Platform};
use parking_lot::Mutex;

use crate::{
    abi::{Code, Handle, Place},
    comm::{self, Backend},
    failure::Failure,
    forming,
};

/// What `ncclMemAlloc` gave, by address.
static MEMORY: LazyLock<Mutex<HashMap<usize, DeviceBuffer>>> = LazyLock::new(Mutex::default);

/// `ncclMemAlloc`: memory of the thread's device, all zero. No bytes are NULL.
pub(crate) fn allocate(place: Place<*mut c_void>, bytes: usize) -> Result<(), Failure> {
    forming::begin()?;
    if bytes == 0 {
        place.set(ptr::null_mut());
        return Ok(());
    }
    let buffer = Platform::detect()?.current_gpu()?.allocate(bytes as u64)?;
    let address: *mut c_void = buffer.ptr().as_mut_ptr();
    MEMORY.lock().insert(address.addr(), buffer);
    place.set(address);
    Ok(())
}

/// `ncclMemFree`. Nothing may use it any more, as with `cudaFree`.
pub(crate) fn free(pointer: *mut c_void) -> Result<(), Failure> {
    if pointer.is_null() {
        return Ok(());
    }
    let gone = MEMORY.lock().remove(&pointer.addr());
    gone.map(drop)
        .ok_or_else(|| Failure::argument(format!("`ptr` is {pointer:p}, which ncclMemAlloc did not give")))
}

/// What is registered with a communicator, by handle. It changes nothing: data goes through the collectives' own memory.
#[derive(Default)]
pub(crate) struct Registrations {
    buffers: Mutex<Vec<usize>>,
    windows: Mutex<Vec<usize>>,
}

/// What is registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Registration {
    /// By `ncclCommRegister`, which is each rank's own.
    Buffer,
    /// By `ncclCommWindowRegister`, which all ranks call.
    Window,
}

impl Registrations {
    fn of(&self, which: Registration) -> &Mutex<Vec<usize>> {
        match which {
            Registration::Buffer => &self.buffers,
            Registration::Window => &self.windows,
        }
    }
}

/// `ncclCommRegister` and `ncclCommWindowRegister`.
pub(crate) fn register(
    which: Registration,
    comm: Handle,
    buffer: *const c_void,
    place: Place<Handle>,
    flags: c_int,
) -> Result<Code, Failure> {
    /// `NCCL_WIN_COLL_SYMMETRIC`, the only flag there is.
    const SYMMETRIC: c_int = 1;
    let comm = comm::of(comm)?;
    if let Backend::Handed(_) = comm.backend()? {
        return Err(Failure::usage("not covered: memory of a communicator that NCCL has is not registered"));
    }
    if buffer.is_null() {
        return Err(Failure::argument("`buff` is NULL"));
    }
    if flags & !SYMMETRIC != 0 {
        return Err(Failure::argument(format!("`winFlags` is {flags:#x}; 0 and 1 are known")));
    }
    static NEXT: AtomicUsize = AtomicUsize::new(0x1000);
    let handle = NEXT.fetch_add(0x10, Ordering::Relaxed);
    comm.registrations.of(which).lock().push(handle);
    place.set(ptr::without_provenance_mut(handle));
    Ok(Code::SUCCESS)
}

/// `ncclCommDeregister` and `ncclCommWindowDeregister`.
pub(crate) fn deregister(which: Registration, comm: Handle, handle: Handle) -> Result<(), Failure> {
    let comm = comm::of(comm)?;
    let mut known = comm.registrations.of(which).lock();
    let Some(at) = known.iter().position(|known| *known == handle.addr()) else {
        return Err(Failure::argument(format!("{handle:p} is not registered with {}", comm.name())));
    };
    known.swap_remove(at);
    Ok(())
}
