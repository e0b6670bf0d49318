//! The traits that each platform implements. The public types are thin shells around them.
//!
//! The callers have checked ranges and compared platforms, so back-ends need not do it again.

use std::{any::Any, ffi::c_void, sync::Arc};

use crate::{
    DeviceAllocation, DevicePtr, DmaBuf, GpuDirect, GpuProperties, KernelArgs, KernelParameter, KernelSource,
    LaunchConfig, MemoryExport, MemoryInfo, Owner, PeerAccess, Result, memory::ExportHandle,
};

/// A platform, which opens devices.
pub(crate) trait PlatformBackend: Sync {
    /// Returns the number of devices, at least 1.
    fn device_count(&self) -> Result<usize>;
    /// Opens a device. `id` is less than [`PlatformBackend::device_count`].
    fn open(&self, id: usize) -> Result<Arc<dyn DeviceBackend>>;
    /// Returns the number of the device of the calling thread.
    fn current_device(&self) -> Result<usize>;
    /// Returns the number of the device with that uuid, and opens none.
    fn find(&self, uuid: &[u8; 16]) -> Result<Option<usize>>;
    /// Returns the number of the device whose memory `ptr` points into.
    fn owner_of(&self, ptr: DevicePtr) -> Result<Option<usize>>;
    /// Returns the text for a user if one device does not reach another's memory.
    fn why_no_peer_access(&self) -> &'static str;
}

pub(crate) trait DeviceBackend: Send + Sync {
    fn properties(&self) -> &GpuProperties;
    fn memory_info(&self) -> Result<MemoryInfo>;
    /// Returns the access to a peer. `peer` is the number of another device of the same platform.
    fn peer_access(&self, peer: usize) -> Result<PeerAccess>;
    /// # Safety
    /// The range is one live allocation of `owner`, another device, in this process.
    unsafe fn enable_access(&self, owner: &GpuProperties, ptr: DevicePtr, len: u64) -> Result<()>;
    /// Allocates zeroed memory that can be exported; `bytes > 0`.
    fn allocate(&self, bytes: u64) -> Result<Box<dyn MemoryBackend>>;
    /// Allocates zeroed pinned memory; `bytes > 0`.
    fn allocate_pinned(&self, bytes: u64) -> Result<Box<dyn MemoryBackend>>;
    /// Writes memory. This and the next two calls are blocking copies and fills on an internal stream.
    ///
    /// # Safety
    /// The device range is live memory reachable from this device.
    unsafe fn write(&self, dst: DevicePtr, bytes: &[u8]) -> Result<()>;
    /// # Safety
    /// The same as for `write`.
    unsafe fn read(&self, src: DevicePtr, bytes: &mut [u8]) -> Result<()>;
    /// # Safety
    /// The same as for `write`.
    unsafe fn fill(&self, dst: DevicePtr, len: u64, value: u8) -> Result<()>;
    fn create_stream(&self) -> Result<Arc<dyn StreamBackend>>;
    fn default_stream(&self) -> Result<Arc<dyn StreamBackend>>;
    /// # Safety
    /// A live stream of this device's primary context.
    unsafe fn wrap_stream(&self, raw: *mut c_void) -> Result<Arc<dyn StreamBackend>>;
    fn create_event(&self, with_timing: bool) -> Result<Arc<dyn EventBackend>>;
    /// # Safety
    /// A live event of this device's primary context.
    unsafe fn wrap_event(&self, raw: *mut c_void) -> Result<Arc<dyn EventBackend>>;
    fn load_module(&self, source: &KernelSource<'_>) -> Result<Arc<dyn ModuleBackend>>;
    /// # Safety
    /// See [`crate::Module::load_binary`].
    unsafe fn load_binary(&self, name: &str, binary: &[u8]) -> Result<Arc<dyn ModuleBackend>>;
    fn allocation(&self, ptr: DevicePtr) -> Result<DeviceAllocation>;
    /// # Safety
    /// The range lies in live device memory of this process.
    unsafe fn export(&self, ptr: DevicePtr, len: u64) -> Result<MemoryExport>;
    /// # Safety
    /// The same as for `export`.
    unsafe fn export_dma_buf(&self, ptr: DevicePtr, len: u64) -> Result<DmaBuf>;
    fn import(&self, handle: &ExportHandle, allocation_size: u64) -> Result<Box<dyn MemoryBackend>>;
    fn gpu_direct(&self) -> Result<GpuDirect>;
    fn flush_gpu_direct_writes(&self, to_all_devices: bool) -> Result<()>;
    fn synchronize(&self) -> Result<()>;
    /// Takes the failed objects of all streams, dropped ones included: see [`StreamBackend::take_failed`].
    fn take_failed(&self) -> Vec<Owner>;
    /// See [`crate::Gpu::release_graph_objects`].
    fn release_graph_objects(&self) {}
    fn make_current(&self) -> Result<()>;
    fn adopt_thread(&self) -> Result<()>;
}

/// Memory that is released when this is dropped.
pub(crate) trait MemoryBackend: Send + Sync {
    fn ptr(&self) -> DevicePtr;
    /// Returns the address for the host; null for memory that the host cannot reach.
    fn host_ptr(&self) -> *mut u8 {
        std::ptr::null_mut()
    }
    /// Gives all devices access that can have it and do not have it anyway, without opening them.
    fn let_all_access(&self) -> Result<()> {
        Ok(())
    }
    /// Whether [`MemoryBackend::suspend`] gives the memory back.
    fn can_suspend(&self) -> bool {
        false
    }
    /// Gives the memory back, and keeps its addresses. Does nothing if it is suspended, or cannot be.
    ///
    /// # Safety
    /// Nothing accesses the memory until it is resumed.
    unsafe fn suspend(&self) -> Result<()> {
        Ok(())
    }
    /// Puts memory at the addresses, if it is suspended: new memory, all zero, or that of `handle` if it is of another process.
    fn resume(&self, _handle: Option<&ExportHandle>) -> Result<()> {
        Ok(())
    }
}

pub(crate) trait StreamBackend: Send + Sync + Any {
    fn raw(&self) -> *mut c_void;
    fn synchronize(&self) -> Result<()>;
    fn query(&self) -> Result<bool>;
    /// Returns the objects that are kept alive by launches that are not known to be complete.
    fn in_use(&self) -> Vec<Owner>;
    /// Takes the objects of complete launches that have failed, each once.
    fn take_failed(&self) -> Vec<Owner>;
    /// # Safety
    /// The contract of [`crate::Stream::copy`]; the same holds for the next one.
    unsafe fn copy(&self, dst: DevicePtr, src: DevicePtr, bytes: u64) -> Result<()>;
    unsafe fn fill(&self, dst: DevicePtr, bytes: u64, value: u8) -> Result<()>;
    /// Writes a value at a multiple of 8.
    ///
    /// # Safety
    /// The same as for `copy`.
    unsafe fn write_u64(&self, dst: DevicePtr, value: u64) -> Result<()>;
    /// Writes both values, at multiples of 8, at once. Returns false, with nothing done, if the platform cannot.
    ///
    /// # Safety
    /// The same as for `copy`.
    unsafe fn write_two_at_once(&self, _values: [(DevicePtr, u64); 2]) -> Result<bool> {
        Ok(false)
    }
    fn record(&self, event: &Arc<dyn EventBackend>) -> Result<()>;
    fn wait_event(&self, event: &Arc<dyn EventBackend>) -> Result<()>;
    /// Whether others made the stream.
    fn is_foreign(&self) -> bool {
        false
    }
    fn is_being_captured(&self) -> Result<bool>;
    fn capture_id(&self) -> Result<Option<u64>>;
    fn begin_capture(&self) -> Result<()>;
    fn end_capture(&self) -> Result<Arc<dyn GraphBackend>>;
}

pub(crate) trait EventBackend: Send + Sync + Any {
    fn query(&self) -> Result<bool>;
    fn elapsed_ms(&self, start: &dyn EventBackend) -> Result<f32>;
}

pub(crate) trait GraphBackend: Send + Sync {
    /// # Safety
    /// See [`crate::Graph::launch`].
    unsafe fn launch(&self, stream: &dyn StreamBackend) -> Result<()>;
}

pub(crate) trait ModuleBackend: Send + Sync {
    fn kernel(&self, name: &str) -> Result<Arc<dyn KernelBackend>>;
    fn symbol(&self, name: &str) -> Result<(DevicePtr, u64)>;
}

/// One launch of a kernel.
#[derive(Clone, Copy)]
pub(crate) struct Submission<'a> {
    pub(crate) config: LaunchConfig,
    pub(crate) args: &'a KernelArgs,
    /// Whether its blocks wait for each other.
    #[cfg_attr(
        not(any(feature = "cuda", feature = "hip")),
        allow(dead_code, reason = "all the same to Sim")
    )]
    pub(crate) cooperative: bool,
    /// The event that is recorded when all blocks have begun, or in front of the launch where the platform cannot.
    pub(crate) event: Option<&'a Arc<dyn EventBackend>>,
}

pub(crate) trait KernelBackend: Send + Sync {
    /// # Safety
    /// See [`crate::Kernel::launch`].
    unsafe fn launch(&self, stream: &dyn StreamBackend, submission: Submission<'_>) -> Result<()>;
    /// Returns how many blocks of `threads` threads, each with `shared_bytes` of dynamic shared memory, fit on the device
    /// at once.
    fn max_resident_blocks(&self, threads: u32, shared_bytes: u32) -> Result<u64>;
    /// See [`crate::Kernel::prefer_shared_memory`].
    fn prefer_shared_memory(&self) -> Result<()> {
        Ok(())
    }
    /// Returns the kernel's parameters, where the platform knows them.
    fn parameters(&self) -> Option<&[KernelParameter]> {
        None
    }
}
