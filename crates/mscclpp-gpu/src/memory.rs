use std::{fmt, os::fd::OwnedFd};

/// An address in the memory of a device, as kernels see it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// The null address.
    pub const NULL: Self = Self(0);

    /// Returns the address `bytes` bytes further on.
    #[must_use]
    pub const fn add(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }

    /// The address as a pointer. Only device code may dereference it, or host code on simulated devices.
    #[must_use]
    pub const fn as_mut_ptr<T>(self) -> *mut T {
        self.0 as *mut T
    }

    /// The address of a pointer to device memory or, for copies, to host memory.
    #[must_use]
    pub fn from_ptr<T>(ptr: *const T) -> Self {
        Self(ptr as u64)
    }
}

impl fmt::Debug for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DevicePtr({:#x})", self.0)
    }
}

/// An allocation of a driver, as [`Gpu::allocation`](crate::Gpu::allocation) finds it. Two values are equal if they describe the
/// same allocation. If memory is freed, and other memory gets its addresses, that is another allocation. This value does
/// not keep the memory alive.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DeviceAllocation {
    pub(crate) base: DevicePtr,
    pub(crate) len: u64,
    /// The driver's number for the allocation, which no other allocation of the process gets.
    pub(crate) id: u64,
}

impl DeviceAllocation {
    /// The first address of the allocation.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.base
    }

    /// The length in bytes, never 0.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> u64 {
        self.len
    }
}

mscclpp_os::debug_fields!(DeviceAllocation, |this| ptr: this.base, len: this.len, id: this.id, ..);

/// The description of a piece of device memory with which another process can map it.
#[derive(Debug)]
pub struct MemoryExport {
    /// A handle of the whole allocation.
    pub handle: ExportHandle,
    /// A fabric handle of the same allocation, if the hardware and its set-up support it.
    pub fabric: Option<[u8; 64]>,
    /// Size of the whole allocation, in bytes.
    pub allocation_size: u64,
    /// The start of the exported range in the allocation, in bytes.
    pub offset: u64,
}

/// A piece of device memory that other drivers can map.
#[derive(Debug)]
pub struct DmaBuf {
    /// The dmabuf.
    pub fd: OwnedFd,
    /// The start of the range in the dmabuf, in bytes: the driver exports whole pages.
    pub offset: u64,
    /// The size of the dmabuf in bytes.
    pub size: u64,
}

/// A handle by which another process can map an allocation.
#[derive(Debug)]
pub enum ExportHandle {
    /// A file descriptor, to be passed over a Unix socket: for virtual-memory allocations, and all memory of simulated
    /// devices.
    FileDescriptor(OwnedFd),
    /// A legacy IPC handle: for plain allocations of CUDA, and all memory of HIP.
    IpcHandle([u8; 64]),
    /// A fabric handle.
    Fabric([u8; 64]),
}
