//! Finds the allocation behind an address: to share it with other processes, or to reach it from another device.

use std::{
    ffi::{c_int, c_void},
    fmt,
    os::fd::{FromRawFd, OwnedFd},
};

use mscclpp_gpu_sys::{
    Code, Entry, IpcMemHandle, MEMORY_TYPE_DEVICE, POINTER_BUFFER_ID, POINTER_DEVICE_ORDINAL,
    POINTER_MEMORY_TYPE, RANGE_HANDLE_DMA_BUF,
};

use super::{
    api::Api,
    device::Device,
    failure::{check, failure},
};
use crate::{DeviceAllocation, DevicePtr, DmaBuf, Error, MemoryExport, Result, memory::ExportHandle};

/// Describes the allocation that has this range and holds the address. The device is the thread's.
pub(crate) fn allocation<D: Api>(driver: &D, ptr: DevicePtr, range: Range) -> DeviceAllocation {
    let Range { base, size } = range;
    // SAFETY: this attribute is an `unsigned long long`.
    let id = unsafe { pointer_word(driver, POINTER_BUFFER_ID, ptr) };
    // Without the driver's number, an allocation is not told from a later one at the same addresses.
    let id = id.unwrap_or_else(|_| {
        driver.forget();
        0
    });
    DeviceAllocation { base: DevicePtr(base), len: size, id }
}

/// Exports by an IPC handle the plain allocation that holds the range. The device is the thread's.
pub(crate) fn export_plain<D: Api>(driver: &D, ptr: DevicePtr, len: u64) -> Result<MemoryExport> {
    let allocation = Range::of_allocation(driver, ptr)?;
    let offset = allocation.offset_of(ptr, len, D::ON_SEVERAL_ALLOCATIONS)?;
    let Entry(name, get_handle) = driver.functions().ipc_get_mem_handle;
    let mut handle = IpcMemHandle { reserved: [0; 64] };
    // SAFETY: `handle` is valid for the write.
    let result = unsafe { get_handle(&raw mut handle, allocation.base) };
    check(driver, result, format_args!("{name}({:#x})", allocation.base))?;
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
pub(super) unsafe fn export_dma_buf<D: Api>(device: &Device<D>, ptr: DevicePtr, len: u64) -> Result<DmaBuf> {
    let Some(Entry(name, export)) = device.functions().mem_get_handle_for_address_range else {
        return Err(not_exportable(ptr, len, D::NO_DMA_BUF));
    };
    let _entered = device.context.enter()?;
    let page = rustix::param::page_size() as u64;
    let start = ptr.0 / page * page;
    let offset = ptr.0 - start;
    let size = (offset + len).next_multiple_of(page);
    let mut fd: c_int = -1;
    // SAFETY: `fd` is valid for the write of a descriptor, which is what this type of handle is.
    let result = unsafe { export((&raw mut fd).cast(), start, size as usize, RANGE_HANDLE_DMA_BUF, 0) };
    check(device.driver(), result, format_args!("{name}({start:#x}, {size} bytes, DMA_BUF_FD)"))?;
    if fd < 0 {
        return Err(Error::system(name, format!("it gave the descriptor {fd}")));
    }
    // SAFETY: a new descriptor, which nobody else has.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    Ok(DmaBuf { fd, offset, size })
}

const ON_DEVICE: u64 = MEMORY_TYPE_DEVICE as u64;

/// The number of the device that the memory is on.
pub(crate) fn owner_of<D: Api>(driver: &D, ptr: DevicePtr) -> Result<Option<usize>> {
    // SAFETY: these attributes are an `unsigned int` and an `int`.
    let answers = unsafe {
        (pointer_word(driver, POINTER_MEMORY_TYPE, ptr), pointer_word(driver, POINTER_DEVICE_ORDINAL, ptr))
    };
    match answers {
        (Ok(ON_DEVICE), Ok(ordinal)) => Ok(c_int::try_from(ordinal).ok().map(|ordinal| ordinal as usize)),
        (Ok(_), Ok(_)) => Ok(None),
        (Err(result), _) | (_, Err(result)) if D::UNKNOWN_ADDRESS.contains(&result) => {
            driver.forget();
            Ok(None)
        }
        (Err(result), _) | (_, Err(result)) => {
            Err(failure(driver, result, driver.functions().pointer_get_attribute.0))
        }
    }
}

/// Returns an attribute of an address from the driver.
///
/// # Safety
/// The attribute's type is one of at most 8 bytes.
pub(crate) unsafe fn pointer_word<D: Api>(driver: &D, which: u32, ptr: DevicePtr) -> Result<u64, D::Code> {
    // Attributes are 1, 4 or 8 bytes; the bytes that the driver leaves stay 0, and the machine is little-endian.
    let mut word = 0u64;
    let get_attribute = driver.functions().pointer_get_attribute.1;
    // SAFETY: `word` has room for the attribute (the caller's promise); the driver does not access the address.
    let result = unsafe { get_attribute((&raw mut word).cast::<c_void>(), which, ptr.0) };
    if result == D::Code::SUCCESS { Ok(word) } else { Err(result) }
}

/// Makes what is in `owner`'s context reachable from `device`, which is the thread's.
pub(crate) fn enable_peer_access<D: Api>(device: &Device<D>, owner: &Device<D>) -> Result<()> {
    let Entry(name, enable) = device.functions().enable_peer_access;
    // SAFETY: both contexts are retained, and `device`'s is current.
    let result = unsafe { enable(owner.context.raw(), 0) };
    if result == D::PEER_ACCESS_ALREADY_ENABLED {
        device.driver().forget();
        return Ok(());
    }
    reached(device, owner, result, name)
}

/// An error that names both devices, if the driver says that one cannot reach the other.
pub(crate) fn reached<D: Api>(
    device: &Device<D>,
    owner: &Device<D>,
    result: D::Code,
    operation: impl fmt::Display,
) -> Result<()> {
    if D::NO_PEER_ACCESS.contains(&result) {
        return Err(Error::NoPeerAccess {
            from: device.to_string(),
            to: owner.to_string(),
            reason: failure(device.driver(), result, operation).to_string(),
        });
    }
    check(device.driver(), result, operation)
}

/// One allocation or one mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) base: u64,
    pub(crate) size: u64,
}

impl Range {
    /// The allocation that holds `ptr`.
    pub(crate) fn of_allocation<D: Api>(driver: &D, ptr: DevicePtr) -> Result<Self> {
        let Entry(name, get_range) = driver.functions().mem_get_address_range;
        let (mut base, mut size) = (0, 0usize);
        // SAFETY: both are valid for the write; the driver looks the address up and does not access it.
        let result = unsafe { get_range(&raw mut base, &raw mut size, ptr.0) };
        check(driver, result, format_args!("{name}({:#x})", ptr.0))?;
        let range = Self { base, size: size as u64 };
        if range.holds(ptr) {
            Ok(range)
        } else {
            Err(Error::system(name, format!("it gave {range:x?} for {:#x}", ptr.0)))
        }
    }

    pub(crate) fn holds(self, ptr: DevicePtr) -> bool {
        ptr.0 >= self.base && ptr.0 - self.base < self.size
    }

    /// Where `ptr..ptr + len` starts in it, if it is inside as a whole. `advice` is for the error.
    pub(crate) fn offset_of(self, ptr: DevicePtr, len: u64, advice: &str) -> Result<u64> {
        let offset = ptr.0.wrapping_sub(self.base);
        match offset.checked_add(len) {
            Some(end) if self.holds(ptr) && end <= self.size => Ok(offset),
            _ => {
                let (base, size) = (self.base, self.size);
                let reason = format!("the range goes past its allocation ({base:#x}, {size} bytes){advice}");
                Err(not_exportable(ptr, len, reason))
            }
        }
    }
}

pub(crate) fn not_exportable(ptr: DevicePtr, len: u64, reason: impl Into<String>) -> Error {
    Error::NotExportable { address: ptr.0, len, reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_range_inside_one_allocation_can_be_exported() {
        let range = Range { base: 0x1000, size: 0x100 };
        let offset = |ptr, len| range.offset_of(DevicePtr(ptr), len, "");
        assert_eq!(offset(0x1000, 0x100).unwrap(), 0);
        assert_eq!(offset(0x10ff, 1).unwrap(), 0xff);
        for (ptr, len) in [(0x1000, 0x101), (0x10ff, 2), (0xfff, 1), (0x1100, 0), (0x1001, u64::MAX)] {
            let error = offset(ptr, len).unwrap_err();
            assert!(
                matches!(error, Error::NotExportable { address, len: l, .. } if address == ptr && l == len)
            );
        }
    }
}
