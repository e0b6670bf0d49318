use std::{
    cell::Cell,
    ffi::c_void,
    sync::{Arc, Weak},
    thread,
};

use parking_lot::Mutex;

use super::{
    event::SimEvent,
    memory::{self, Heap},
    module::SimModule,
    queue::Queue,
    races,
    stream::SimStream,
};
use crate::{
    DeviceAllocation, DevicePtr, DmaBuf, Error, ExportHandle, ExportKinds, GpuDirect, GpuProperties,
    KernelSource, MemoryExport, MemoryInfo, Owner, PeerAccess, Platform, Result, access,
    backend::{DeviceBackend, EventBackend, MemoryBackend, ModuleBackend, StreamBackend},
    failed::Untold,
};

thread_local! {
    /// The number of the device that this thread made current.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// One simulated device.
pub(super) struct SimDevice {
    properties: GpuProperties,
    heap: Arc<Heap>,
    /// Whether it reaches the memory of the others, as GPUs connected by NVLink or PCIe do.
    reaches_peers: bool,
    /// The queues of all streams whose worker runs, including dropped ones that are still busy.
    queues: Mutex<Vec<Weak<Queue>>>,
    default_stream: Mutex<Option<Arc<SimStream>>>,
    /// The failures of dropped streams.
    failed: Arc<Mutex<Untold>>,
}

impl SimDevice {
    /// Every device has all cores and all memory of the machine.
    pub(super) fn all(count: usize, reach_peers: bool) -> Vec<Arc<Self>> {
        let cores = thread::available_parallelism().map_or(1, |n| n.get() as u32);
        let machine = rustix::system::sysinfo();
        let memory = (machine.totalram as u64).saturating_mul(u64::from(machine.mem_unit));
        (0..count).map(|id| Arc::new(Self::new(id, cores, memory, reach_peers))).collect()
    }

    fn new(id: usize, cores: u32, memory: u64, reaches_peers: bool) -> Self {
        let properties = GpuProperties {
            platform: Platform::Sim,
            id,
            name: "sim".to_owned(),
            uuid: uuid(id),
            pci_bus_id: None,
            numa_node: None,
            compute_capability: None,
            multiprocessors: cores,
            export_kinds: ExportKinds { ipc_handle: false, file_descriptor: true, fabric: false },
        };
        Self {
            properties,
            heap: Heap::new(id, memory),
            reaches_peers,
            queues: Mutex::default(),
            default_stream: Mutex::default(),
            failed: Arc::default(),
        }
    }

    /// Returns the number of the device that the calling thread made current.
    pub(super) fn current() -> usize {
        CURRENT.get()
    }

    pub(super) fn owns(&self, ptr: DevicePtr) -> bool {
        self.heap.holds(ptr)
    }

    fn start_stream(&self) -> Result<Arc<SimStream>> {
        let stream = SimStream::start(self.properties.id, Arc::clone(&self.failed))?;
        let mut queues = self.queues.lock();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(stream.queue()));
        Ok(Arc::new(stream))
    }
}

/// Makes a uuid of the number alone: device 3 is the same device in every process of the node.
fn uuid(id: usize) -> [u8; 16] {
    let mut uuid = *b"mscclpp-sim-0000";
    for (byte, shift) in uuid[13..].iter_mut().zip([8, 4, 0]) {
        *byte = b"0123456789abcdef"[(id >> shift) % 16];
    }
    uuid
}

impl DeviceBackend for SimDevice {
    fn properties(&self) -> &GpuProperties {
        &self.properties
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        Ok(self.heap.info())
    }

    fn peer_access(&self, _peer: usize) -> Result<PeerAccess> {
        Ok(PeerAccess { reachable: self.reaches_peers, native_atomics: self.reaches_peers })
    }

    unsafe fn enable_access(&self, _owner: &GpuProperties, _ptr: DevicePtr, _len: u64) -> Result<()> {
        Ok(())
    }

    fn allocate(&self, bytes: u64) -> Result<Box<dyn MemoryBackend>> {
        Ok(Box::new(self.heap.allocate(bytes)?))
    }

    fn allocate_pinned(&self, bytes: u64) -> Result<Box<dyn MemoryBackend>> {
        Ok(Box::new(memory::pinned(bytes)?))
    }

    unsafe fn write(&self, dst: DevicePtr, bytes: &[u8]) -> Result<()> {
        races::host_writes(false, dst, bytes.len() as u64)?;
        // SAFETY: the caller promises live memory; kernels access it with atomics (invariant 2).
        unsafe { access::write(dst, bytes) };
        Ok(())
    }

    unsafe fn read(&self, src: DevicePtr, bytes: &mut [u8]) -> Result<()> {
        // SAFETY: the same as in `write`.
        unsafe { access::read(src, bytes) };
        races::host_reads(src, bytes.len() as u64);
        Ok(())
    }

    unsafe fn fill(&self, dst: DevicePtr, len: u64, value: u8) -> Result<()> {
        races::host_writes(true, dst, len)?;
        // SAFETY: the same as in `write`.
        unsafe { access::fill(dst, len, value) };
        Ok(())
    }

    fn create_stream(&self) -> Result<Arc<dyn StreamBackend>> {
        let stream = self.start_stream()?;
        Ok(stream)
    }

    /// One stream like any other, made when first asked for; it does not synchronise with the others.
    fn default_stream(&self) -> Result<Arc<dyn StreamBackend>> {
        let mut default = self.default_stream.lock();
        let stream = match &*default {
            Some(stream) => Arc::clone(stream),
            None => Arc::clone(default.insert(self.start_stream()?)),
        };
        Ok(stream)
    }

    unsafe fn wrap_stream(&self, raw: *mut c_void) -> Result<Arc<dyn StreamBackend>> {
        Err(Error::invalid(format!(
            "the stream is {raw:p}, and a simulated device has no raw streams; use Gpu::stream"
        )))
    }

    fn create_event(&self, with_timing: bool) -> Result<Arc<dyn EventBackend>> {
        Ok(Arc::new(SimEvent::new(with_timing)))
    }

    unsafe fn wrap_event(&self, raw: *mut c_void) -> Result<Arc<dyn EventBackend>> {
        Err(Error::invalid(format!(
            "the event is {raw:p}, and a simulated device has no raw events; use Gpu::event"
        )))
    }

    fn load_module(&self, source: &KernelSource<'_>) -> Result<Arc<dyn ModuleBackend>> {
        Ok(Arc::new(SimModule::load(source)?))
    }

    unsafe fn load_binary(&self, name: &str, _binary: &[u8]) -> Result<Arc<dyn ModuleBackend>> {
        let why = format!("{name} is compiled for a GPU, and this is {}", self.properties.name);
        Err(Error::invalid(format!("{why}, which loads sources alone: use Module::load")))
    }

    fn allocation(&self, ptr: DevicePtr) -> Result<DeviceAllocation> {
        self.heap.allocation(ptr)
    }

    unsafe fn export(&self, ptr: DevicePtr, len: u64) -> Result<MemoryExport> {
        self.heap.export(ptr, len)
    }

    unsafe fn export_dma_buf(&self, ptr: DevicePtr, len: u64) -> Result<DmaBuf> {
        let reason =
            "memory of a simulated device is host memory, and is registered with adapters as that".to_owned();
        Err(Error::NotExportable { address: ptr.0, len, reason })
    }

    fn gpu_direct(&self) -> Result<GpuDirect> {
        Ok(GpuDirect::default())
    }

    fn flush_gpu_direct_writes(&self, _to_all_devices: bool) -> Result<()> {
        Err(Error::invalid("a simulated device has nothing to flush"))
    }

    fn import(&self, handle: &ExportHandle, allocation_size: u64) -> Result<Box<dyn MemoryBackend>> {
        Ok(Box::new(memory::import(handle, allocation_size)?))
    }

    fn synchronize(&self) -> Result<()> {
        let queues: Vec<Arc<Queue>> = self.queues.lock().iter().filter_map(Weak::upgrade).collect();
        // All queues are waited for, whatever the first ones return.
        queues.iter().map(|queue| queue.wait()).fold(Ok(()), Result::and)
    }

    fn take_failed(&self) -> Vec<Owner> {
        let queues: Vec<Arc<Queue>> = self.queues.lock().iter().filter_map(Weak::upgrade).collect();
        let mut failed: Vec<Owner> = queues.iter().flat_map(|queue| queue.take_failed()).collect();
        // This comes after the queues: one that has ended meanwhile has left its failures there.
        failed.extend(self.failed.lock().take());
        failed
    }

    fn make_current(&self) -> Result<()> {
        CURRENT.set(self.properties.id);
        Ok(())
    }

    fn adopt_thread(&self) -> Result<()> {
        self.make_current()
    }
}
