//! Memory of devices, page-locked memory, and memory of other processes.

use std::{
    collections::BTreeMap,
    ffi::{c_int, c_uint, c_void},
    fs::{File, OpenOptions},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    process,
    sync::atomic::{AtomicU64, Ordering},
};

use mscclpp_gpu::{DeviceBuffer, DevicePtr, ExportHandle, ImportedMemory, PinnedBuffer};
use mscclpp_gpu_sys::{
    IPC_LAZY_ENABLE_PEER_ACCESS, IpcMemHandle, MEMORY_TYPE_DEVICE, POINTER_BUFFER_ID, POINTER_DEVICE_ORDINAL,
    POINTER_MEMORY_TYPE,
    hip::{
        DEVICE_MALLOC_FINE_GRAINED, DEVICE_MALLOC_UNCACHED, HOST_MALLOC_COHERENT, HOST_MALLOC_MAPPED,
        HOST_MALLOC_PORTABLE, HipResult,
    },
};
use parking_lot::Mutex;

use crate::{
    devices,
    entry::{Out, done, entry_points, require},
};

/// The byte that fills memory to which nobody has written.
const PATTERN: u8 = 0xA5;

const MEMORY_TYPE_HOST: u32 = 1;

/// All memory that was allocated or imported, by its address.
static RANGES: Mutex<BTreeMap<u64, Range>> = Mutex::new(BTreeMap::new());

struct Range {
    /// A number that no other range of the process gets.
    id: u64,
    bytes: u64,
    /// The device that made or imported it.
    device: c_int,
    kind: Kind,
}

/// The owner of the memory.
enum Kind {
    /// Device memory, with a descriptor for other processes once one was asked for.
    Device {
        buffer: DeviceBuffer,
        exported: Option<File>,
    },
    Pinned {
        _buffer: PinnedBuffer,
    },
    Imported {
        _memory: ImportedMemory,
    },
}

/// The content of an IPC handle. The inode shows whether the descriptor still belongs to the same memory.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Handle {
    process: u64,
    descriptor: u64,
    inode: u64,
    bytes: u64,
}

const MAGIC: u64 = u64::from_le_bytes(*b"fake hip");

impl Handle {
    fn to_raw(self) -> IpcMemHandle {
        let mut reserved = [0; 64];
        let words = [MAGIC, self.process, self.descriptor, self.inode, self.bytes];
        for (place, word) in reserved.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        IpcMemHandle { reserved }
    }

    fn of_raw(raw: &IpcMemHandle) -> Option<Self> {
        let word = |i: usize| {
            raw.reserved[i * 8..][..8].iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte))
        };
        let [process, descriptor, inode, bytes] = [1, 2, 3, 4].map(word);
        (word(0) == MAGIC).then_some(Self { process, descriptor, inode, bytes })
    }
}

/// Counts device memory, pinned memory, and imported memory.
pub(crate) fn existing() -> [u64; 3] {
    let mut counts = [0; 3];
    for range in RANGES.lock().values() {
        let kind = match range.kind {
            Kind::Device { .. } => 0,
            Kind::Pinned { .. } => 1,
            Kind::Imported { .. } => 2,
        };
        counts[kind] += 1;
    }
    counts
}

/// Returns the bytes of device memory that this process has allocated on a device.
pub(crate) fn used_by(device: c_int) -> u64 {
    let ranges = RANGES.lock();
    let of_device =
        ranges.values().filter(|range| range.device == device && matches!(range.kind, Kind::Device { .. }));
    of_device.map(|range| range.bytes).sum()
}

/// Returns the range that holds `ptr`, with its address.
fn holding(ranges: &mut BTreeMap<u64, Range>, ptr: *mut c_void) -> Option<(u64, &mut Range)> {
    let ptr = ptr as u64;
    let (base, range) = ranges.range_mut(..=ptr).next_back()?;
    (ptr - base < range.bytes).then_some((*base, range))
}

/// Adds a range of the calling thread's device.
fn add(base: DevicePtr, bytes: u64, kind: Kind) -> *mut c_void {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    RANGES.lock().insert(base.0, Range { id, bytes, device: devices::current(), kind });
    base.as_mut_ptr()
}

/// Removes the range that begins at `ptr` and whose kind `is_kind` accepts.
fn take(ptr: *mut c_void, is_kind: impl FnOnce(&Kind) -> bool) -> Result<Range, HipResult> {
    let mut ranges = RANGES.lock();
    let base = ptr as u64;
    match ranges.get(&base) {
        Some(range) if is_kind(&range.kind) => ranges.remove(&base).ok_or(HipResult::INVALID_VALUE),
        _ => Err(HipResult::INVALID_VALUE),
    }
}

pub(crate) fn attribute(which: c_uint, ptr: *mut c_void) -> Result<u64, HipResult> {
    let mut ranges = RANGES.lock();
    let (_, range) = holding(&mut ranges, ptr).ok_or(HipResult::INVALID_VALUE)?;
    match which {
        POINTER_MEMORY_TYPE if matches!(range.kind, Kind::Pinned { .. }) => Ok(MEMORY_TYPE_HOST.into()),
        POINTER_MEMORY_TYPE => Ok(MEMORY_TYPE_DEVICE.into()),
        POINTER_DEVICE_ORDINAL => Ok(range.device as u64),
        POINTER_BUFFER_ID => Ok(range.id),
        _ => Err(HipResult::INVALID_VALUE),
    }
}

entry_points! {
    fn hipExtMallocWithFlags(address: Out<*mut c_void>, bytes: usize, flags: c_uint) {
        require(matches!(flags, DEVICE_MALLOC_UNCACHED | DEVICE_MALLOC_FINE_GRAINED) && bytes > 0)?;
        let [free, _] = devices::memory_info()?;
        if bytes as u64 > free {
            return Err(HipResult::OUT_OF_MEMORY);
        }
        let bytes = bytes as u64;
        let gpu = &devices::current_device()?.gpu;
        let buffer = gpu.allocate(bytes).map_err(|_full| HipResult::OUT_OF_MEMORY)?;
        done(buffer.fill(0, bytes, PATTERN))?;
        address.give(add(buffer.ptr(), bytes, Kind::Device { buffer, exported: None }))
    }

    fn hipFree(address: *mut c_void) {
        let range = take(address, |kind| matches!(kind, Kind::Device { .. }))?;
        // HIP documents that it waits. Earlier failures show elsewhere.
        let _waited = devices::device(range.device)?.gpu.synchronize();
        drop(range);
        Ok(())
    }

    fn hipHostMalloc(address: Out<*mut c_void>, bytes: usize, flags: c_uint) {
        require(flags == HOST_MALLOC_PORTABLE | HOST_MALLOC_MAPPED | HOST_MALLOC_COHERENT && bytes > 0)?;
        let bytes = bytes as u64;
        let buffer: PinnedBuffer = done(devices::current_device()?.gpu.allocate_pinned(bytes))?;
        address.give(add(buffer.ptr(), bytes, Kind::Pinned { _buffer: buffer }))
    }

    fn hipHostFree(address: *mut c_void) {
        take(address, |kind| matches!(kind, Kind::Pinned { .. })).map(drop)
    }

    fn hipHostGetDevicePointer(device: Out<*mut c_void>, host: *mut c_void, flags: c_uint) {
        let is_pinned =
            matches!(holding(&mut RANGES.lock(), host), Some((_, Range { kind: Kind::Pinned { .. }, .. })));
        require(flags == 0 && is_pinned)?;
        device.give(host)
    }

    fn hipMemGetAddressRange(base: Out<*mut c_void>, bytes: Out<usize>, ptr: *mut c_void) {
        let mut ranges = RANGES.lock();
        let (begin, range) = holding(&mut ranges, ptr).ok_or(HipResult::INVALID_VALUE)?;
        base.give(begin as *mut c_void)?;
        bytes.give(range.bytes as usize)
    }

    fn hipIpcGetMemHandle(handle: Out<IpcMemHandle>, ptr: *mut c_void) {
        let mut ranges = RANGES.lock();
        let range = ranges.get_mut(&(ptr as u64)).ok_or(HipResult::INVALID_VALUE)?;
        let Kind::Device { buffer, exported } = &mut range.kind else {
            return Err(HipResult::INVALID_VALUE);
        };
        if exported.is_none() {
            // SAFETY: memory that the table keeps.
            let export = done(unsafe { buffer.gpu().export(buffer.ptr(), buffer.len()) })?;
            let ExportHandle::FileDescriptor(descriptor) = export.handle else {
                return Err(HipResult::NOT_SUPPORTED);
            };
            *exported = Some(File::from(descriptor));
        }
        let file = exported.as_ref().ok_or(HipResult::UNKNOWN)?;
        let inode = file.metadata().map_err(|_| HipResult::UNKNOWN)?.ino();
        let known = Handle {
            process: u64::from(process::id()),
            descriptor: file.as_raw_fd() as u64,
            inode,
            bytes: range.bytes,
        };
        handle.give(known.to_raw())
    }

    fn hipIpcOpenMemHandle(address: Out<*mut c_void>, handle: IpcMemHandle, flags: c_uint) {
        let handle = Handle::of_raw(&handle).ok_or(HipResult::INVALID_VALUE)?;
        require(flags == IPC_LAZY_ENABLE_PEER_ACCESS && handle.process != u64::from(process::id()))?;
        let path = format!("/proc/{}/fd/{}", handle.process, handle.descriptor);
        let file =
            OpenOptions::new().read(true).write(true).open(path).map_err(|_| HipResult::INVALID_HANDLE)?;
        if file.metadata().map_err(|_| HipResult::INVALID_HANDLE)?.ino() != handle.inode {
            return Err(HipResult::INVALID_HANDLE);
        }
        let exported = ExportHandle::FileDescriptor(OwnedFd::from(file));
        let memory = done(devices::current_device()?.gpu.import(&exported, handle.bytes))?;
        address.give(add(memory.ptr(), handle.bytes, Kind::Imported { _memory: memory }))
    }

    fn hipIpcCloseMemHandle(address: *mut c_void) {
        take(address, |kind| matches!(kind, Kind::Imported { .. })).map(drop)
    }
}
