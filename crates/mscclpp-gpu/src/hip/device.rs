use std::{
    ffi::{CStr, c_char, c_int, c_void},
    sync::{Arc, OnceLock},
};

use mscclpp_gpu_sys::hip::{
    ATTRIBUTE_DMA_BUF_SUPPORTED, ATTRIBUTE_MULTIPROCESSOR_COUNT, DeviceProperties, Hip, HipResult,
    MEMCPY_DEFAULT, P2P_NATIVE_ATOMIC_SUPPORTED, Stream,
};

use super::{
    compiler,
    current::Ordinal,
    event::HipEvent,
    export,
    failure::{check, failure},
    memory::{self, Freer},
    module::{HipModule, RetiredModules},
    stream::{CAPTURES, HipStream},
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
    ordinal: Ordinal,
    properties: GpuProperties,
    /// What hiprtc compiles for, such as `gfx942:sramecc+:xnack-`.
    architecture: String,
    /// For what the library does itself: non-blocking, so that nobody's default stream waits for it.
    internal: InternalStream,
    freer: Freer,
    pinned_spares: PinnedSpares,
    retired_modules: RetiredModules,
    left_behind: LeftBehind<HipEvent>,
    foreign: Foreign<HipStream>,
    own: Own<HipStream>,
    /// One for all who ask, so that whoever waits knows what others launched.
    default_stream: OnceLock<Arc<HipStream>>,
}

/// The internal stream; a device never ends, so nor does it.
struct InternalStream(Stream);

// SAFETY: HIP's functions may be called with a stream from any thread; the handle is never dereferenced here.
unsafe impl Send for InternalStream {}
// SAFETY: as above.
unsafe impl Sync for InternalStream {}

/// What identifies a device, which need not be open.
pub(super) fn uuid(hip: &Hip, number: c_int) -> Result<[u8; 16]> {
    let mut uuid = [0; 16];
    // SAFETY: `uuid` is valid for the write of 16 bytes.
    check(hip, unsafe { (hip.device_get_uuid)(&raw mut uuid, number) }, "hipDeviceGetUuid")?;
    Ok(uuid)
}

impl Device {
    pub(super) fn open(hip: &'static Hip, id: usize) -> Result<Self> {
        let ordinal = Ordinal { hip, number: super::ordinal(id)? };
        let properties = properties(ordinal, id)?;
        let architecture = architecture(ordinal)?;
        let internal = {
            let _entered = ordinal.enter()?;
            InternalStream(HipStream::create_raw(hip)?)
        };
        tracing::debug!(target: "mscclpp::gpu", ?properties, architecture, "opened a HIP device");
        Ok(Self {
            ordinal,
            properties,
            architecture,
            internal,
            freer: Freer::default(),
            pinned_spares: PinnedSpares::default(),
            retired_modules: RetiredModules::default(),
            left_behind: LeftBehind::default(),
            foreign: Foreign::default(),
            own: Own::default(),
            default_stream: OnceLock::new(),
        })
    }

    /// Fills, writes and reads once: what the runtime loads at first use for these must not have to be loaded while a
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

    pub(super) fn hip(&self) -> &'static Hip {
        self.ordinal.hip
    }

    pub(super) fn ordinal(&self) -> Ordinal {
        self.ordinal
    }

    pub(super) fn freer(&self) -> &Freer {
        &self.freer
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
    fn launches(&self) -> Vec<(Arc<HipStream>, u64)> {
        let default = self.default_stream.get().map(|stream| (Arc::clone(stream), stream.last_launch()));
        self.own.launches().into_iter().chain(self.foreign.launches()).chain(default).collect()
    }

    pub(super) fn the_default_stream(&'static self) -> Arc<HipStream> {
        self.default_stream.get_or_init(|| Arc::new(HipStream::default_of(self))).clone()
    }

    pub(super) fn foreign(&self) -> &Foreign<HipStream> {
        &self.foreign
    }

    pub(super) fn left_behind(&self) -> &LeftBehind<HipEvent> {
        &self.left_behind
    }

    /// Runs `submit` with the internal stream and waits for that stream.
    fn blocking(&self, what: &'static str, submit: impl FnOnce(&Hip, Stream) -> HipResult) -> Result<()> {
        let _entered = self.ordinal.enter()?;
        let hip = self.hip();
        check(hip, submit(hip, self.internal.0), what)?;
        // SAFETY: the internal stream lives as long as the process.
        let result = unsafe { (hip.stream_synchronize)(self.internal.0) };
        check(hip, result, format!("hipStreamSynchronize (of {what})"))
    }

    pub(super) fn display(&self) -> String {
        format!("hip device {} ({})", self.id(), self.properties.name)
    }
}

impl DeviceBackend for &'static Device {
    fn properties(&self) -> &GpuProperties {
        &self.properties
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        let _entered = self.ordinal.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are valid for the write.
        let result = unsafe { (self.hip().mem_get_info)(&raw mut free, &raw mut total) };
        check(self.hip(), result, "hipMemGetInfo")?;
        Ok(MemoryInfo { free: free as u64, total: total as u64 })
    }

    fn peer_access(&self, peer: usize) -> Result<PeerAccess> {
        let (hip, this, peer) = (self.hip(), self.ordinal.number, super::ordinal(peer)?);
        let (mut reachable, mut atomics) = (0, 0);
        // SAFETY: `reachable` is valid for the write.
        let result = unsafe { (hip.device_can_access_peer)(&raw mut reachable, this, peer) };
        check(hip, result, "hipDeviceCanAccessPeer")?;
        if reachable == 0 {
            return Ok(PeerAccess { reachable: false, native_atomics: false });
        }
        let which = P2P_NATIVE_ATOMIC_SUPPORTED;
        // SAFETY: `atomics` is valid for the write.
        let result = unsafe { (hip.device_get_p2p_attribute)(&raw mut atomics, which, this, peer) };
        check(hip, result, "hipDeviceGetP2PAttribute(NativeAtomicSupported)")?;
        Ok(PeerAccess { reachable: true, native_atomics: atomics != 0 })
    }

    unsafe fn enable_access(&self, owner: &GpuProperties, _ptr: DevicePtr, _len: u64) -> Result<()> {
        export::enable_access(self, super::device(owner.id)?)
    }

    fn allocate(&self, bytes: u64) -> Result<Box<dyn MemoryBackend>> {
        self.sweep();
        let memory = memory::allocate(self, bytes)?;
        // SAFETY: the memory was just made and has at least `bytes` bytes.
        unsafe { self.fill(memory.ptr(), bytes, 0)? };
        Ok(memory)
    }

    fn allocate_pinned(&self, bytes: u64) -> Result<Box<dyn MemoryBackend>> {
        memory::allocate_pinned(self, bytes)
    }

    unsafe fn write(&self, dst: DevicePtr, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let (dst, src) = (dst.as_mut_ptr::<c_void>(), bytes.as_ptr().cast());
        self.blocking("hipMemcpyAsync", |hip, stream| {
            // SAFETY: the caller promises the device range; `bytes` stays until the stream has been waited for.
            unsafe { (hip.memcpy_async)(dst, src, bytes.len(), MEMCPY_DEFAULT, stream) }
        })
    }

    unsafe fn read(&self, src: DevicePtr, bytes: &mut [u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let (dst, src) = (bytes.as_mut_ptr().cast(), src.as_mut_ptr::<c_void>());
        self.blocking("hipMemcpyAsync", |hip, stream| {
            // SAFETY: the caller promises the device range; `bytes` stays until the stream has been waited for.
            unsafe { (hip.memcpy_async)(dst, src, bytes.len(), MEMCPY_DEFAULT, stream) }
        })
    }

    unsafe fn fill(&self, dst: DevicePtr, len: u64, value: u8) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        self.blocking("hipMemsetD8Async", |hip, stream| {
            // SAFETY: the caller promises the device range.
            unsafe { (hip.memset_d8_async)(dst.as_mut_ptr(), value, len as usize, stream) }
        })
    }

    fn create_stream(&self) -> Result<Arc<dyn StreamBackend>> {
        self.sweep();
        Ok(self.own.add(HipStream::create(self)?))
    }

    fn default_stream(&self) -> Result<Arc<dyn StreamBackend>> {
        Ok(self.the_default_stream())
    }

    unsafe fn wrap_stream(&self, raw: *mut c_void) -> Result<Arc<dyn StreamBackend>> {
        // SAFETY: the caller promises a live stream.
        Ok(unsafe { HipStream::of_others(self, raw)? })
    }

    fn create_event(&self, with_timing: bool) -> Result<Arc<dyn EventBackend>> {
        Ok(Arc::new(HipEvent::create(self, with_timing)?))
    }

    fn load_module(&self, source: &KernelSource<'_>) -> Result<Arc<dyn ModuleBackend>> {
        let code = compiler::code(self.hip(), source, &self.architecture)?;
        // SAFETY: hiprtc made it.
        Ok(Arc::new(unsafe { HipModule::load(self, source.name(), &code)? }))
    }

    unsafe fn load_binary(&self, name: &str, binary: &[u8]) -> Result<Arc<dyn ModuleBackend>> {
        // SAFETY: the caller's promise.
        Ok(Arc::new(unsafe { HipModule::load(self, name, binary)? }))
    }

    unsafe fn export(&self, ptr: DevicePtr, len: u64) -> Result<MemoryExport> {
        // SAFETY: the caller promises live memory.
        unsafe { export::export(self, ptr, len) }
    }

    unsafe fn export_dma_buf(&self, ptr: DevicePtr, len: u64) -> Result<DmaBuf> {
        // SAFETY: the caller promises live memory.
        unsafe { export::export_dma_buf(self, ptr, len) }
    }

    fn import(&self, handle: &ExportHandle, allocation_size: u64) -> Result<Box<dyn MemoryBackend>> {
        memory::import(self, handle, allocation_size)
    }

    /// Of ordering nothing is claimed: HIP has no attribute that tells.
    fn gpu_direct(&self) -> Result<GpuDirect> {
        // Releases that do not know the attribute are taken to have no dmabuf.
        let dma_buf =
            attribute(self.ordinal, ATTRIBUTE_DMA_BUF_SUPPORTED).is_ok_and(|supported| supported != 0);
        let writes_ordering = WritesOrdering::None;
        Ok(GpuDirect { rdma: dma_buf, dma_buf, writes_ordering, host_flush: false, stream_flush: false })
    }

    fn flush_gpu_direct_writes(&self, _to_all_devices: bool) -> Result<()> {
        Err(Error::InvalidArgument(format!(
            "{} has no flush of GPUDirect writes by the host (Gpu::gpu_direct says so)",
            self.display()
        )))
    }

    fn synchronize(&self) -> Result<()> {
        let streams = self.launches();
        let gone = self.left_behind.unknown();
        {
            let _entered = self.ordinal.enter()?;
            // SAFETY: the device is the thread's.
            check(self.hip(), unsafe { (self.hip().device_synchronize)() }, "hipDeviceSynchronize")?;
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
        self.ordinal.set_current()
    }

    fn adopt_thread(&self) -> Result<()> {
        self.ordinal.set_current()?;
        self.ordinal.relax_capture().map(|_mode_that_was| ())
    }
}

fn attribute(device: Ordinal, which: u32) -> Result<c_int> {
    let mut value = 0;
    // SAFETY: `value` is valid for the write; an attribute that the runtime does not know is an error.
    let result = unsafe { (device.hip.device_get_attribute)(&raw mut value, which, device.number) };
    check(device.hip, result, format!("hipDeviceGetAttribute({which}, device {})", device.number))?;
    Ok(value)
}

fn properties(device: Ordinal, id: usize) -> Result<GpuProperties> {
    let Ordinal { hip, number } = device;
    let name = text(|buffer, len| {
        // SAFETY: `buffer` is valid for the write of `len` bytes.
        check(hip, unsafe { (hip.device_get_name)(buffer, len, number) }, "hipDeviceGetName")
    })?;
    let pci_bus_id = text(|buffer, len| {
        // SAFETY: `buffer` is valid for the write of `len` bytes.
        check(hip, unsafe { (hip.device_get_pci_bus_id)(buffer, len, number) }, "hipDeviceGetPCIBusId")
    })?
    .to_ascii_lowercase();
    let multiprocessors = attribute(device, ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    Ok(GpuProperties {
        platform: Platform::Hip,
        id,
        name,
        uuid: uuid(hip, number)?,
        numa_node: numa::node_of_pci_device(&pci_bus_id),
        pci_bus_id: Some(pci_bus_id),
        compute_capability: None,
        multiprocessors: u32::try_from(multiprocessors).unwrap_or(0),
        export_kinds: ExportKinds { ipc_handle: true, ..ExportKinds::default() },
    })
}

/// What no attribute tells.
fn architecture(device: Ordinal) -> Result<String> {
    let mut properties = Box::<DeviceProperties>::default();
    // SAFETY: `properties` is valid for the write, and larger than what is written.
    let result = unsafe { (device.hip.get_device_properties)(&raw mut *properties, device.number) };
    if result != HipResult::SUCCESS {
        return Err(failure(device.hip, result, "hipGetDevicePropertiesR0600"));
    }
    let name = CStr::from_bytes_until_nul(&properties.gcn_arch_name).unwrap_or_default();
    Ok(name.to_string_lossy().into_owned())
}

/// A NUL-terminated text that the runtime writes into a buffer.
fn text(write: impl FnOnce(*mut c_char, c_int) -> Result<()>) -> Result<String> {
    let mut buffer = [0u8; 256];
    // One byte less than there is: the last one stays NUL.
    write(buffer.as_mut_ptr().cast(), 255)?;
    Ok(CStr::from_bytes_until_nul(&buffer)
        .map(|text| text.to_string_lossy().into_owned())
        .unwrap_or_default())
}
