use std::{
    ffi::{CStr, c_char, c_int, c_void},
    sync::{Arc, OnceLock},
};

use mscclpp_gpu_sys::cuda::{
    CAN_USE_64_BIT_STREAM_MEM_OPS, CUdevice, CUdevice_P2PAttribute as P2p, CUdevice_attribute as Attribute,
    CUdeviceptr, CUstream, CUstreamBatchMemOpParams, CuResult, DMA_BUF_SUPPORTED, Driver, FLUSH_OPTION_HOST,
    FLUSH_OPTION_MEMOPS, FLUSH_TARGET_CURRENT_CONTEXT, FLUSH_TO_ALL_DEVICES, FLUSH_TO_OWNER,
    WRITES_ORDERING_ALL_DEVICES, WRITES_ORDERING_OWNER,
};

use super::{
    context::PrimaryContext,
    event::CudaEvent,
    export,
    failure::check,
    memory,
    module::{CudaModule, RetiredModules},
    pinned,
    slots::ValueSlots,
    source,
    stream::{CAPTURES, CudaStream},
    virtual_memory::Placement,
};
use crate::{
    DevicePtr, DmaBuf, Error, ExportKinds, GpuDirect, GpuProperties, KernelSource, MemoryExport, MemoryInfo,
    Owner, PeerAccess, Platform, Result, WritesOrdering,
    backend::{DeviceBackend, EventBackend, MemoryBackend, ModuleBackend, StreamBackend},
    driver::{
        foreign::{Foreign, Own},
        in_use::LeftBehind,
        pinned::PinnedSpares,
    },
    memory::ExportHandle,
    numa,
};

/// An opened device. There is one per device and process, and it lives as long as the process.
pub(super) struct Device {
    context: PrimaryContext,
    handle: CUdevice,
    properties: GpuProperties,
    placement: Placement,
    value_writes: Option<WriteValue>,
    value_batches: Option<BatchMemOp>,
    value_slots: ValueSlots,
    /// For what the library does itself: non-blocking, so that nobody's default stream waits for it.
    internal: InternalStream,
    pinned_spares: PinnedSpares,
    retired_modules: RetiredModules,
    left_behind: LeftBehind<CudaEvent>,
    foreign: Foreign<CudaStream>,
    own: Own<CudaStream>,
    /// One for all who ask, so that whoever waits knows what others launched.
    default_stream: OnceLock<Arc<CudaStream>>,
}

/// `cuStreamWriteValue64`
type WriteValue = unsafe extern "C" fn(CUstream, CUdeviceptr, u64, u32) -> CuResult;

/// `cuStreamBatchMemOp`
type BatchMemOp = unsafe extern "C" fn(CUstream, u32, *mut CUstreamBatchMemOpParams, u32) -> CuResult;

/// The internal stream; a device never ends, so nor does it.
struct InternalStream(CUstream);

// SAFETY: the driver's functions may be called with a stream from any thread; the handle is never dereferenced here.
unsafe impl Send for InternalStream {}
// SAFETY: as above.
unsafe impl Sync for InternalStream {}

/// The driver's handle of device number `id`.
pub(super) fn handle(driver: &Driver, id: usize) -> Result<CUdevice> {
    let ordinal =
        c_int::try_from(id).map_err(|_| Error::InvalidArgument(format!("{id} is no device number")))?;
    let mut handle = 0;
    // SAFETY: `handle` is valid for the write.
    let result = unsafe { (driver.device_get)(&raw mut handle, ordinal) };
    check(driver, result, format!("cuDeviceGet({id})"))?;
    Ok(handle)
}

/// What identifies a device, which need not be open.
pub(super) fn uuid(driver: &Driver, device: CUdevice) -> Result<[u8; 16]> {
    let mut uuid = [0; 16];
    // SAFETY: `uuid` is valid for the write of 16 bytes.
    check(driver, unsafe { (driver.device_get_uuid)(&raw mut uuid, device) }, "cuDeviceGetUuid")?;
    Ok(uuid)
}

impl Device {
    pub(super) fn open(driver: &'static Driver, id: usize) -> Result<Self> {
        let handle = handle(driver, id)?;
        let mut properties = properties(driver, handle, id)?;
        let context = PrimaryContext::retain(driver, handle)?;
        let (placement, internal) = {
            let _entered = context.enter()?;
            (Placement::probe(driver, handle)?, InternalStream(CudaStream::create_raw(driver)?))
        };
        properties.export_kinds = ExportKinds {
            // Integrated GPUs share their memory with the host, and have no legacy IPC.
            ipc_handle: attribute(driver, handle, Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED as u32)
                .is_ok_and(|integrated| integrated == 0),
            ..placement.export_kinds()
        };
        let can_write_values =
            attribute(driver, handle, CAN_USE_64_BIT_STREAM_MEM_OPS).is_ok_and(|can| can != 0);
        let value_writes = driver.stream_write_value64.filter(|_| can_write_values);
        let value_batches = driver.stream_batch_mem_op.filter(|_| can_write_values);
        tracing::debug!(target: "mscclpp::gpu", ?properties, can_write_values, "opened a CUDA device");
        Ok(Self {
            context,
            handle,
            properties,
            placement,
            value_writes,
            value_batches,
            value_slots: ValueSlots::new(),
            internal,
            pinned_spares: PinnedSpares::default(),
            retired_modules: RetiredModules::default(),
            left_behind: LeftBehind::default(),
            foreign: Foreign::default(),
            own: Own::default(),
            default_stream: OnceLock::new(),
        })
    }

    /// Fills, writes and reads once: what the driver loads at first use for these must not have to be loaded while a
    /// kernel is waiting, which could deadlock. A device that is full does without.
    pub(super) fn warm_up(&'static self) {
        let warmed = self.allocate(8).and_then(|memory| {
            // SAFETY: the memory was just made and has 8 bytes.
            unsafe {
                self.write(memory.ptr(), &[1; 8])?;
                self.read(memory.ptr(), &mut [0; 8])
            }
        });
        if let Err(error) = warmed {
            tracing::debug!(target: "mscclpp::gpu", device = self.id(), %error, "could not warm the device up");
        }
    }

    pub(super) fn id(&self) -> usize {
        self.properties.id
    }

    pub(super) fn multiprocessors(&self) -> u32 {
        self.properties.multiprocessors
    }

    pub(super) fn driver(&self) -> &'static Driver {
        self.context.driver
    }

    pub(super) fn context(&self) -> &PrimaryContext {
        &self.context
    }

    pub(super) fn handle(&self) -> CUdevice {
        self.handle
    }

    pub(super) fn placement(&self) -> &Placement {
        &self.placement
    }

    pub(super) fn pinned_spares(&self) -> &PinnedSpares {
        &self.pinned_spares
    }

    pub(super) fn retired_modules(&self) -> &RetiredModules {
        &self.retired_modules
    }

    /// Drops what complete launches needed, of streams that are gone, of others' and of the default stream, and what
    /// graphs of others needed.
    fn sweep(&self) {
        self.left_behind.sweep();
        self.foreign.sweep();
        CAPTURES.sweep();
        if let Some(stream) = self.default_stream.get() {
            stream.sweep();
        }
    }

    /// The streams, each with the number of its last launch.
    fn launches(&self) -> Vec<(Arc<CudaStream>, u64)> {
        let default = self.default_stream.get().map(|stream| (Arc::clone(stream), stream.last_launch()));
        self.own.launches().into_iter().chain(self.foreign.launches()).chain(default).collect()
    }

    pub(super) fn the_default_stream(&'static self) -> Arc<CudaStream> {
        self.default_stream.get_or_init(|| Arc::new(CudaStream::legacy_default(self))).clone()
    }

    pub(super) fn foreign(&self) -> &Foreign<CudaStream> {
        &self.foreign
    }

    pub(super) fn left_behind(&self) -> &LeftBehind<CudaEvent> {
        &self.left_behind
    }

    /// The driver's value writes, unless the device has none.
    pub(super) fn value_writes(&self) -> Option<WriteValue> {
        self.value_writes
    }

    /// The same for several at once.
    pub(super) fn value_batches(&self) -> Option<BatchMemOp> {
        self.value_batches
    }

    pub(super) fn value_slots(&self) -> &ValueSlots {
        &self.value_slots
    }

    /// Runs `submit` with the internal stream and waits for that stream.
    fn blocking(&self, what: &'static str, submit: impl FnOnce(&Driver, CUstream) -> CuResult) -> Result<()> {
        let _entered = self.context.enter()?;
        let driver = self.driver();
        check(driver, submit(driver, self.internal.0), what)?;
        // SAFETY: the internal stream lives as long as the process.
        check(driver, unsafe { (driver.stream_synchronize)(self.internal.0) }, what)
    }

    pub(super) fn display(&self) -> String {
        format!("cuda device {} ({})", self.id(), self.properties.name)
    }
}

impl DeviceBackend for &'static Device {
    fn properties(&self) -> &GpuProperties {
        &self.properties
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        let _entered = self.context.enter()?;
        let driver = self.driver();
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are valid for the write.
        check(driver, unsafe { (driver.mem_get_info)(&raw mut free, &raw mut total) }, "cuMemGetInfo")?;
        Ok(MemoryInfo { free: free as u64, total: total as u64 })
    }

    fn peer_access(&self, peer: usize) -> Result<PeerAccess> {
        let driver = self.driver();
        let peer = handle(driver, peer)?;
        let (mut reachable, mut atomics) = (0, 0);
        // SAFETY: `reachable` is valid for the write.
        let result = unsafe { (driver.device_can_access_peer)(&raw mut reachable, self.handle, peer) };
        check(driver, result, "cuDeviceCanAccessPeer")?;
        let which = P2p::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED as u32;
        // SAFETY: `atomics` is valid for the write.
        let result = unsafe { (driver.device_get_p2p_attribute)(&raw mut atomics, which, self.handle, peer) };
        check(driver, result, "cuDeviceGetP2PAttribute(NATIVE_ATOMIC_SUPPORTED)")?;
        Ok(PeerAccess { reachable: reachable != 0, native_atomics: reachable != 0 && atomics != 0 })
    }

    unsafe fn enable_access(&self, owner: &GpuProperties, ptr: DevicePtr, len: u64) -> Result<()> {
        // SAFETY: the caller promises a live allocation.
        unsafe { export::enable_access(self, super::device(owner.id)?, ptr, len) }
    }

    fn allocate(&self, bytes: u64) -> Result<Box<dyn MemoryBackend>> {
        self.sweep();
        let memory = memory::allocate(self, bytes)?;
        // SAFETY: the memory was just made and has at least `bytes` bytes.
        unsafe { self.fill(memory.ptr(), bytes, 0)? };
        Ok(memory)
    }

    fn allocate_pinned(&self, bytes: u64) -> Result<Box<dyn MemoryBackend>> {
        pinned::allocate(self, bytes)
    }

    unsafe fn write(&self, dst: DevicePtr, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.blocking("cuMemcpyHtoDAsync", |driver, stream| {
            // SAFETY: the caller promises the device range; `bytes` stays until the stream has been waited for.
            unsafe { (driver.memcpy_htod_async)(dst.0, bytes.as_ptr().cast(), bytes.len(), stream) }
        })
    }

    unsafe fn read(&self, src: DevicePtr, bytes: &mut [u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.blocking("cuMemcpyDtoHAsync", |driver, stream| {
            // SAFETY: the caller promises the device range; `bytes` stays until the stream has been waited for.
            unsafe { (driver.memcpy_dtoh_async)(bytes.as_mut_ptr().cast(), src.0, bytes.len(), stream) }
        })
    }

    unsafe fn fill(&self, dst: DevicePtr, len: u64, value: u8) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        self.blocking("cuMemsetD8Async", |driver, stream| {
            // SAFETY: the caller promises the device range.
            unsafe { (driver.memset_d8_async)(dst.0, value, len as usize, stream) }
        })
    }

    fn create_stream(&self) -> Result<Arc<dyn StreamBackend>> {
        self.sweep();
        Ok(self.own.add(CudaStream::create(self)?))
    }

    fn default_stream(&self) -> Result<Arc<dyn StreamBackend>> {
        Ok(self.the_default_stream())
    }

    unsafe fn wrap_stream(&self, raw: *mut c_void) -> Result<Arc<dyn StreamBackend>> {
        // SAFETY: the caller promises a live stream of the primary context.
        Ok(unsafe { CudaStream::of_others(self, raw)? })
    }

    fn create_event(&self, with_timing: bool) -> Result<Arc<dyn EventBackend>> {
        Ok(Arc::new(CudaEvent::create(self, with_timing)?))
    }

    fn load_module(&self, source: &KernelSource<'_>) -> Result<Arc<dyn ModuleBackend>> {
        let capability = self.properties.compute_capability.unwrap_or((8, 0));
        let module = source::load(source, capability, |ptx| CudaModule::load(self, source.name(), ptx))?;
        Ok(Arc::new(module))
    }

    unsafe fn load_binary(&self, name: &str, binary: &[u8]) -> Result<Arc<dyn ModuleBackend>> {
        // SAFETY: the caller's promise.
        Ok(Arc::new(unsafe { CudaModule::load_binary(self, name, binary)? }))
    }

    unsafe fn export(&self, ptr: DevicePtr, len: u64) -> Result<MemoryExport> {
        // SAFETY: the caller promises live memory.
        unsafe { export::export(self, ptr, len) }
    }

    unsafe fn export_dma_buf(&self, ptr: DevicePtr, len: u64) -> Result<DmaBuf> {
        // SAFETY: the caller promises live memory.
        unsafe { export::export_dma_buf(self, ptr, len) }
    }

    fn gpu_direct(&self) -> Result<GpuDirect> {
        let ask = |which: u32| attribute(self.driver(), self.handle, which);
        let options = ask(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS as u32)?;
        let ordering = ask(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING as u32)?;
        Ok(GpuDirect {
            rdma: ask(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED as u32)? != 0,
            // Drivers that do not know the attribute do not have it.
            dma_buf: ask(DMA_BUF_SUPPORTED).is_ok_and(|supported| supported != 0),
            writes_ordering: match ordering {
                WRITES_ORDERING_ALL_DEVICES.. => WritesOrdering::AllDevices,
                WRITES_ORDERING_OWNER.. => WritesOrdering::Owner,
                _ => WritesOrdering::None,
            },
            host_flush: options & FLUSH_OPTION_HOST != 0,
            stream_flush: options & FLUSH_OPTION_MEMOPS != 0,
        })
    }

    fn flush_gpu_direct_writes(&self, to_all_devices: bool) -> Result<()> {
        let driver = self.driver();
        let flush =
            driver.flush_gpu_direct_rdma_writes.filter(|_| self.gpu_direct().is_ok_and(|d| d.host_flush));
        let Some(flush) = flush else {
            return Err(Error::InvalidArgument(format!(
                "{} has no flush of GPUDirect writes by the host (Gpu::gpu_direct says so)",
                self.display()
            )));
        };
        let _entered = self.context.enter()?;
        let scope = if to_all_devices { FLUSH_TO_ALL_DEVICES } else { FLUSH_TO_OWNER };
        // SAFETY: values of the two enumerations; the device's context is current.
        let result = unsafe { flush(FLUSH_TARGET_CURRENT_CONTEXT, scope) };
        check(driver, result, format!("cuFlushGPUDirectRDMAWrites({scope})"))
    }

    fn import(&self, handle: &ExportHandle, allocation_size: u64) -> Result<Box<dyn MemoryBackend>> {
        memory::import(self, handle, allocation_size)
    }

    fn synchronize(&self) -> Result<()> {
        let streams = self.launches();
        let gone = self.left_behind.unknown();
        {
            let _entered = self.context.enter()?;
            // SAFETY: the device's context is current.
            check(self.driver(), unsafe { (self.driver().ctx_synchronize)() }, "cuCtxSynchronize")?;
        }
        self.left_behind.release_unknown(gone);
        for (stream, launches) in streams {
            stream.release(launches);
        }
        self.left_behind.sweep();
        CAPTURES.sweep();
        Ok(())
    }

    fn take_failed(&self) -> Vec<Owner> {
        self.launches().iter().flat_map(|(stream, _)| stream.in_use.take_failed()).collect()
    }

    fn make_current(&self) -> Result<()> {
        self.context.set_current()
    }

    fn adopt_thread(&self) -> Result<()> {
        self.context.set_current()?;
        self.context.relax_capture().map(|_mode_that_was| ())
    }
}

pub(super) fn attribute(driver: &Driver, device: CUdevice, which: u32) -> Result<c_int> {
    let mut value = 0;
    // SAFETY: `value` is valid for the write; an attribute the driver does not know is an error.
    let result = unsafe { (driver.device_get_attribute)(&raw mut value, which, device) };
    check(driver, result, format!("cuDeviceGetAttribute({which}, device {device})"))?;
    Ok(value)
}

fn properties(driver: &Driver, device: CUdevice, id: usize) -> Result<GpuProperties> {
    let count =
        |which: Attribute| attribute(driver, device, which as u32).map(|v| u32::try_from(v).unwrap_or(0));
    let name = text(|buffer, len| {
        // SAFETY: `buffer` is valid for the write of `len` bytes.
        check(driver, unsafe { (driver.device_get_name)(buffer, len, device) }, "cuDeviceGetName")
    })?;
    let pci_bus_id = text(|buffer, len| {
        // SAFETY: `buffer` is valid for the write of `len` bytes.
        check(driver, unsafe { (driver.device_get_pci_bus_id)(buffer, len, device) }, "cuDeviceGetPCIBusId")
    })?
    .to_ascii_lowercase();
    Ok(GpuProperties {
        platform: Platform::Cuda,
        id,
        name,
        uuid: uuid(driver, device)?,
        numa_node: numa::node_of_pci_device(&pci_bus_id),
        pci_bus_id: Some(pci_bus_id),
        compute_capability: Some((
            count(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            count(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        )),
        multiprocessors: count(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        export_kinds: ExportKinds::default(),
    })
}

/// A NUL-terminated text that the driver writes into a buffer.
fn text(write: impl FnOnce(*mut c_char, c_int) -> Result<()>) -> Result<String> {
    let mut buffer = [0u8; 256];
    // One byte less than there is: the last one stays NUL.
    write(buffer.as_mut_ptr().cast(), 255)?;
    Ok(CStr::from_bytes_until_nul(&buffer)
        .map(|text| text.to_string_lossy().into_owned())
        .unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_ends_at_the_nul() {
        let text = text(|buffer, len| {
            assert_eq!(len, 255);
            // SAFETY: the buffer has 255 bytes.
            unsafe { buffer.cast::<[u8; 4]>().write(*b"ab\0c") };
            Ok(())
        });
        assert_eq!(text.unwrap(), "ab");
    }
}
