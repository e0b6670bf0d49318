//! Device memory as sealed memfds (invariant 1), pinned memory, and memory of other processes.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs,
    ftruncate, memfd_create,
};

use super::{mapping::Mapping, races, ranges::Whose};
use crate::{
    DeviceAllocation, DevicePtr, Error, ExportHandle, MemoryExport, MemoryInfo, Result,
    backend::MemoryBackend,
};

/// The type that `fstatfs` returns for a memfd of ordinary pages. One of huge pages could fault when none are left.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// The multiple that allocations take of the heap. Their sizes are exactly the requested ones.
const GRANULARITY: u64 = 4096;

/// The allocations of one device in this process.
pub(super) struct Heap {
    device: usize,
    total: u64,
    allocations: Mutex<Allocations>,
}

#[derive(Default)]
struct Allocations {
    by_address: BTreeMap<u64, Allocation>,
    bytes: u64,
}

impl Allocations {
    /// Returns the allocation that holds the byte at `ptr`, and its start.
    fn at(&self, ptr: DevicePtr) -> Option<(u64, &Allocation)> {
        let (start, allocation) = self.by_address.range(..=ptr.0).next_back()?;
        (ptr.0 - start < allocation.size).then_some((*start, allocation))
    }
}

struct Allocation {
    /// A number that no other allocation of the process has.
    id: u64,
    size: u64,
    /// The bytes that it counts as; 0 while it is suspended.
    taken: u64,
    fd: OwnedFd,
}

impl Heap {
    pub(super) fn new(device: usize, total: u64) -> Arc<Self> {
        Arc::new(Self { device, total, allocations: Mutex::default() })
    }

    pub(super) fn info(&self) -> MemoryInfo {
        MemoryInfo { free: self.total - self.allocations.lock().bytes, total: self.total }
    }

    pub(super) fn allocate(self: &Arc<Self>, bytes: u64) -> Result<DeviceMemory> {
        let taken = self.reserve(&mut self.allocations.lock(), bytes)?;
        self.map(bytes, taken).inspect_err(|_| self.allocations.lock().bytes -= taken)
    }

    /// Counts `bytes`, rounded up, as allocated.
    fn reserve(&self, allocations: &mut Allocations, bytes: u64) -> Result<u64> {
        let free = self.total - allocations.bytes;
        match bytes.checked_next_multiple_of(GRANULARITY) {
            Some(size) if size <= free => {
                allocations.bytes += size;
                Ok(size)
            }
            _ => Err(Error::system(
                format!("allocating {bytes} bytes on simulated device {}", self.device),
                format!("out of memory: {free} of {} bytes are free", self.total),
            )),
        }
    }

    fn map(self: &Arc<Self>, size: u64, taken: u64) -> Result<DeviceMemory> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let name = format!("mscclpp-sim-{}", self.device);
        let failed = |call: &str, e| Error::system(format!("{call} of {size} bytes for {name}"), e);
        let fd = memfd_create(&name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(|e| failed("memfd_create", e))?;
        ftruncate(&fd, size).map_err(|e| failed("ftruncate", e))?;
        // The memory can neither grow nor get further seals: it stays as its importers checked it.
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(|e| failed("F_ADD_SEALS", e))?;
        let mapping = Mapping::shared(fd.as_fd(), size as usize, Whose::Device(self.device))?;
        let start = mapping.ptr();
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        self.allocations.lock().by_address.insert(start.0, Allocation { id, size, taken, fd });
        Ok(DeviceMemory { heap: Arc::clone(self), mapping })
    }

    pub(super) fn holds(&self, ptr: DevicePtr) -> bool {
        self.allocations.lock().at(ptr).is_some()
    }

    /// Finds the allocation that holds the address; not one of another device.
    pub(super) fn allocation(&self, ptr: DevicePtr) -> Result<DeviceAllocation> {
        let allocations = self.allocations.lock();
        let Some((start, Allocation { id, size, .. })) = allocations.at(ptr) else {
            let reason = format!("simulated device {} has no allocation there", self.device);
            return Err(Error::NotExportable { address: ptr.0, len: 1, reason });
        };
        Ok(DeviceAllocation { base: DevicePtr(start), len: *size, id: *id })
    }

    /// Finds the allocation that holds the range; not one of another device.
    pub(super) fn export(&self, ptr: DevicePtr, len: u64) -> Result<MemoryExport> {
        let refused = |reason: String| Error::NotExportable { address: ptr.0, len, reason };
        let allocations = self.allocations.lock();
        let Some((start, allocation)) = allocations.at(ptr) else {
            return Err(refused(format!(
                "simulated device {} has no allocation there; memory made by Gpu::allocate on that device can be exported, \
                 pinned, imported and freed memory cannot",
                self.device
            )));
        };
        let offset = ptr.0 - start;
        if len > allocation.size - offset {
            return Err(refused(format!(
                "it goes past the end of its allocation, {:#x} + {} bytes; export each allocation by itself",
                start, allocation.size
            )));
        }
        let fd =
            allocation.fd.try_clone().map_err(|e| Error::system("duplicating a memory descriptor", e))?;
        let handle = ExportHandle::FileDescriptor(fd);
        Ok(MemoryExport { handle, fabric: None, allocation_size: allocation.size, offset })
    }
}

/// Memory made by [`Heap::allocate`].
pub(super) struct DeviceMemory {
    heap: Arc<Heap>,
    mapping: Mapping,
}

impl MemoryBackend for DeviceMemory {
    fn ptr(&self) -> DevicePtr {
        self.mapping.ptr()
    }

    fn can_suspend(&self) -> bool {
        true
    }

    unsafe fn suspend(&self) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.mapping.suspend()? };
        let mut allocations = self.heap.allocations.lock();
        let Some(allocation) = allocations.by_address.get_mut(&self.ptr().0) else { return Ok(()) };
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&allocation.fd, hole, 0, allocation.size)
            .map_err(|error| Error::system(format!("fallocate of {} bytes", allocation.size), error))?;
        let taken = std::mem::take(&mut allocation.taken);
        allocations.bytes -= taken;
        Ok(())
    }

    fn resume(&self, handle: Option<&ExportHandle>) -> Result<()> {
        let mut allocations = self.heap.allocations.lock();
        let known = allocations.by_address.get(&self.ptr().0).map(|known| (known.taken, known.size));
        if let Some((0, size)) = known {
            let taken = self.heap.reserve(&mut allocations, size)?;
            if let Some(allocation) = allocations.by_address.get_mut(&self.ptr().0) {
                allocation.taken = taken;
            }
        }
        self.mapping.resume(handle)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // This comes before the unmapping, after which the address may be given to other code.
        let mut allocations = self.heap.allocations.lock();
        if let Some(allocation) = allocations.by_address.remove(&self.mapping.ptr().0) {
            allocations.bytes -= allocation.taken;
        }
    }
}

/// Memory that every simulated device reaches.
pub(super) fn pinned(bytes: u64) -> Result<Mapping> {
    let len = usize::try_from(bytes)
        .map_err(|e| Error::system(format!("allocating {bytes} bytes of pinned memory"), e))?;
    Mapping::private(len)
}

/// Maps memory that another process describes as an allocation of `size` bytes. The description is checked: memory that
/// its owner could shrink, or that ends too early, would kill this process when it is touched.
pub(super) fn import(handle: &ExportHandle, size: u64) -> Result<Mapping> {
    let ExportHandle::FileDescriptor(fd) = handle else {
        return Err(Error::invalid(
            "the simulated platform imports memory as file descriptors only, not as IPC or fabric handles",
        ));
    };
    let refused = |why: String| Err(Error::invalid(format!("not memory of a simulated device: {why}")));
    match fcntl_get_seals(fd) {
        Ok(seals) if seals.contains(SealFlags::SHRINK) => {}
        Ok(seals) => return refused(format!("its seals are {seals:?}, without SHRINK")),
        Err(e) => return refused(format!("its seals cannot be read ({e})")),
    }
    let kind = fstatfs(fd).map_err(|e| Error::system("fstatfs of imported memory", e))?.f_type as u64;
    if kind != TMPFS_MAGIC {
        return refused(format!("its file system is of type {kind:#x}, not tmpfs ({TMPFS_MAGIC:#x})"));
    }
    let there = fstat(fd).map_err(|e| Error::system("fstat of imported memory", e))?.st_size;
    match usize::try_from(size) {
        Ok(len) if len > 0 && u64::try_from(there).is_ok_and(|there| there >= size) => {
            races::say_what_is_not_seen();
            Mapping::shared(fd.as_fd(), len, Whose::Theirs)
        }
        _ => refused(format!("{size} bytes were announced, the descriptor has {there}")),
    }
}
