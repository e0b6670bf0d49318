//! Device memory: made here, or mapped from another process. And page-locked memory of the host.
//!
//! Kernels of other devices write to memory, and this device's kernels look at it, while they run. For AMD's GPUs that is
//! defined in fine-grained memory alone, which uncached memory is, too: what `hipMalloc` makes may stay in caches until a
//! kernel ends. A token, a FIFO and a buffer of packets need it, and any buffer may become one of packets. So all memory
//! that is made here is uncached, or fine-grained where a device has no other.

use mscclpp_gpu_sys::hip::{
    DEVICE_MALLOC_FINE_GRAINED, DEVICE_MALLOC_UNCACHED, HOST_MALLOC_COHERENT, HOST_MALLOC_MAPPED,
    HOST_MALLOC_PORTABLE, HipResult, IPC_LAZY_ENABLE_PEER_ACCESS, IpcMemHandle, Pointer,
};

use super::{
    device::Device,
    export::Range,
    failure::{check, forget, log_failure},
};
use crate::{
    DevicePtr, Error, Result,
    backend::MemoryBackend,
    driver::pinned::{self, Block},
    memory::ExportHandle,
};

/// Memory of `device` that holds `bytes` bytes, not yet zeroed.
pub(super) fn allocate(device: &'static Device, bytes: u64) -> Result<Box<dyn MemoryBackend>> {
    let hip = device.hip();
    let _entered = device.ordinal().enter()?;
    let attempt = |flags| {
        let mut address = std::ptr::null_mut();
        // SAFETY: `address` is valid for the write.
        (unsafe { (hip.ext_malloc_with_flags)(&raw mut address, bytes as usize, flags) }, address)
    };
    let (result, address) = match attempt(DEVICE_MALLOC_UNCACHED) {
        (HipResult::INVALID_VALUE | HipResult::NOT_SUPPORTED, _) => {
            forget(hip);
            attempt(DEVICE_MALLOC_FINE_GRAINED)
        }
        done => done,
    };
    check(hip, result, format!("hipExtMallocWithFlags({bytes} bytes)"))?;
    Ok(Box::new(Allocation { device, address: DevicePtr::from_ptr(address) }))
}

/// Maps what another process exported. The same handle must not be opened twice: the caller keeps one mapping per
/// allocation.
pub(super) fn import(
    device: &'static Device,
    handle: &ExportHandle,
    size: u64,
) -> Result<Box<dyn MemoryBackend>> {
    match handle {
        ExportHandle::IpcHandle(bytes) => Ok(Box::new(Imported::open(device, *bytes, size)?)),
        ExportHandle::FileDescriptor(_) | ExportHandle::Fabric(_) => Err(Error::InvalidArgument(
            "the HIP platform shares memory by IPC handles alone; this handle is of another kind".to_owned(),
        )),
    }
}

/// Page-locked memory of the host, coherent with devices while kernels run: `bytes` zeroed bytes, or some more.
pub(super) fn allocate_pinned(device: &'static Device, bytes: u64) -> Result<Box<dyn MemoryBackend>> {
    pinned::allocate(device.pinned_spares(), bytes, |len| block(device, len))
}

fn block(device: &'static Device, len: u64) -> Result<Block> {
    let hip = device.hip();
    let _entered = device.ordinal().enter()?;
    let mut host = std::ptr::null_mut();
    let flags = HOST_MALLOC_PORTABLE | HOST_MALLOC_MAPPED | HOST_MALLOC_COHERENT;
    // SAFETY: `host` is valid for the write.
    let result = unsafe { (hip.host_malloc)(&raw mut host, len as usize, flags) };
    check(hip, result, format!("hipHostMalloc({len} bytes; `ulimit -l` limits locked memory)"))?;
    let mut address: Pointer = std::ptr::null_mut();
    // SAFETY: `address` is valid for the write; `host` is page-locked memory that is mapped into the device.
    let result = unsafe { (hip.host_get_device_pointer)(&raw mut address, host, 0) };
    if let Err(error) = check(hip, result, "hipHostGetDevicePointer") {
        // SAFETY: just made, freed once.
        log_failure(hip, unsafe { (hip.host_free)(host) }, "hipHostFree");
        return Err(error);
    }
    Ok(Block { host: host.cast(), address: address as u64, len })
}

struct Allocation {
    device: &'static Device,
    address: DevicePtr,
}

impl MemoryBackend for Allocation {
    fn ptr(&self) -> DevicePtr {
        self.address
    }

    fn host_ptr(&self) -> *mut u8 {
        std::ptr::null_mut()
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let Some(_entered) = self.device.ordinal().enter_to_drop() else { return };
        let hip = self.device.hip();
        // SAFETY: made by `allocate`, freed once.
        log_failure(hip, unsafe { (hip.free)(self.address.as_mut_ptr()) }, "hipFree");
    }
}

/// An allocation of another process.
struct Imported {
    device: &'static Device,
    address: DevicePtr,
}

impl Imported {
    fn open(device: &'static Device, bytes: [u8; 64], size: u64) -> Result<Self> {
        let hip = device.hip();
        let _entered = device.ordinal().enter()?;
        let mut address = std::ptr::null_mut();
        let handle = IpcMemHandle { reserved: bytes };
        // SAFETY: `address` is valid for the write; the runtime checks the handle.
        let result =
            unsafe { (hip.ipc_open_mem_handle)(&raw mut address, handle, IPC_LAZY_ENABLE_PEER_ACCESS) };
        check(
            hip,
            result,
            "hipIpcOpenMemHandle (by another process than the one that made it, once per process)",
        )?;
        let imported = Self { device, address: DevicePtr::from_ptr(address) };
        // The size is what the peer says; the runtime knows what is there.
        let there = Range::of_allocation(hip, imported.address)?;
        Error::bounds("an imported allocation", 0, size, there.size - (imported.address.0 - there.base))?;
        Ok(imported)
    }
}

impl MemoryBackend for Imported {
    fn ptr(&self) -> DevicePtr {
        self.address
    }

    fn host_ptr(&self) -> *mut u8 {
        std::ptr::null_mut()
    }
}

impl Drop for Imported {
    fn drop(&mut self) {
        let Some(_entered) = self.device.ordinal().enter_to_drop() else { return };
        let hip = self.device.hip();
        // SAFETY: opened by `open`, closed once.
        log_failure(
            hip,
            unsafe { (hip.ipc_close_mem_handle)(self.address.as_mut_ptr()) },
            "hipIpcCloseMemHandle",
        );
    }
}
