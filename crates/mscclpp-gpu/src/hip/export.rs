//! Finds the allocation behind an address: to share it with other processes, or to reach it from another device.

use std::{
    ffi::{c_int, c_void},
    os::fd::{FromRawFd, OwnedFd},
};

use mscclpp_gpu_sys::hip::{
    Hip, HipResult, IpcMemHandle, MEMORY_TYPE_DEVICE, POINTER_DEVICE_ORDINAL, POINTER_MEMORY_TYPE,
    RANGE_HANDLE_DMA_BUF,
};

use super::{
    device::Device,
    failure::{check, failure, forget},
};
use crate::{DevicePtr, DmaBuf, Error, MemoryExport, Result, memory::ExportHandle};

/// What another process needs to map the allocation that holds the range.
///
/// # Safety
/// The range is live memory of this process.
pub(super) unsafe fn export(device: &'static Device, ptr: DevicePtr, len: u64) -> Result<MemoryExport> {
    let hip = device.hip();
    let _entered = device.ordinal().enter()?;
    if owner_of(hip, ptr)?.is_none() {
        return Err(not_exportable(ptr, len, "the HIP runtime does not know it as device memory"));
    }
    let allocation = Range::of_allocation(hip, ptr)?;
    let offset = allocation.offset_of(ptr, len)?;
    let mut handle = IpcMemHandle { reserved: [0; 64] };
    let base = DevicePtr(allocation.base).as_mut_ptr();
    // SAFETY: `handle` is valid for the write.
    let result = unsafe { (hip.ipc_get_mem_handle)(&raw mut handle, base) };
    check(hip, result, format!("hipIpcGetMemHandle({:#x})", allocation.base))?;
    Ok(MemoryExport {
        handle: ExportHandle::IpcHandle(handle.reserved),
        fabric: None,
        allocation_size: allocation.size,
        offset,
    })
}

/// A dmabuf of the pages that hold the range.
///
/// # Safety
/// The range is live memory of this process.
pub(super) unsafe fn export_dma_buf(device: &'static Device, ptr: DevicePtr, len: u64) -> Result<DmaBuf> {
    let hip = device.hip();
    let Some(export) = hip.mem_get_handle_for_address_range else {
        return Err(not_exportable(ptr, len, "this release of ROCm has no hipMemGetHandleForAddressRange"));
    };
    let _entered = device.ordinal().enter()?;
    let page = rustix::param::page_size() as u64;
    let start = ptr.0 / page * page;
    let offset = ptr.0 - start;
    let size = (offset + len).next_multiple_of(page);
    let mut fd: c_int = -1;
    let at = DevicePtr(start).as_mut_ptr();
    // SAFETY: `fd` is valid for the write of a descriptor, which is what this type of handle is.
    let result = unsafe { export((&raw mut fd).cast(), at, size as usize, RANGE_HANDLE_DMA_BUF, 0) };
    check(hip, result, format!("hipMemGetHandleForAddressRange({start:#x}, {size} bytes, DmaBufFd)"))?;
    if fd < 0 {
        return Err(Error::system("hipMemGetHandleForAddressRange", format!("it gave the descriptor {fd}")));
    }
    // SAFETY: a new descriptor, which nobody else has.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    Ok(DmaBuf { fd, offset, size })
}

/// The number of the device that the memory is on.
pub(super) fn owner_of(hip: &Hip, ptr: DevicePtr) -> Result<Option<usize>> {
    // SAFETY: these attributes are an `unsigned int` and an `int`.
    let (kind, ordinal) =
        unsafe { (attribute(hip, POINTER_MEMORY_TYPE, ptr), attribute(hip, POINTER_DEVICE_ORDINAL, ptr)) };
    match (kind, ordinal) {
        (Ok(MEMORY_TYPE_DEVICE), Ok(ordinal)) => Ok(c_int::try_from(ordinal).ok().map(|n| n as usize)),
        (Ok(_), Ok(_)) => Ok(None),
        (Err(HipResult::INVALID_VALUE | HipResult::INVALID_DEVICE_POINTER), _)
        | (_, Err(HipResult::INVALID_VALUE | HipResult::INVALID_DEVICE_POINTER)) => {
            forget(hip);
            Ok(None)
        }
        (Err(result), _) | (_, Err(result)) => Err(failure(hip, result, "hipPointerGetAttribute")),
    }
}

/// # Safety
/// The attribute is of 4 bytes.
unsafe fn attribute(hip: &Hip, which: u32, ptr: DevicePtr) -> std::result::Result<u32, HipResult> {
    let mut word = 0u32;
    let at = ptr.as_mut_ptr::<c_void>();
    // SAFETY: `word` has room for the attribute (the caller's promise); the runtime does not access the address.
    match unsafe { (hip.pointer_get_attribute)((&raw mut word).cast(), which, at) } {
        HipResult::SUCCESS => Ok(word),
        result => Err(result),
    }
}

/// Makes the memory of `owner`, another device, reachable from `device`.
pub(super) fn enable_access(device: &'static Device, owner: &'static Device) -> Result<()> {
    let hip = device.hip();
    let _entered = device.ordinal().enter()?;
    // SAFETY: it takes a number, and refuses wrong ones; `device` is the thread's.
    match unsafe { (hip.device_enable_peer_access)(owner.ordinal().number, 0) } {
        HipResult::PEER_ACCESS_ALREADY_ENABLED => {
            forget(hip);
            Ok(())
        }
        result @ (HipResult::PEER_ACCESS_UNSUPPORTED | HipResult::INVALID_DEVICE) => {
            Err(Error::NoPeerAccess {
                from: device.display(),
                to: owner.display(),
                reason: failure(hip, result, "hipDeviceEnablePeerAccess").to_string(),
            })
        }
        result => check(hip, result, "hipDeviceEnablePeerAccess"),
    }
}

/// One allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) base: u64,
    pub(super) size: u64,
}

impl Range {
    /// The allocation that holds `ptr`.
    pub(super) fn of_allocation(hip: &Hip, ptr: DevicePtr) -> Result<Self> {
        let (mut base, mut size) = (std::ptr::null_mut(), 0usize);
        // SAFETY: both are valid for the write; the runtime looks the address up and does not access it.
        let result = unsafe { (hip.mem_get_address_range)(&raw mut base, &raw mut size, ptr.as_mut_ptr()) };
        check(hip, result, format!("hipMemGetAddressRange({:#x})", ptr.0))?;
        let range = Self { base: base as u64, size: size as u64 };
        if range.holds(ptr) {
            Ok(range)
        } else {
            Err(Error::system("hipMemGetAddressRange", format!("it gave {range:x?} for {:#x}", ptr.0)))
        }
    }

    fn holds(self, ptr: DevicePtr) -> bool {
        ptr.0 >= self.base && ptr.0 - self.base < self.size
    }

    /// Where `ptr..ptr + len` starts in it, if it is inside as a whole.
    fn offset_of(self, ptr: DevicePtr, len: u64) -> Result<u64> {
        let offset = ptr.0.wrapping_sub(self.base);
        match offset.checked_add(len) {
            Some(end) if self.holds(ptr) && end <= self.size => Ok(offset),
            _ => Err(not_exportable(
                ptr,
                len,
                format!("the range goes past its allocation ({:#x}, {} bytes)", self.base, self.size),
            )),
        }
    }
}

fn not_exportable(ptr: DevicePtr, len: u64, reason: impl Into<String>) -> Error {
    Error::NotExportable { address: ptr.0, len, reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_range_inside_one_allocation_can_be_exported() {
        let range = Range { base: 0x1000, size: 0x100 };
        assert_eq!(range.offset_of(DevicePtr(0x1000), 0x100).unwrap(), 0);
        assert_eq!(range.offset_of(DevicePtr(0x10ff), 1).unwrap(), 0xff);
        for (ptr, len) in [(0x1000, 0x101), (0x10ff, 2), (0xfff, 1), (0x1100, 0), (0x1001, u64::MAX)] {
            let error = range.offset_of(DevicePtr(ptr), len).unwrap_err();
            assert!(
                matches!(error, Error::NotExportable { address, len: l, .. } if address == ptr && l == len)
            );
        }
    }
}
