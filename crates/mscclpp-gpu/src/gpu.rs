use std::{fmt, sync::Arc};

use crate::{
    DeviceAllocation, DevicePtr, DmaBuf, Error, GpuDirect, GpuProperties, MemoryExport, MemoryInfo,
    PeerAccess, Platform, Result, backend::DeviceBackend, fork, fork::OfProcess, object::check_all,
};

/// A device: a GPU, or a simulated one.
///
/// Cheap to clone; clones are the same device. On CUDA it holds the device's *primary* context, which PyTorch, CuPy
/// and cudarc use too, so that memory and streams can be shared with them.
#[derive(Clone)]
pub struct Gpu {
    backend: OfProcess<Arc<dyn DeviceBackend>>,
}

impl Gpu {
    pub(crate) fn new(backend: Arc<dyn DeviceBackend>) -> Self {
        Self { backend: OfProcess::new(backend) }
    }

    /// Returns the device for use, or an error in a forked child.
    pub(crate) fn backend(&self) -> Result<&Arc<dyn DeviceBackend>> {
        self.backend.here()
    }

    /// The device's properties.
    #[must_use]
    pub fn properties(&self) -> &GpuProperties {
        self.backend.properties()
    }

    /// The platform of the device.
    #[must_use]
    pub fn platform(&self) -> Platform {
        self.properties().platform
    }

    /// The number of the device in this process.
    #[must_use]
    pub fn id(&self) -> usize {
        self.properties().id
    }

    /// The NUMA node to which the device is attached, for [`numa::bind_thread`](crate::numa::bind_thread). `None` if
    /// the system does not know it, as on many virtual machines, and for simulated devices.
    #[must_use]
    pub fn numa_node(&self) -> Option<u32> {
        self.properties().numa_node
    }

    /// Returns how much memory is free, and how much there is.
    ///
    /// Every simulated device has all the memory of the node, and the memory that this process has allocated on the
    /// device counts as in use.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn memory_info(&self) -> Result<MemoryInfo> {
        self.backend()?.memory_info()
    }

    /// Asks the driver how this device reaches `peer`'s memory. A device always reaches its own.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a device of another platform; [`Error::Driver`].
    pub fn peer_access(&self, peer: &Gpu) -> Result<PeerAccess> {
        if self.platform() != peer.platform() {
            return Err(Error::invalid(format!("{self} and {peer} are of different platforms")));
        }
        self.peer_access_to(peer.id(), &peer.properties().uuid)
    }

    /// Like [`Gpu::peer_access`], for the device with this uuid, which need not be open. `None` if this process does
    /// not see it.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn peer_access_by_uuid(&self, uuid: &[u8; 16]) -> Result<Option<PeerAccess>> {
        let peer = self.platform().find(uuid)?;
        peer.map(|id| self.peer_access_to(id, uuid)).transpose()
    }

    fn peer_access_to(&self, id: usize, uuid: &[u8; 16]) -> Result<PeerAccess> {
        if self.properties().uuid == *uuid {
            return Ok(PeerAccess { reachable: true, native_atomics: true });
        }
        self.backend()?.peer_access(id)
    }

    /// Makes memory of another device *of this process* reachable from this one.
    ///
    /// Needed once, before a kernel or a copy of this device touches the range; repeating it does nothing.
    ///
    /// # Safety
    /// `ptr..ptr + len` must be one live allocation of `owner` (or a part of one) in this process.
    ///
    /// # Errors
    /// [`Error::NoPeerAccess`], which names both devices; [`Error::Driver`].
    pub unsafe fn enable_access(&self, owner: &Gpu, ptr: DevicePtr, len: u64) -> Result<()> {
        if self.properties().uuid == owner.properties().uuid {
            return Ok(());
        }
        if !self.peer_access(owner)?.reachable {
            return Err(Error::NoPeerAccess {
                from: self.to_string(),
                to: owner.to_string(),
                reason: self.platform().why_no_peer_access().to_owned(),
            });
        }
        // SAFETY: the caller promises a live allocation of `owner`.
        unsafe { self.backend()?.enable_access(owner.properties(), ptr, len) }
    }

    /// Finds the allocation that holds `ptr`, memory of this device in this process.
    ///
    /// # Errors
    /// [`Error::NotExportable`] or [`Error::Driver`] if there is none.
    pub fn allocation(&self, ptr: DevicePtr) -> Result<DeviceAllocation> {
        self.backend()?.allocation(ptr)
    }

    /// Finds the allocation that holds `ptr..ptr + len`, and makes the handle that another process needs to map it.
    ///
    /// # Safety
    /// The range must lie in live device memory of this process.
    ///
    /// # Errors
    /// [`Error::NotExportable`] if memory of this kind cannot be shared, or if the range spans several allocations.
    pub unsafe fn export(&self, ptr: DevicePtr, len: u64) -> Result<MemoryExport> {
        // SAFETY: the caller promises live memory.
        unsafe { self.backend()?.export(ptr, len) }
    }

    /// Makes a descriptor of `ptr..ptr + len` (a dmabuf), which drivers of other devices, such as network adapters, can
    /// map.
    ///
    /// # Safety
    /// The same as [`Gpu::export`].
    ///
    /// # Errors
    /// [`Error::NotExportable`] if the device, its driver or the kind of memory does not support this, as on the simulated
    /// platform; [`Error::Driver`].
    pub unsafe fn export_dma_buf(&self, ptr: DevicePtr, len: u64) -> Result<DmaBuf> {
        // SAFETY: the caller promises live memory.
        unsafe { self.backend()?.export_dma_buf(ptr, len) }
    }

    /// Asks the driver how network adapters reach this device's memory.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn gpu_direct(&self) -> Result<GpuDirect> {
        self.backend()?.gpu_direct()
    }

    /// Makes what adapters have written into this device's memory before this call visible to this device, or to all
    /// devices. Blocks for some microseconds.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if [`GpuDirect::host_flush`] is false; [`Error::Driver`].
    pub fn flush_gpu_direct_writes(&self, to_all_devices: bool) -> Result<()> {
        self.backend()?.flush_gpu_direct_writes(to_all_devices)
    }

    /// Blocks until all work that this process has submitted to the device is complete.
    ///
    /// # Errors
    /// The first error of that work; [`Error::Wait`] as for [`Stream::synchronize`](crate::Stream::synchronize), for all
    /// streams, dropped ones included.
    pub fn synchronize(&self) -> Result<()> {
        let backend = self.backend()?;
        backend.synchronize()?;
        check_all(&backend.take_failed())
    }

    /// Drops the objects that graphs of other code have kept alive, if the graphs are gone. Allocating memory, and finding a
    /// stream idle, does the same. In a program that may do neither, a thread for which nobody waits can call this. It may
    /// block until kernels end, as freeing memory does.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked child.
    pub fn release_graph_objects(&self) -> Result<()> {
        self.backend()?.release_graph_objects();
        Ok(())
    }

    /// Makes this the current device of the calling thread (see [`Platform::current_gpu`](crate::Platform::current_gpu)).
    /// On CUDA it makes the device's primary context current, as other libraries expect it.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn make_current(&self) -> Result<()> {
        self.backend()?.make_current()
    }

    /// Like [`Gpu::make_current`], for a thread that only serves this device. If another thread captures a stream, the
    /// calls of this thread are not refused and do not end that capture (on CUDA, its capture mode is relaxed).
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn adopt_thread(&self) -> Result<()> {
        self.backend()?.adopt_thread()
    }
}

impl Platform {
    /// Opens device `id`, counted from 0.
    ///
    /// # Errors
    /// [`Error::NoSuchDevice`], or [`Error::Unavailable`]; [`Error::Forked`] if this process was forked from one that had
    /// opened a device.
    pub fn gpu(self, id: usize) -> Result<Gpu> {
        let count = self.device_count()?;
        if id >= count {
            return Err(Error::NoSuchDevice { platform: self, id, count });
        }
        let gpu = self.backend()?.open(id).map(Gpu::new);
        fork::device_opened();
        gpu
    }

    /// Opens every device.
    ///
    /// # Errors
    /// The same as [`Platform::gpu`].
    pub fn gpus(self) -> Result<Vec<Gpu>> {
        (0..self.device_count()?).map(|id| self.gpu(id)).collect()
    }

    /// Returns the device that this thread last made current, with [`Gpu::make_current`] or, on CUDA and HIP, through
    /// another library. Device 0 if there was none.
    ///
    /// # Errors
    /// The same as [`Platform::gpu`].
    pub fn current_gpu(self) -> Result<Gpu> {
        self.gpu(self.backend()?.current_device()?)
    }

    /// Returns the device into whose memory `ptr` points, or `None` if it is not device memory.
    ///
    /// # Errors
    /// The same as [`Platform::gpu`].
    pub fn owner_of(self, ptr: DevicePtr) -> Result<Option<Gpu>> {
        self.backend()?.owner_of(ptr)?.map(|id| self.gpu(id)).transpose()
    }
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let p = self.properties();
        write!(f, "{} device {} ({})", p.platform, p.id, p.name)
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gpu").field(self.properties()).finish()
    }
}
