//! Shared memory: exported by its owner, imported by its peers.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use mscclpp_core::{
    MemoryRegion, ProcessId, RegionInfo,
    provider::{Registration, RemoteRegion},
};
use mscclpp_gpu::{DeviceAllocation, DevicePtr, ExportHandle, Gpu, ImportedMemory, Platform};
use mscclpp_net::random;
use parking_lot::Mutex;

use crate::{
    error::Error,
    hub::{Export, Hub, HubState},
    message::{Handle, RegionBlob, Request, Token},
    socket,
};

/// One allocation of this process. It is exported once, however many of its regions are registered.
///
/// Only registrations own it, so it is withdrawn with the last of them. After that, its address may be given to other
/// memory.
struct Allocation {
    id: u64,
    token: Token,
    size: u64,
    /// The allocation of the driver whose export is served. It differs from that of other memory at the same addresses. None
    /// while the memory is suspended.
    served: Mutex<Option<DeviceAllocation>>,
    shared: Arc<HubState>,
}

impl Allocation {
    fn serve(&self, handle: ExportHandle, memory: DeviceAllocation) {
        let mut served = self.served.lock();
        self.shared.serve(self.id, Arc::new(Export { token: self.token, handle }));
        *served = Some(memory);
    }

    /// Drops the handle, which would keep the memory.
    fn withdraw(&self) {
        let mut served = self.served.lock();
        self.shared.withdraw(self.id);
        *served = None;
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.shared.withdraw(self.id);
    }
}

/// The allocations exported now, by device and base address.
#[derive(Default)]
pub(crate) struct Exports {
    by_base: Mutex<HashMap<BaseAddress, Weak<Allocation>>>,
}

#[derive(PartialEq, Eq, Hash)]
struct BaseAddress {
    gpu: [u8; 16],
    base: u64,
}

impl Exports {
    /// Exports the allocation around `region`.
    pub(crate) fn register(
        &self,
        hub: &Arc<Hub>,
        gpu: &Gpu,
        region: &Arc<MemoryRegion>,
    ) -> mscclpp_core::Result<IpcRegistration> {
        // SAFETY: a region is live memory as long as it exists (the contract of registering it).
        let export = unsafe { gpu.export(region.ptr(), region.len())? };
        let base = region.ptr().0.wrapping_sub(export.offset);
        let key = BaseAddress { gpu: gpu.properties().uuid, base };
        let memory = gpu.allocation(region.ptr())?;
        let mut by_base = self.by_base.lock();
        let known = by_base.get(&key).and_then(Weak::upgrade);
        let known = known.filter(|a| a.size == export.allocation_size && *a.served.lock() == Some(memory));
        let allocation = match known {
            Some(allocation) => allocation,
            None => {
                let allocation = Arc::new(Allocation {
                    id: u64::from_le_bytes(random()?),
                    token: random()?,
                    size: export.allocation_size,
                    served: Mutex::default(),
                    shared: hub.shared().clone(),
                });
                allocation.serve(export.handle, memory);
                by_base.retain(|_, a| a.strong_count() > 0);
                by_base.insert(key, Arc::downgrade(&allocation));
                allocation
            }
        };
        let blob = RegionBlob {
            token: allocation.token,
            allocation: allocation.id,
            allocation_size: allocation.size,
            offset: export.offset,
            address: hub.address().to_owned(),
        };
        let blob = blob.encode();
        let served = Some(Served { allocation, gpu: gpu.clone(), _hub: hub.clone() });
        Ok(IpcRegistration { blob, region: region.clone(), served })
    }
}

/// A region from which queues of this side write; peers can fetch it if it is served.
pub(crate) struct IpcRegistration {
    blob: Vec<u8>,
    region: Arc<MemoryRegion>,
    served: Option<Served>,
}

/// An allocation that peers can fetch, and its device.
struct Served {
    allocation: Arc<Allocation>,
    gpu: Gpu,
    _hub: Arc<Hub>,
}

impl IpcRegistration {
    /// Makes a registration of memory for local use.
    pub(crate) fn local(region: &Arc<MemoryRegion>) -> Self {
        Self { blob: Vec::new(), region: region.clone(), served: None }
    }

    pub(crate) fn region(&self) -> &Arc<MemoryRegion> {
        &self.region
    }
}

impl Registration for IpcRegistration {
    fn blob(&self) -> &[u8] {
        &self.blob
    }

    fn suspend(&self) -> mscclpp_core::Result<()> {
        self.served.iter().for_each(|served| served.allocation.withdraw());
        Ok(())
    }

    fn resume(&self) -> mscclpp_core::Result<()> {
        let Some(Served { allocation, gpu, .. }) = &self.served else { return Ok(()) };
        if allocation.served.lock().is_none() {
            // SAFETY: a region is live memory as long as it exists (the contract of registering it).
            let export = unsafe { gpu.export(self.region.ptr(), self.region.len())? };
            allocation.serve(export.handle, gpu.allocation(self.region.ptr())?);
        }
        Ok(())
    }
}

/// Mappings of peers' allocations that are in use, so that each is mapped once per device.
///
/// Each allocation has its own lock, which is held until its owner answers. So an owner that does not answer delays
/// only callers that ask for the same allocation.
#[derive(Default)]
pub(crate) struct Imports {
    mappings: Mutex<HashMap<MappingKey, Arc<Mutex<Weak<Mapping>>>>>,
}

impl Imports {
    /// Returns the allocation of `blob`, which belongs to `process`, mapped for `gpu`.
    pub(crate) fn mapping(
        &self,
        process: ProcessId,
        blob: &RegionBlob,
        gpu: &Gpu,
    ) -> mscclpp_core::Result<Arc<Mapping>> {
        let key = MappingKey { process, allocation: blob.allocation, gpu: gpu.properties().uuid };
        let entry = {
            let mut mappings = self.mappings.lock();
            // Removes entries whose mapping is dropped and which no caller holds; callers take theirs under this
            // lock.
            mappings.retain(|_, entry| Arc::strong_count(entry) > 1 || entry.lock().strong_count() > 0);
            mappings.entry(key).or_default().clone()
        };
        let mut known = entry.lock();
        match known.upgrade() {
            Some(mapping)
                if (mapping.blob.token, mapping.blob.allocation_size)
                    == (blob.token, blob.allocation_size) =>
            {
                Ok(mapping)
            }
            Some(_) => {
                let problem = "it contradicts an earlier region of the same allocation";
                Err(Error::Malformed { what: "a region", problem }.into())
            }
            None => {
                let memory = gpu.import(&fetch(blob)?, blob.allocation_size)?;
                let mapping = Arc::new(Mapping { memory, blob: blob.clone() });
                *known = Arc::downgrade(&mapping);
                Ok(mapping)
            }
        }
    }
}

#[derive(PartialEq, Eq, Hash)]
struct MappingKey {
    process: ProcessId,
    allocation: u64,
    gpu: [u8; 16],
}

/// A peer's allocation, mapped here.
pub(crate) struct Mapping {
    memory: ImportedMemory,
    /// The region for which it was mapped: the token and size of the allocation, of which the driver accepted this size and no
    /// other, and where its owner can be asked for it again.
    blob: RegionBlob,
}

/// A region that can be used here: mapped from a peer, or of this same process.
pub(crate) struct IpcRegion {
    ptr: DevicePtr,
    native_atomics: bool,
    whole_lines: bool,
    keep: Keep,
}

/// The owner of the memory, which must live as long as the region is used.
enum Keep {
    Mapped(Arc<Mapping>),
    /// Memory of the device `owner`, to which `gpu` has access.
    Local {
        region: Arc<MemoryRegion>,
        owner: Gpu,
        gpu: Gpu,
    },
}

impl IpcRegion {
    pub(crate) fn address(&self) -> DevicePtr {
        self.ptr
    }

    /// Uses memory of this process at its own address, and makes it accessible to `gpu` if it belongs to another
    /// device.
    pub(crate) fn local(region: Arc<MemoryRegion>, owner: &Gpu, gpu: &Gpu) -> mscclpp_core::Result<Self> {
        // SAFETY: a region is live memory of its device as long as it exists (the contract of registering it).
        unsafe { gpu.enable_access(owner, region.ptr(), region.len())? };
        let native_atomics = gpu.peer_access(owner)?.native_atomics;
        let ptr = region.ptr();
        let keep = Keep::Local { region, owner: owner.clone(), gpu: gpu.clone() };
        Ok(Self::new(ptr, gpu, native_atomics, keep))
    }

    /// Uses memory of a peer: its handle is fetched from its owner, unless this process has it mapped already.
    pub(crate) fn fetch(imports: &Imports, info: &RegionInfo<'_>, gpu: &Gpu) -> mscclpp_core::Result<Self> {
        let blob = RegionBlob::decode(info.blob, info.len)?;
        let mapping = imports.mapping(info.process, &blob, gpu)?;
        let ptr = mapping.memory.ptr().add(blob.offset);
        Ok(Self::new(ptr, gpu, atomics_reach(gpu, &info.device_uuid)?, Keep::Mapped(mapping)))
    }

    fn new(ptr: DevicePtr, gpu: &Gpu, native_atomics: bool, keep: Keep) -> Self {
        Self { ptr, native_atomics, whole_lines: lines_arrive_whole(gpu, native_atomics), keep }
    }
}

/// Returns the handle of an allocation, from its owner.
fn fetch(blob: &RegionBlob) -> mscclpp_core::Result<ExportHandle> {
    let request = Request::Fetch { token: blob.token, id: blob.allocation };
    let (_, handle, descriptor) = socket::ask(&blob.address, request)?;
    match (handle, descriptor) {
        (Handle::FileDescriptor, Some(fd)) => Ok(ExportHandle::FileDescriptor(fd)),
        (Handle::Ipc(bytes), None) => Ok(ExportHandle::IpcHandle(bytes)),
        (Handle::Fabric(bytes), None) => Ok(ExportHandle::Fabric(bytes)),
        _ => Err(Error::Malformed { what: "an answer", problem: "it has no handle of memory" }.into()),
    }
}

/// Whether atomics of `gpu` work on the memory of the device with `uuid`. If this process does not see that device, it
/// cannot ask; the answer is then no, and signals are ordinary stores.
fn atomics_reach(gpu: &Gpu, uuid: &[u8; 16]) -> mscclpp_core::Result<bool> {
    Ok(gpu.peer_access_by_uuid(uuid)?.is_some_and(|access| access.native_atomics))
}

/// Whether 128 bytes that a warp of `gpu` stores at once arrive as a whole. That holds, from Volta on, over NVLink,
/// where atomics are native, and in a GPU's own memory. PCIe may split them, and nothing is known about AMD's links.
/// The threads of a simulated device store one after the other, and the thread with a line's flag stores last.
fn lines_arrive_whole(gpu: &Gpu, native_atomics: bool) -> bool {
    match gpu.properties().compute_capability {
        Some(capability) => native_atomics && capability >= (7, 0),
        None => gpu.platform() == Platform::Sim,
    }
}

impl RemoteRegion for IpcRegion {
    fn ptr(&self) -> Option<DevicePtr> {
        Some(self.ptr)
    }

    fn native_atomics(&self) -> bool {
        self.native_atomics
    }

    fn whole_lines(&self) -> bool {
        self.whole_lines
    }

    unsafe fn suspend(&self) -> mscclpp_core::Result<()> {
        match &self.keep {
            // SAFETY: the caller's promise.
            Keep::Mapped(mapping) => unsafe { mapping.memory.suspend() }.map_err(Into::into),
            // Memory of this process is mapped once, by its owner.
            Keep::Local { .. } => Ok(()),
        }
    }

    fn resume(&self) -> mscclpp_core::Result<()> {
        match &self.keep {
            Keep::Mapped(mapping) => mapping.memory.resume(&fetch(&mapping.blob)?).map_err(Into::into),
            Keep::Local { region, owner, gpu } => {
                // SAFETY: a region is live memory of its device as long as it exists (the contract of registering it).
                unsafe { gpu.enable_access(owner, region.ptr(), region.len()) }.map_err(Into::into)
            }
        }
    }
}
