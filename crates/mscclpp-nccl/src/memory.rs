//! Memory of the interface's own, and what programs register.

use std::{
    collections::HashMap,
    ffi::{c_int, c_void},
    ptr,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use mscclpp::{DeviceBuffer, DevicePtr, Platform};
use mscclpp_collectives::Registered;
use parking_lot::Mutex;

use crate::{
    abi::{Code, Handle, Place},
    comm::{self, Backend, Comm},
    failure::Failure,
    forming, group, report,
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

/// What is registered with a communicator, by handle.
#[derive(Default)]
pub(crate) struct Registrations {
    /// By `ncclCommRegister`. It changes nothing, as it is each rank's own, and ranks must choose alike.
    buffers: Mutex<Vec<usize>>,
    /// By `ncclCommWindowRegister`, which all ranks call; without a registration where the memory cannot be shared.
    windows: Mutex<HashMap<usize, Option<Registered>>>,
}

/// `ncclCommRegister`.
pub(crate) fn register(comm: Handle, buffer: *const c_void, place: Place<Handle>) -> Result<(), Failure> {
    let comm = registering(comm, buffer)?;
    let handle = next_handle();
    comm.registrations.buffers.lock().push(handle);
    place.set(ptr::without_provenance_mut(handle));
    Ok(())
}

/// `ncclCommDeregister`.
pub(crate) fn deregister(comm: Handle, handle: Handle) -> Result<(), Failure> {
    let comm = comm::of(comm)?;
    let mut known = comm.registrations.buffers.lock();
    let at = known.iter().position(|known| *known == handle.addr());
    known.swap_remove(at.ok_or_else(|| unknown(&comm, handle))?);
    Ok(())
}

/// `ncclCommWindowRegister`. Blocks until all ranks call it; in a group, its end does.
///
/// # Safety
/// The bytes are memory of the communicator's device, until the window is taken back.
pub(crate) unsafe fn register_window(
    comm: Handle,
    (buffer, bytes): (*const c_void, usize),
    place: Place<Handle>,
    flags: c_int,
) -> Result<Code, Failure> {
    /// `NCCL_WIN_COLL_SYMMETRIC`, the only flag there is.
    const SYMMETRIC: c_int = 1;
    let comm = registering(comm, buffer)?;
    if flags & !SYMMETRIC != 0 {
        return Err(Failure::argument(format!("`winFlags` is {flags:#x}; 0 and 1 are known")));
    }
    let handle = next_handle();
    comm.registrations.windows.lock().insert(handle, None);
    place.set(ptr::without_provenance_mut(handle));
    let memory = DevicePtr(buffer.expose_provenance() as u64);
    group::together(&Arc::clone(&comm), move || {
        let Backend::Ours(ours) = comm.backend()? else { return Ok(()) };
        // SAFETY: the caller's promise.
        let registered =
            unsafe { ours.collectives.register_memory(memory, bytes as u64, flags & SYMMETRIC != 0) };
        match registered {
            Ok(registered) => {
                if let Some(window) = comm.registrations.windows.lock().get_mut(&handle) {
                    *window = Some(registered);
                }
                Ok(())
            }
            Err(error) => {
                let failure = Failure::from(error);
                if failure.code == Code::REMOTE_ERROR {
                    comm.registrations.windows.lock().remove(&handle);
                    return Err(failure);
                }
                // It is so on all ranks.
                report::info(&format!(
                    "{}: a window of {bytes} bytes changes nothing, as its memory cannot be shared: {}",
                    comm.name(),
                    failure.text
                ));
                Ok(())
            }
        }
    })
}

/// `ncclCommWindowDeregister`.
pub(crate) fn deregister_window(comm: Handle, window: Handle) -> Result<(), Failure> {
    let comm = comm::of(comm)?;
    let gone = comm.registrations.windows.lock().remove(&window.addr());
    gone.map(drop).ok_or_else(|| unknown(&comm, window))
}

/// The communicator with which memory is registered.
fn registering(comm: Handle, buffer: *const c_void) -> Result<Arc<Comm>, Failure> {
    let comm = comm::of(comm)?;
    if let Backend::Handed(_) = comm.backend()? {
        return Err(Failure::usage("not covered: memory of a communicator that NCCL has is not registered"));
    }
    if buffer.is_null() {
        return Err(Failure::argument("`buff` is NULL"));
    }
    Ok(comm)
}

fn next_handle() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0x1000);
    NEXT.fetch_add(0x10, Ordering::Relaxed)
}

fn unknown(comm: &Comm, handle: Handle) -> Failure {
    Failure::argument(format!("{handle:p} is not registered with {}", comm.name()))
}
