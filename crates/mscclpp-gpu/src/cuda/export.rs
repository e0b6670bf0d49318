//! Finds the allocation behind an address: to share it with other processes, or to reach it from another device.

use std::{
    ffi::{c_int, c_void},
    os::fd::{FromRawFd, OwnedFd},
};

use mscclpp_gpu_sys::cuda::{
    CUmemoryPool, CUpointer_attribute as Attribute, CuResult, Driver, HANDLE_TYPE_FABRIC,
    HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, IpcMemHandle, RANGE_HANDLE_DMA_BUF,
};
use parking_lot::Mutex;

use super::{
    device::Device,
    failure::{check, failure},
    virtual_memory::{Physical, access_from},
};
use crate::{DevicePtr, DmaBuf, Error, MemoryExport, Result, memory::ExportHandle};

/// What another process needs to map the allocation that holds the range.
///
/// # Safety
/// The range is live memory of this process.
pub(super) unsafe fn export(device: &'static Device, ptr: DevicePtr, len: u64) -> Result<MemoryExport> {
    let _entered = device.context().enter()?;
    let driver = device.driver();
    match Physical::mapped_at(driver, ptr.0)? {
        Some(physical) => {
            let types = physical.handle_types()? & (HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | HANDLE_TYPE_FABRIC);
            // SAFETY: this attribute is a flag.
            if types == 0 && unsafe { pointer_flag(driver, LEGACY_CAPABLE, ptr) } != Ok(true) {
                return Err(not_exportable(ptr, len, UNSHAREABLE));
            }
            // A driver may back plain allocations with physical memory that can be named as well.
            if types == 0 {
                export_plain(driver, ptr, len)
            } else {
                export_virtual(driver, &physical, types, ptr, len)
            }
        }
        None => export_plain(driver, ptr, len),
    }
}

/// A dmabuf of the pages that hold the range.
///
/// # Safety
/// The range is live memory of this process.
pub(super) unsafe fn export_dma_buf(device: &'static Device, ptr: DevicePtr, len: u64) -> Result<DmaBuf> {
    let driver = device.driver();
    let Some(export) = driver.mem_get_handle_for_address_range else {
        return Err(not_exportable(ptr, len, "the driver is older than CUDA 11.7 and has no dmabuf"));
    };
    let _entered = device.context().enter()?;
    let page = rustix::param::page_size() as u64;
    let start = ptr.0 / page * page;
    let offset = ptr.0 - start;
    let size = (offset + len).next_multiple_of(page);
    let mut fd: c_int = -1;
    // SAFETY: `fd` is valid for the write of a descriptor, which is what this type of handle is.
    let result = unsafe { export((&raw mut fd).cast(), start, size as usize, RANGE_HANDLE_DMA_BUF, 0) };
    check(driver, result, format!("cuMemGetHandleForAddressRange({start:#x}, {size} bytes, DMA_BUF_FD)"))?;
    // SAFETY: a new descriptor, which nobody else has.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    Ok(DmaBuf { fd, offset, size })
}

const LEGACY_CAPABLE: Attribute = Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE;

const UNSHAREABLE: &str = "this virtual-memory allocation was made without a shareable handle type; ask its allocator \
     for CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, or use Gpu::allocate";

fn export_virtual(
    driver: &'static Driver,
    physical: &Physical,
    types: u32,
    ptr: DevicePtr,
    len: u64,
) -> Result<MemoryExport> {
    // The mapping, not the reservation: an allocator may map many allocations into one range of addresses, each of
    // them from its first byte on (`cuMemMap` takes no other offset). So the offset in the mapping is the offset in
    // the allocation, and a range inside one mapping is inside one allocation.
    let mapping = Range::of_mapping(driver, ptr)?;
    let offset = mapping.offset_of(ptr, len)?;
    let fabric = (types & HANDLE_TYPE_FABRIC != 0).then(|| physical.export_fabric());
    let (handle, fabric) = if types & HANDLE_TYPE_POSIX_FILE_DESCRIPTOR != 0 {
        if let Some(Err(error)) = &fabric {
            tracing::debug!(target: "mscclpp::gpu", %error, "no fabric handle");
        }
        (ExportHandle::FileDescriptor(physical.export_fd()?), fabric.and_then(Result::ok))
    } else {
        let bytes = fabric.unwrap_or_else(|| Err(not_exportable(ptr, len, UNSHAREABLE)))?;
        (ExportHandle::Fabric(bytes), Some(bytes))
    };
    Ok(MemoryExport { handle, fabric, allocation_size: mapping.size, offset })
}

fn export_plain(driver: &Driver, ptr: DevicePtr, len: u64) -> Result<MemoryExport> {
    // SAFETY: this attribute is a flag.
    let capable = unsafe { pointer_flag(driver, LEGACY_CAPABLE, ptr) };
    match capable {
        Ok(true) => {}
        Ok(false) => return Err(not_exportable(ptr, len, why_not_plain(driver, ptr))),
        Err(CuResult::INVALID_VALUE) => {
            return Err(not_exportable(
                ptr,
                len,
                "the driver does not know the address; it must be CUDA device memory",
            ));
        }
        Err(result) => {
            return Err(failure(driver, result, "cuPointerGetAttribute(IS_LEGACY_CUDA_IPC_CAPABLE)"));
        }
    }
    let allocation = Range::of_allocation(driver, ptr)?;
    let offset = allocation.offset_of(ptr, len)?;
    let mut handle = IpcMemHandle { reserved: [0; 64] };
    // SAFETY: `handle` is valid for the write.
    let result = unsafe { (driver.ipc_get_mem_handle)(&raw mut handle, allocation.base) };
    check(driver, result, format!("cuIpcGetMemHandle({:#x})", allocation.base))?;
    Ok(MemoryExport {
        handle: ExportHandle::IpcHandle(handle.reserved),
        fabric: None,
        allocation_size: allocation.size,
        offset,
    })
}

fn why_not_plain(driver: &Driver, ptr: DevicePtr) -> &'static str {
    const MEMORY_TYPE_HOST: u64 = 1;
    // SAFETY: these attributes are a flag, a pointer and an `unsigned int`.
    let (managed, pool, kind) = unsafe {
        (
            pointer_flag(driver, Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED, ptr),
            pointer_word(driver, Attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, ptr),
            pointer_word(driver, Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr),
        )
    };
    if managed == Ok(true) {
        "it is managed memory, which cannot be shared; use Gpu::allocate"
    } else if pool.is_ok_and(|pool| pool != 0) {
        "it comes from a stream-ordered pool (cudaMallocAsync), which legacy IPC cannot share; use Gpu::allocate or cudaMalloc"
    } else if kind == Ok(MEMORY_TYPE_HOST) {
        "it is host memory; only device memory can be shared"
    } else {
        "the driver cannot share memory of this kind; use Gpu::allocate"
    }
}

/// The number of the device that the memory is on.
pub(super) fn owner_of(driver: &Driver, ptr: DevicePtr) -> Result<Option<usize>> {
    const MEMORY_TYPE_DEVICE: u64 = 2;
    // SAFETY: these attributes are an `unsigned int` and an `int`.
    let (kind, ordinal) = unsafe {
        (
            pointer_word(driver, Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr),
            pointer_word(driver, Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr),
        )
    };
    match (kind, ordinal) {
        (Ok(MEMORY_TYPE_DEVICE), Ok(ordinal)) => {
            Ok(i32::try_from(ordinal).ok().map(|ordinal| ordinal as usize))
        }
        (Ok(_), Ok(_)) | (Err(CuResult::INVALID_VALUE), _) | (_, Err(CuResult::INVALID_VALUE)) => Ok(None),
        (Err(result), _) | (_, Err(result)) => Err(failure(driver, result, "cuPointerGetAttribute")),
    }
}

/// Makes a range reachable from `device`.
///
/// # Safety
/// The range is live memory of `owner`, another device, in this process.
pub(super) unsafe fn enable_access(
    device: &'static Device,
    owner: &'static Device,
    ptr: DevicePtr,
    len: u64,
) -> Result<()> {
    let driver = device.driver();
    let _entered = device.context().enter()?;
    let access = access_from(device.handle());
    if Physical::mapped_at(driver, ptr.0)?.is_some() {
        // The driver refuses what another thread is doing to the same mapping.
        static CHANGING: Mutex<()> = Mutex::new(());
        let _changing = CHANGING.lock();
        let mut next = ptr;
        while next.0 < ptr.0.saturating_add(len.max(1)) {
            let mapping = Range::of_mapping(driver, next)?;
            let mut flags = 0;
            // SAFETY: one number is written, one location read, and the address is mapped.
            let result =
                unsafe { (driver.mem_get_access)(&raw mut flags, &raw const access.location, mapping.base) };
            reached(device, owner, result, "cuMemGetAccess")?;
            // Access that is there is not set again: kernels may be using it.
            if flags != u64::from(access.flags) {
                // SAFETY: the range is one whole mapping; one descriptor is read. Other devices keep their access.
                let result = unsafe {
                    (driver.mem_set_access)(mapping.base, mapping.size as usize, &raw const access, 1)
                };
                reached(device, owner, result, "cuMemSetAccess")?;
            }
            next = DevicePtr(mapping.base + mapping.size);
        }
        return Ok(());
    }
    // SAFETY: this attribute is a pointer.
    let pool =
        unsafe { pointer_word(driver, Attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, ptr) }.unwrap_or(0);
    if let (true, Some(set_access)) = (pool != 0, driver.mem_pool_set_access) {
        // SAFETY: the pool is the one that live memory comes from; one descriptor is read.
        let result = unsafe { set_access(pool as usize as CUmemoryPool, &raw const access, 1) };
        return reached(device, owner, result, "cuMemPoolSetAccess");
    }
    // SAFETY: both contexts are retained, and `device`'s is current.
    match unsafe { (driver.ctx_enable_peer_access)(owner.context().raw(), 0) } {
        CuResult::PEER_ACCESS_ALREADY_ENABLED => Ok(()),
        result => reached(device, owner, result, "cuCtxEnablePeerAccess"),
    }
}

fn reached(device: &Device, owner: &Device, result: CuResult, operation: &str) -> Result<()> {
    let driver = device.driver();
    match result {
        CuResult::PEER_ACCESS_UNSUPPORTED | CuResult::TOO_MANY_PEERS | CuResult::INVALID_DEVICE => {
            Err(Error::NoPeerAccess {
                from: device.display(),
                to: owner.display(),
                reason: failure(driver, result, operation).to_string(),
            })
        }
        _ => check(driver, result, operation),
    }
}

/// One allocation or one mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    base: u64,
    size: u64,
}

impl Range {
    /// The mapping that holds `ptr`, virtual memory.
    fn of_mapping(driver: &Driver, ptr: DevicePtr) -> Result<Self> {
        // SAFETY: these attributes are an address and a size.
        let (base, size) = unsafe {
            (
                pointer_word(driver, Attribute::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, ptr),
                pointer_word(driver, Attribute::CU_POINTER_ATTRIBUTE_MAPPING_SIZE, ptr),
            )
        };
        match (base, size) {
            (Ok(base), Ok(size)) if (Self { base, size }).holds(ptr) => Ok(Self { base, size }),
            // Drivers before CUDA 12 do not have these; there the address range is the mapping too.
            _ => Self::of_allocation(driver, ptr),
        }
    }

    fn of_allocation(driver: &Driver, ptr: DevicePtr) -> Result<Self> {
        let (mut base, mut size) = (0, 0usize);
        // SAFETY: both are valid for the write; the driver looks the address up and does not access it.
        let result = unsafe { (driver.mem_get_address_range)(&raw mut base, &raw mut size, ptr.0) };
        check(driver, result, format!("cuMemGetAddressRange({:#x})", ptr.0))?;
        let range = Self { base, size: size as u64 };
        if range.holds(ptr) {
            Ok(range)
        } else {
            Err(Error::system("cuMemGetAddressRange", format!("it gave {range:x?} for {:#x}", ptr.0)))
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
                format!(
                    "the range goes past its allocation ({:#x}, {} bytes); memory made of several allocations (such as \
                     PyTorch's expandable segments) is shared one allocation at a time",
                    self.base, self.size
                ),
            )),
        }
    }
}

fn not_exportable(ptr: DevicePtr, len: u64, reason: impl Into<String>) -> Error {
    Error::NotExportable { address: ptr.0, len, reason: reason.into() }
}

/// # Safety
/// The attribute's type is one of at most 8 bytes.
unsafe fn pointer_word(
    driver: &Driver,
    which: Attribute,
    ptr: DevicePtr,
) -> std::result::Result<u64, CuResult> {
    // Attributes are 1, 4 or 8 bytes; the bytes that the driver leaves stay 0, and the machine is little-endian.
    let mut word = 0u64;
    // SAFETY: `word` has room for the attribute (the caller's promise); the driver does not access the address.
    match unsafe { (driver.pointer_get_attribute)((&raw mut word).cast::<c_void>(), which as u32, ptr.0) } {
        CuResult::SUCCESS => Ok(word),
        result => Err(result),
    }
}

/// # Safety
/// The attribute is a flag, of at most 8 bytes.
unsafe fn pointer_flag(
    driver: &Driver,
    which: Attribute,
    ptr: DevicePtr,
) -> std::result::Result<bool, CuResult> {
    // SAFETY: the caller's promise.
    unsafe { pointer_word(driver, which, ptr) }.map(|word| word != 0)
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
