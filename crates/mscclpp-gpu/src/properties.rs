//! The properties of a device.

use crate::Platform;

/// The properties of a device, read once when it is opened.
#[derive(Debug, Clone)]
pub struct GpuProperties {
    /// The device's platform.
    pub platform: Platform,
    /// Its number in this process, which need not be its number in another (`CUDA_VISIBLE_DEVICES`).
    pub id: usize,
    /// The vendor's name for it; for a simulated device, `sim`.
    pub name: String,
    /// Identifies the device on this machine, in every process.
    pub uuid: [u8; 16],
    /// `domain:bus:device.function`, if it has one.
    pub pci_bus_id: Option<String>,
    /// The NUMA node to which it is attached, if the system knows it (virtual machines often do not).
    pub numa_node: Option<u32>,
    /// Compute capability, major and minor, on CUDA.
    pub compute_capability: Option<(u32, u32)>,
    /// The number of multiprocessors.
    pub multiprocessors: u32,
    /// The ways in which its memory can be shared with other processes. [`Gpu::allocate`](crate::Gpu::allocate) makes
    /// memory for file descriptors and, if the device has them, fabric handles. Legacy handles are for plain allocations
    /// made by other libraries, and for all memory on HIP.
    pub export_kinds: ExportKinds,
}

/// The ways in which a device can share memory between processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExportKinds {
    /// Legacy IPC handles of plain allocations.
    pub ipc_handle: bool,
    /// File descriptors of virtual-memory allocations.
    pub file_descriptor: bool,
    /// Fabric handles, which reach across nodes of one NVLink domain.
    pub fabric: bool,
}

/// Memory of a device, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Memory that nobody uses.
    pub free: u64,
    /// All memory of the device.
    pub total: u64,
}

/// Whether and how one device reaches another's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerAccess {
    /// Whether loads and stores work.
    pub reachable: bool,
    /// Whether atomic operations work too (over NVLink they do, between most PCIe pairs they do not).
    pub native_atomics: bool,
}

/// How network adapters access a device's memory directly (GPUDirect RDMA).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GpuDirect {
    /// Whether adapters can access the memory at all.
    pub rdma: bool,
    /// Whether [`Gpu::export_dma_buf`](crate::Gpu::export_dma_buf) works.
    pub dma_buf: bool,
    /// The devices to which writes of adapters are visible without a flush.
    pub writes_ordering: WritesOrdering,
    /// Whether [`Gpu::flush_gpu_direct_writes`](crate::Gpu::flush_gpu_direct_writes) works.
    pub host_flush: bool,
    /// Whether memory operations of a stream can flush too.
    pub stream_flush: bool,
}

/// The devices to which writes of adapters into a device's memory are visible in the order in which they arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum WritesOrdering {
    /// No device, without a flush.
    #[default]
    None,
    /// The device itself.
    Owner,
    /// All devices.
    AllDevices,
}
