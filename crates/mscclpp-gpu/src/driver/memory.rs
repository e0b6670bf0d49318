//! Memory that is made in the same way on all platforms: page-locked, or mapped from another process by an IPC handle.

use mscclpp_gpu_sys::{Entry, IPC_LAZY_ENABLE_PEER_ACCESS, IpcMemHandle};

use super::{
    api::Api,
    device::Device,
    export::Range,
    failure::{check, log_failure},
    pinned::Block,
};
use crate::{DevicePtr, Error, Result, backend::MemoryBackend};

/// Page-locked memory of `len` bytes, mapped into the device.
pub(super) fn block<D: Api>(device: &'static Device<D>, len: u64) -> Result<Block> {
    let (driver, functions) = (device.driver(), device.functions());
    let _entered = device.context.enter()?;
    let Entry(name, alloc) = functions.host_alloc;
    let mut host = std::ptr::null_mut();
    // SAFETY: `host` is valid for the write.
    let result = unsafe { alloc(&raw mut host, len as usize, D::HOST_MEMORY) };
    check(driver, result, format_args!("{name}({len} bytes; `ulimit -l` limits locked memory)"))?;
    let Entry(name, get_pointer) = functions.host_get_device_pointer;
    let mut address = 0;
    // SAFETY: `address` is valid for the write; `host` is page-locked memory that is mapped into the device.
    let result = unsafe { get_pointer(&raw mut address, host, 0) };
    if let Err(error) = check(driver, result, name) {
        let Entry(name, free) = functions.host_free;
        // SAFETY: just made, freed once.
        log_failure(driver, unsafe { free(host) }, name);
        return Err(error);
    }
    Ok(Block { host: host.cast(), address, len })
}

/// An allocation of another process, opened by its IPC handle.
pub(crate) struct Imported<D: Api> {
    device: &'static Device<D>,
    address: DevicePtr,
}

impl<D: Api> Imported<D> {
    /// The device is the thread's. No handle may be opened twice in a process.
    pub(crate) fn open(device: &'static Device<D>, bytes: [u8; 64], size: u64) -> Result<Self> {
        let (driver, functions) = (device.driver(), device.functions());
        let Entry(opened, open) = functions.ipc_open_mem_handle;
        let mut address = 0;
        let handle = IpcMemHandle { reserved: bytes };
        // SAFETY: `address` is valid for the write; the driver checks the handle.
        let result = unsafe { open(&raw mut address, handle, IPC_LAZY_ENABLE_PEER_ACCESS) };
        let advice = "not by the process that made it, once per process";
        check(driver, result, format_args!("{opened} ({advice})"))?;
        let imported = Self { device, address: DevicePtr(address) };
        // The size is what the peer says; the driver knows what is there.
        let there = Range::of_allocation(driver, imported.address)?;
        Error::bounds("an imported allocation", 0, size, there.size - (address - there.base))?;
        Ok(imported)
    }
}

impl<D: Api> MemoryBackend for Imported<D> {
    fn ptr(&self) -> DevicePtr {
        self.address
    }
}

impl<D: Api> Drop for Imported<D> {
    fn drop(&mut self) {
        let close = self.device.functions().ipc_close_mem_handle;
        // SAFETY: opened by `open`, closed once.
        self.device.context.take_down(|_| close.call(|close| unsafe { close(self.address.0) }));
    }
}
