//! Memory that programs allocate with `ncclMemAlloc`, and memory that they register.

use std::{
    collections::BTreeMap,
    ffi::{c_int, c_void},
    ptr,
    sync::Arc,
};

use mscclpp::{DeviceBuffer, DevicePtr, Platform};
use parking_lot::Mutex;

use crate::{
    abi::{Code, Handle},
    calls,
    comm::{self, Backend, Comm},
    failure::Failure,
    forming, group,
    pointers::{OutPointer, next_handle},
    registrations::Window,
    report,
};

/// The buffers that `ncclMemAlloc` allocated, by address.
static MEMORY: Mutex<BTreeMap<usize, DeviceBuffer>> = Mutex::new(BTreeMap::new());

/// `ncclMemAlloc`: allocates memory of the thread's device, which is all zero, and which other devices of the process reach if
/// they can. For 0 bytes the address is NULL.
pub(crate) fn allocate(place: OutPointer<*mut c_void>, bytes: usize) -> Result<(), Failure> {
    forming::begin()?;
    if bytes == 0 {
        place.set(ptr::null_mut());
        return Ok(());
    }
    let buffer = Platform::detect()?.current_gpu()?.allocate(bytes as u64)?;
    if let Err(error) = buffer.let_all_access() {
        report::info(&format!("not all devices of the process access memory of ncclMemAlloc: {error}"));
    }
    let address: *mut c_void = buffer.ptr().as_mut_ptr();
    MEMORY.lock().insert(address.addr(), buffer);
    place.set(address);
    Ok(())
}

/// `ncclMemFree`. The program may not use the memory any more, as with `cudaFree`. Memory in a window is freed only when the last
/// rank has released the window: see [`register_window`].
pub(crate) fn free(pointer: *mut c_void) -> Result<(), Failure> {
    if pointer.is_null() {
        return Ok(());
    }
    let gone = MEMORY.lock().remove(&pointer.addr());
    gone.map(drop)
        .ok_or_else(|| Failure::argument(format!("`ptr` is {pointer:p}, which ncclMemAlloc did not give")))
}

/// The buffer of `ncclMemAlloc` that contains an address, and the address's offset in it.
fn made_here(address: usize) -> Option<(DeviceBuffer, u64)> {
    let memory = MEMORY.lock();
    let (base, buffer) = memory.range(..=address).next_back()?;
    let offset = (address - base) as u64;
    (offset < buffer.len()).then(|| (buffer.clone(), offset))
}

/// `ncclCommRegister`: publishes memory of this rank. It has no effect for memory that cannot be shared.
///
/// # Safety
/// The bytes are memory of `ncclMemAlloc`; or they stay memory of the communicator's device until they are deregistered, and
/// calls and graphs that use them are gone.
pub(crate) unsafe fn register(
    comm: Handle,
    (buffer, bytes): (*mut c_void, usize),
    place: OutPointer<Handle>,
) -> Result<(), Failure> {
    let comm = registering(comm, buffer)?;
    let handle = next_handle();
    let mut published = None;
    if let Backend::Ours(ours) = comm.backend()? {
        let memory = DevicePtr(buffer.expose_provenance() as u64);
        let publish = match made_here(buffer.addr()) {
            Some((buffer, _)) => ours.collectives.publish(&buffer),
            // SAFETY: the caller's promise.
            None => unsafe { ours.collectives.publish_memory(memory, bytes as u64) },
        };
        match publish {
            Ok(made) => published = Some(made),
            Err(error) => {
                let failure = Failure::from(error);
                report::info(&format!(
                    "{}: the registration of {bytes} bytes has no effect: {}",
                    comm.name(),
                    failure.text
                ));
            }
        }
    }
    comm.registrations.buffers.lock().insert(handle.addr(), published);
    place.set(handle);
    Ok(())
}

/// `ncclCommDeregister`.
pub(crate) fn deregister(comm: Handle, handle: Handle) -> Result<(), Failure> {
    let comm = comm::of(comm)?;
    let gone = comm.registrations.buffers.lock().remove(&handle.addr());
    gone.map(drop).ok_or_else(|| unknown(&comm, handle))
}

/// `ncclCommWindowRegister`. Blocks until all ranks call it; in a group, the group's end blocks instead.
///
/// Peers map the memory of a window, and may write into it until they have released it. They have done so when all ranks have
/// deregistered their windows (`ncclCommWindowDeregister` acts on its own rank alone, and does not notify the others) and have
/// then registered another window together; when they have destroyed their communicators; or when they have died. The window
/// keeps memory of `ncclMemAlloc` alive until then, so the program may free it as soon as its own rank does not use it any
/// more. Memory that the program allocated otherwise, such as with `cudaMalloc`, the program itself must keep until then.
///
/// # Safety
/// The bytes are memory of `ncclMemAlloc`; or they stay memory of the communicator's device until all ranks have released the
/// window, and calls and graphs that were made meanwhile are gone.
pub(crate) unsafe fn register_window(
    comm: Handle,
    (buffer, bytes): (*mut c_void, usize),
    place: OutPointer<Handle>,
    flags: c_int,
) -> Result<Code, Failure> {
    /// `NCCL_WIN_COLL_SYMMETRIC`.
    const SYMMETRIC: c_int = 1;
    /// `NCCL_WIN_STRICT_ORDERING`, which changes nothing: writes into a window are never reordered by adapters.
    const STRICT_ORDERING: c_int = 2;
    let comm = registering(comm, buffer)?;
    if flags & !(SYMMETRIC | STRICT_ORDERING) != 0 {
        return Err(Failure::argument(format!(
            "`winFlags` is {flags:#x}; 1 and 2 are known, and there are no windows for GIN or CFT alone"
        )));
    }
    let window = next_handle();
    let handle = window.addr();
    comm.registrations.windows.lock().insert(handle, Window { at: buffer, bytes, registered: None });
    place.set(window);
    let memory = DevicePtr(buffer.expose_provenance() as u64);
    let made_here = made_here(buffer.addr());
    let (bytes, symmetric) = (bytes as u64, flags & SYMMETRIC != 0);
    let is_too_long = made_here.as_ref().is_some_and(|(buffer, offset)| bytes > buffer.len() - offset);
    let registered = group::together(&Arc::clone(&comm), move || {
        let refuse = |failure| {
            comm.registrations.windows.lock().remove(&handle);
            Err(failure)
        };
        let ours = match comm.backend() {
            Ok(Backend::Ours(ours)) => ours,
            Ok(_) => return Ok(()),
            Err(failure) => return refuse(failure),
        };
        if let Err(failure) = ours.connect_signals() {
            return refuse(failure);
        }
        let registered = match &made_here {
            Some((buffer, offset)) => {
                ours.collectives.register_part(buffer, *offset..offset.saturating_add(bytes), symmetric)
            }
            // SAFETY: the caller's promise for memory that is not of `ncclMemAlloc`.
            None => unsafe { ours.collectives.register_memory(memory, bytes, symmetric) },
        };
        match registered.map_err(Failure::from) {
            Ok(registered) => {
                if let Some(window) = comm.registrations.windows.lock().get_mut(&handle) {
                    window.registered = Some(registered);
                }
                Ok(())
            }
            Err(failure) if is_too_long || failure.code == Code::REMOTE_ERROR => refuse(failure),
            Err(failure) => {
                // The other ranks have a failure too, and all go on without a registration.
                report::info(&format!(
                    "{}: a window of {bytes} bytes changes nothing: {}",
                    comm.name(),
                    failure.text
                ));
                Ok(())
            }
        }
    });
    // In a group, the place may be gone when its end finds the failure.
    registered.inspect_err(|_| place.set(ptr::null_mut()))
}

/// `ncclCommWindowDeregister`. Later calls of this rank do not use the window. Calls of other ranks may still use it: see
/// [`register_window`].
pub(crate) fn deregister_window(comm: Handle, window: Handle) -> Result<(), Failure> {
    let comm = comm::of(comm)?;
    let gone = comm.registrations.windows.lock().remove(&window.addr());
    gone.map(drop).ok_or_else(|| unknown(&comm, window))
}

/// `ncclWinGetUserPtr`: the memory that this rank has registered.
pub(crate) fn of_window(comm: Handle, window: Handle) -> Result<*mut c_void, Failure> {
    let comm = comm::of(comm)?;
    let windows = comm.registrations.windows.lock();
    windows.get(&window.addr()).map(|window| window.at).ok_or_else(|| unknown(&comm, window))
}

/// `ncclGetPeerDevicePointer`: the address at which this rank's device reaches the memory that a rank has registered in a window;
/// NULL if it does not reach it. Reading and writing there is the program's to order.
pub(crate) fn of_peer(window: Handle, offset: usize, peer: c_int) -> Result<*mut c_void, Failure> {
    let comm = comm::with_window(window)?;
    let (own, ranks) = comm.position()?;
    let peer = calls::rank("peer", peer, ranks)?;
    let windows = comm.registrations.windows.lock();
    let window = windows.get(&window.addr()).ok_or_else(|| unknown(&comm, window))?;
    let place = match &window.registered {
        Some(registered) => registered.of(peer).map(|(at, bytes)| (at.as_mut_ptr(), bytes)),
        None => (peer == own).then_some((window.at, window.bytes as u64)),
    };
    let Some((at, bytes)) = place else { return Ok(ptr::null_mut()) };
    if offset as u64 >= bytes {
        return Err(Failure::argument(format!("`offset` is {offset} in a window of {bytes} bytes")));
    }
    Ok(at.wrapping_byte_add(offset))
}

/// `ncclGetLsaDevicePointer`: as [`of_peer`], for a rank of this node, whose memory the device must reach.
pub(crate) fn of_lsa_peer(window: Handle, offset: usize, peer: c_int) -> Result<*mut c_void, Failure> {
    if let Backend::Ours(ours) = comm::with_window(window)?.formed()?
        && !ours.has_signals()
    {
        return Err(Failure::usage(
            "not covered: peers' memory of a window in a communicator of several nodes, or of devices that do not reach each \
             other's memory",
        ));
    }
    let at = of_peer(window, offset, peer)?;
    if at.is_null() {
        return Err(Failure::usage(format!(
            "rank {peer}'s memory of the window is not mapped here: it cannot be shared"
        )));
    }
    Ok(at)
}

/// The communicator of a handle, checked for registering `buffer` with it.
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

fn unknown(comm: &Comm, handle: Handle) -> Failure {
    Failure::argument(format!("{handle:p} is not registered with {}", comm.name()))
}
