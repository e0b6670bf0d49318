//! Virtual memory: physical memory that is made or imported, and then mapped at an address.

use std::{
    ffi::{c_int, c_void},
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use mscclpp_gpu_sys::{
    Entry,
    cuda::{
        AccessDesc, AllocFlags, AllocationProp, CUdevice, CUdevice_attribute as Attribute, CUmemAccess_flags,
        CUmemAllocationGranularity_flags, CUmemAllocationType, CUmemGenericAllocationHandle,
        CUmemLocationType, CuResult, Driver, HANDLE_TYPE_FABRIC, HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, Location,
    },
};
use parking_lot::Mutex;

use super::Device;
use crate::{
    DevicePtr, Error, ExportHandle, ExportKinds, Result,
    backend::{DeviceBackend, MemoryBackend},
    driver::{
        api::Api,
        device::attribute,
        failure::{check, failure, log_failure},
        platform::device_count,
    },
};

/// The way in which device memory is made.
#[derive(Debug, Clone, Copy)]
pub(super) enum Placement {
    /// Memory from `cuMemCreate`, in multiples of `granularity` bytes.
    Virtual { prop: AllocationProp, granularity: u64 },
    /// Plain memory from `cuMemAlloc`.
    Plain,
}

// SAFETY: the one pointer in `AllocationProp` is of Windows alone and null.
unsafe impl Send for Placement {}
// SAFETY: the same as above.
unsafe impl Sync for Placement {}

impl Placement {
    /// Finds what works by making and exporting one allocation: a device attribute alone does not tell that fabric
    /// handles are set up, or that a container permits file descriptors.
    pub(super) fn probe(driver: &'static Driver, device: CUdevice) -> Result<Self> {
        let has = |which: Attribute| attribute(driver, device, which as u32).is_ok_and(|value| value != 0);
        if !has(Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)
            || !has(Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)
        {
            return Ok(Self::Plain);
        }
        let rdma = has(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
        let fd = HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let mut wishes = vec![(fd, rdma), (fd, false)];
        if has(Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED) {
            wishes.insert(0, (fd | HANDLE_TYPE_FABRIC, rdma));
        }
        for (handle_types, rdma) in wishes {
            match Self::attempt(driver, &prop(device, handle_types, rdma)) {
                Ok(placement) => return Ok(placement),
                Err(error) => {
                    tracing::debug!(target: "mscclpp::gpu", device, handle_types, rdma, %error, "memory kind refused");
                }
            }
        }
        Ok(Self::Plain)
    }

    fn attempt(driver: &'static Driver, prop: &AllocationProp) -> Result<Self> {
        let minimum = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM as u32;
        let mut granularity = 0usize;
        // SAFETY: `granularity` is valid for the write, `prop` for the read.
        let result = unsafe { (driver.mem_get_allocation_granularity)(&raw mut granularity, prop, minimum) };
        check(driver, result, "cuMemGetAllocationGranularity")?;
        let granularity = granularity.max(1);
        let works = Self::Virtual { prop: *prop, granularity: granularity as u64 };
        let fabric = prop.requested_handle_types & HANDLE_TYPE_FABRIC != 0;
        let physical = match Physical::create(driver, granularity, prop) {
            Ok(physical) => physical,
            // A full device refuses everything: take it that the plain kind works, and do not count on the other.
            Err(Error::Driver { code, .. }) if code == CuResult::OUT_OF_MEMORY.0 && !fabric => {
                return Ok(works);
            }
            Err(error) => return Err(error),
        };
        physical.export_fd()?;
        if fabric {
            physical.export_fabric()?;
        }
        Ok(works)
    }

    pub(super) fn export_kinds(&self) -> ExportKinds {
        match self {
            Self::Virtual { prop, .. } => ExportKinds {
                ipc_handle: false,
                file_descriptor: prop.requested_handle_types & HANDLE_TYPE_POSIX_FILE_DESCRIPTOR != 0,
                fabric: prop.requested_handle_types & HANDLE_TYPE_FABRIC != 0,
            },
            Self::Plain => ExportKinds { ipc_handle: true, ..ExportKinds::default() },
        }
    }
}

fn prop(device: CUdevice, handle_types: u32, rdma: bool) -> AllocationProp {
    AllocationProp {
        kind: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED as u32,
        requested_handle_types: handle_types,
        location: location(device),
        alloc_flags: AllocFlags { gpu_direct_rdma_capable: u8::from(rdma), ..AllocFlags::default() },
        ..AllocationProp::default()
    }
}

fn location(device: CUdevice) -> Location {
    Location { kind: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as u32, id: device }
}

/// Returns the descriptor for reading and writing from `device`.
pub(super) fn access_from(device: CUdevice) -> AccessDesc {
    AccessDesc {
        location: location(device),
        flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE as u32,
    }
}

/// Physical memory. Mappings keep it alive; this value only names it.
pub(super) struct Physical {
    driver: &'static Driver,
    raw: CUmemGenericAllocationHandle,
}

impl Physical {
    pub(super) fn create(driver: &'static Driver, size: usize, prop: &AllocationProp) -> Result<Self> {
        let mut raw = 0;
        // SAFETY: `raw` is valid for the write, `prop` for the read.
        let result = unsafe { (driver.mem_create)(&raw mut raw, size, prop, 0) };
        check(driver, result, format!("cuMemCreate({size} bytes on device {})", prop.location.id))?;
        Ok(Self { driver, raw })
    }

    /// Returns the memory of a handle, which is no IPC handle.
    pub(super) fn import(driver: &'static Driver, handle: &ExportHandle) -> Result<Self> {
        let mut fabric;
        let (os_handle, kind, what) = match handle {
            ExportHandle::FileDescriptor(fd) => (
                // The driver takes the descriptor's number in place of a pointer, and does not take the descriptor over.
                fd.as_raw_fd() as usize as *mut c_void,
                HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                "file descriptor",
            ),
            ExportHandle::Fabric(bytes) => {
                fabric = *bytes;
                (fabric.as_mut_ptr().cast(), HANDLE_TYPE_FABRIC, "fabric handle")
            }
            ExportHandle::IpcHandle(_) => {
                return Err(Error::invalid("an IPC handle is of plain memory, and not of virtual memory"));
            }
        };
        let mut raw = 0;
        // SAFETY: `raw` is valid for the write; `os_handle` is what `kind` says, and lives for the call.
        let result = unsafe { (driver.mem_import_from_shareable_handle)(&raw mut raw, os_handle, kind) };
        check(driver, result, format!("cuMemImportFromShareableHandle({what})"))?;
        Ok(Self { driver, raw })
    }

    /// Returns the physical memory at `address`, unless nothing of this kind is mapped there.
    pub(super) fn mapped_at(driver: &'static Driver, address: u64) -> Result<Option<Self>> {
        let mut raw = 0;
        // SAFETY: `raw` is valid for the write; the driver looks the address up and does not access it.
        match unsafe { (driver.mem_retain_allocation_handle)(&raw mut raw, address as *mut c_void) } {
            CuResult::SUCCESS => Ok(Some(Self { driver, raw })),
            CuResult::INVALID_VALUE | CuResult::NOT_SUPPORTED | CuResult::NOT_PERMITTED => Ok(None),
            result => Err(failure(driver, result, format!("cuMemRetainAllocationHandle({address:#x})"))),
        }
    }

    /// Returns the kinds of handles that it can be shared by.
    pub(super) fn handle_types(&self) -> Result<u32> {
        let mut prop = AllocationProp::default();
        // SAFETY: `prop` is valid for the write, and any value of its fields is valid.
        let result =
            unsafe { (self.driver.mem_get_allocation_properties_from_handle)(&raw mut prop, self.raw) };
        check(self.driver, result, "cuMemGetAllocationPropertiesFromHandle")?;
        Ok(prop.requested_handle_types)
    }

    pub(super) fn export_fd(&self) -> Result<OwnedFd> {
        let mut fd: c_int = -1;
        let kind = HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        // SAFETY: for this kind the driver writes one `int`.
        let result =
            unsafe { (self.driver.mem_export_to_shareable_handle)((&raw mut fd).cast(), self.raw, kind, 0) };
        check(self.driver, result, "cuMemExportToShareableHandle(file descriptor)")?;
        if fd < 0 {
            return Err(Error::system(
                "cuMemExportToShareableHandle",
                format!("it gave the descriptor {fd}"),
            ));
        }
        // SAFETY: the driver made the descriptor for the caller, who owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)
            .map_err(|error| Error::system("fcntl(F_SETFD, FD_CLOEXEC)", error))?;
        Ok(fd)
    }

    pub(super) fn export_fabric(&self) -> Result<[u8; 64]> {
        let mut bytes = [0u8; 64];
        // SAFETY: for this kind the driver writes 64 bytes.
        let result = unsafe {
            (self.driver.mem_export_to_shareable_handle)(
                bytes.as_mut_ptr().cast(),
                self.raw,
                HANDLE_TYPE_FABRIC,
                0,
            )
        };
        check(self.driver, result, "cuMemExportToShareableHandle(fabric handle)")?;
        Ok(bytes)
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        // SAFETY: each value was made by one call that counts as a reference.
        log_failure(self.driver, unsafe { (self.driver.mem_release)(self.raw) }, "cuMemRelease");
    }
}

/// Physical memory at an address, readable and writable from one device.
pub(super) struct Mapping {
    device: &'static Device,
    address: u64,
    size: u64,
    /// Whether it is mapped; otherwise the addresses are only reserved.
    is_mapped: Mutex<bool>,
}

impl Mapping {
    pub(super) fn new(device: &'static Device, physical: &Physical, size: u64) -> Result<Self> {
        let driver = device.driver();
        let mut address = 0;
        // SAFETY: `address` is valid for the write; 0 leaves alignment and place to the driver.
        let result = unsafe { (driver.mem_address_reserve)(&raw mut address, size as usize, 0, 0, 0) };
        check(driver, result, format!("cuMemAddressReserve({size} bytes)"))?;
        let mapping = Self { device, address, size, is_mapped: Mutex::new(false) };
        mapping.map(physical, &mut mapping.is_mapped.lock())?;
        Ok(mapping)
    }

    /// Maps memory at the addresses, where nothing is mapped.
    fn map(&self, physical: &Physical, is_mapped: &mut bool) -> Result<()> {
        let &Self { device, address, size, .. } = self;
        let driver = device.driver();
        // SAFETY: the range is reserved, with this size, and empty; the offset must be 0.
        let result = unsafe { (driver.mem_map)(address, size as usize, 0, physical.raw, 0) };
        check(driver, result, format!("cuMemMap({size} bytes)"))?;
        *is_mapped = true;
        let access = access_from(device.context.device);
        // SAFETY: the range is mapped as a whole; one descriptor is read.
        let result = unsafe { (driver.mem_set_access)(address, size as usize, &raw const access, 1) };
        check(driver, result, format!("cuMemSetAccess({size} bytes, from {device})"))
    }
}

impl MemoryBackend for Mapping {
    fn ptr(&self) -> DevicePtr {
        DevicePtr(self.address)
    }

    fn let_all_access(&self) -> Result<()> {
        let (driver, own) = (self.device.driver(), self.device.context.device);
        let _entered = self.device.context.enter()?;
        let Entry(name, can_access) = driver.common.device_can_access_peer;
        for id in 0..device_count::<Driver>()? {
            let (other, mut reaches) = (driver.device(id)?, 0);
            if other == own {
                continue;
            }
            // SAFETY: `reaches` is valid for the write.
            check(driver, unsafe { can_access(&raw mut reaches, other, own) }, name)?;
            if reaches != 0 {
                let access = access_from(other);
                // SAFETY: the range is one whole mapping; one descriptor is read. Other devices keep their access.
                let result = unsafe {
                    (driver.mem_set_access)(self.address, self.size as usize, &raw const access, 1)
                };
                check(driver, result, format_args!("cuMemSetAccess({} bytes, from device {id})", self.size))?;
            }
        }
        Ok(())
    }

    fn can_suspend(&self) -> bool {
        true
    }

    unsafe fn suspend(&self) -> Result<()> {
        let mut is_mapped = self.is_mapped.lock();
        if *is_mapped {
            let driver = self.device.driver();
            let _entered = self.device.context.enter()?;
            // SAFETY: mapped as one range, which nothing accesses any more (the caller's promise).
            let result = unsafe { (driver.mem_unmap)(self.address, self.size as usize) };
            check(driver, result, format!("cuMemUnmap({} bytes)", self.size))?;
            *is_mapped = false;
        }
        Ok(())
    }

    fn resume(&self, handle: Option<&ExportHandle>) -> Result<()> {
        let mut is_mapped = self.is_mapped.lock();
        if *is_mapped {
            return Ok(());
        }
        let driver = self.device.driver();
        let entered = self.device.context.enter()?;
        let physical = match (handle, &self.device.extra.placement) {
            (Some(handle), _) => Physical::import(driver, handle)?,
            (None, Placement::Virtual { prop, .. }) => Physical::create(driver, self.size as usize, prop)?,
            (None, Placement::Plain) => return Err(Error::invalid("this device has no virtual memory")),
        };
        let mapped = self.map(&physical, &mut is_mapped);
        drop(entered);
        let resumed = mapped.and_then(|()| match handle {
            Some(_) => Ok(()),
            // SAFETY: the range was just mapped, and nothing uses it yet.
            None => unsafe { self.device.fill(self.ptr(), self.size, 0) },
        });
        // Memory without access or with old content is not resumed: the next call starts again.
        if resumed.is_err() && std::mem::take(&mut *is_mapped) {
            let (address, size) = (self.address, self.size as usize);
            // SAFETY: mapped above as one range, which nothing uses yet.
            self.device
                .context
                .take_down(|driver| ("cuMemUnmap", unsafe { (driver.mem_unmap)(address, size) }));
        }
        resumed
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let (context, address, size) = (&self.device.context, self.address, self.size as usize);
        if *self.is_mapped.get_mut() {
            // SAFETY: mapped by `map` as one range. That no kernel uses it any more was promised at its launch.
            context.take_down(|driver| ("cuMemUnmap", unsafe { (driver.mem_unmap)(address, size) }));
        }
        // SAFETY: reserved by `new`, and nothing is mapped there any more.
        context.take_down(|driver| ("cuMemAddressFree", unsafe { (driver.mem_address_free)(address, size) }));
    }
}
