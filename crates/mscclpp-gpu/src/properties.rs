//! What can be asked of a device.

use crate::Platform;

/// What is known of a device, asked once when it is opened.
#[derive(Debug, Clone)]
pub struct GpuProperties {
    /// Where it comes from.
    pub platform: Platform,
    /// Its number in this process, which need not be its number in another (`CUDA_VISIBLE_DEVICES`).
    pub id: usize,
    /// What the vendor calls it; a simulated device says `host`.
    pub name: String,
    /// What identifies it on this machine, in every process.
    pub uuid: [u8; 16],
    /// `domain:bus:device.function`, where there is one.
    pub pci_bus_id: Option<String>,
    /// The NUMA node it hangs on, where the system knows one (virtual machines often do not).
    pub numa_node: Option<u32>,
    /// Compute capability, major and minor, on CUDA.
    pub compute_capability: Option<(u32, u32)>,
    /// How many multiprocessors it has.
    pub multiprocessors: u32,
    /// How its memory can be shared with other processes. [`Gpu::allocate`](crate::Gpu::allocate) makes memory for file descriptors and,
    /// where there are any, fabric handles; legacy handles are for plain allocations of others, and for all memory on HIP.
    pub export_kinds: ExportKinds,
}

/// Which ways of sharing memory between processes a device offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExportKinds {
    /// Legacy IPC handles of plain allocations.
    pub ipc_handle: bool,
    /// File descriptors of virtual-memory allocations.
    pub file_descriptor: bool,
    /// Fabric handles, which reach across hosts of one NVLink domain.
    pub fabric: bool,
}

/// Memory of a device, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Not in use by anyone.
    pub free: u64,
    /// All there is.
    pub total: u64,
}

/// Whether and how one device reaches another's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerAccess {
    /// Loads and stores work.
    pub reachable: bool,
    /// Atomic operations work too (NVLink has them, most PCIe pairs do not).
    pub native_atomics: bool,
}

/// How network adapters reach a device's memory by themselves (GPUDirect RDMA).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GpuDirect {
    /// Adapters can be given the memory at all.
    pub rdma: bool,
    /// [`Gpu::export_dma_buf`](crate::Gpu::export_dma_buf) works.
    pub dma_buf: bool,
    /// Whom what adapters have written is visible to without a flush.
    pub writes_ordering: WritesOrdering,
    /// [`Gpu::flush_gpu_direct_writes`](crate::Gpu::flush_gpu_direct_writes) works.
    pub host_flush: bool,
    /// A stream's memory operations can flush, too.
    pub stream_flush: bool,
}

/// Whom what adapters write into a device's memory is visible to, in the order in which it arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum WritesOrdering {
    /// To nobody, without a flush.
    #[default]
    None,
    /// To the device itself.
    Owner,
    /// To all devices.
    AllDevices,
}
