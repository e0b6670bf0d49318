//! Finds the allocation behind an address: to share it with other processes, or to reach it from another device.

use mscclpp_gpu_sys::cuda::{
    CUmemoryPool, CUpointer_attribute as Attribute, CuResult, Driver, HANDLE_TYPE_FABRIC,
    HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
};
use parking_lot::Mutex;

use super::{
    Device,
    virtual_memory::{Physical, access_from},
};
use crate::{
    DeviceAllocation, DevicePtr, MemoryExport, Result,
    driver::{
        api::{Api, Sharing},
        export::{self, Range, not_exportable, reached},
        failure::failure,
    },
    memory::ExportHandle,
};

impl Sharing<Self> for Driver {
    fn allocation(device: &'static Device, ptr: DevicePtr) -> Result<DeviceAllocation> {
        let _entered = device.context.enter()?;
        let driver = device.driver();
        Ok(export::allocation(driver, ptr, mapping_of(driver, ptr)?))
    }

    unsafe fn export(device: &'static Device, ptr: DevicePtr, len: u64) -> Result<MemoryExport> {
        let _entered = device.context.enter()?;
        let driver = device.driver();
        match Physical::mapped_at(driver, ptr.0)? {
            Some(physical) => {
                let types =
                    physical.handle_types()? & (HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | HANDLE_TYPE_FABRIC);
                // SAFETY: this attribute is a flag.
                if types == 0 && unsafe { flag(driver, LEGACY_CAPABLE, ptr) } != Ok(true) {
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

    unsafe fn enable_access(
        device: &'static Device,
        owner: &'static Device,
        ptr: DevicePtr,
        len: u64,
    ) -> Result<()> {
        let driver = device.driver();
        let _entered = device.context.enter()?;
        let access = access_from(device.context.device);
        if Physical::mapped_at(driver, ptr.0)?.is_some() {
            // The driver refuses a change to a mapping that another thread is changing.
            static CHANGING: Mutex<()> = Mutex::new(());
            let _changing = CHANGING.lock();
            let mut next = ptr;
            while next.0 < ptr.0.saturating_add(len.max(1)) {
                let mapping = mapping_of(driver, next)?;
                let mut flags = 0;
                // SAFETY: one number is written, one location read, and the address is mapped.
                let result = unsafe {
                    (driver.mem_get_access)(&raw mut flags, &raw const access.location, mapping.base)
                };
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
        let pool = unsafe { word(driver, Attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, ptr) }.unwrap_or(0);
        if let (true, Some(set_access)) = (pool != 0, driver.mem_pool_set_access) {
            // SAFETY: the pool is the one that live memory comes from; one descriptor is read.
            let result = unsafe { set_access(pool as usize as CUmemoryPool, &raw const access, 1) };
            return reached(device, owner, result, "cuMemPoolSetAccess");
        }
        export::enable_peer_access(device, owner)
    }
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
    let mapping = mapping_of(driver, ptr)?;
    let offset = mapping.offset_of(ptr, len, Driver::ON_SEVERAL_ALLOCATIONS)?;
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
    let capable = unsafe { flag(driver, LEGACY_CAPABLE, ptr) };
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
    export::export_plain(driver, ptr, len)
}

fn why_not_plain(driver: &Driver, ptr: DevicePtr) -> &'static str {
    const MEMORY_TYPE_HOST: u64 = 1;
    // SAFETY: these attributes are a flag, a pointer and an `unsigned int`.
    let (managed, pool, kind) = unsafe {
        (
            flag(driver, Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED, ptr),
            word(driver, Attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, ptr),
            word(driver, Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr),
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

/// The mapping that holds `ptr`, virtual memory.
fn mapping_of(driver: &Driver, ptr: DevicePtr) -> Result<Range> {
    // SAFETY: these attributes are an address and a size.
    let (base, size) = unsafe {
        (
            word(driver, Attribute::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, ptr),
            word(driver, Attribute::CU_POINTER_ATTRIBUTE_MAPPING_SIZE, ptr),
        )
    };
    match (base, size) {
        (Ok(base), Ok(size)) if (Range { base, size }).holds(ptr) => Ok(Range { base, size }),
        // Drivers before CUDA 12 do not have these; there the address range is the mapping too.
        _ => Range::of_allocation(driver, ptr),
    }
}

/// # Safety
/// The attribute's type is one of at most 8 bytes.
unsafe fn word(driver: &Driver, which: Attribute, ptr: DevicePtr) -> Result<u64, CuResult> {
    // SAFETY: the caller's promise.
    unsafe { export::pointer_word(driver, which as u32, ptr) }
}

/// # Safety
/// The attribute is a flag, of at most 8 bytes.
unsafe fn flag(driver: &Driver, which: Attribute, ptr: DevicePtr) -> Result<bool, CuResult> {
    // SAFETY: the caller's promise.
    unsafe { word(driver, which, ptr) }.map(|word| word != 0)
}
