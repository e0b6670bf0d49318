//! The memory in which data is between a socket and the memory of a device.

use std::sync::atomic::{AtomicU64, Ordering};

use mscclpp::{DevicePtr, Platform, Stream, provider::MemoryRegion};

/// The most bytes that are copied at once.
pub(crate) const CHUNK: u64 = 64 << 10;

/// A chunk of host memory, and a stream for each device that it was copied to or from.
pub(crate) struct Staging {
    chunk: Box<[u8]>,
    streams: Vec<(usize, Stream)>,
}

impl Staging {
    pub(crate) fn new() -> Self {
        Self { chunk: vec![0; CHUNK as usize].into(), streams: Vec::new() }
    }

    /// Returns the first `len` bytes of the chunk.
    pub(crate) fn bytes(&mut self, len: u64) -> &mut [u8] {
        &mut self.chunk[..len as usize]
    }

    /// Copies the first `len` bytes of the chunk to a region. Returns none if that fails.
    pub(crate) fn store(&mut self, region: &MemoryRegion, offset: u64, len: u64) -> Option<()> {
        let (to, from) = (region.ptr().add(offset), DevicePtr::from_ptr(self.chunk.as_ptr()));
        self.copy(region, to, from, len)
    }

    /// Copies from a region to the first `len` bytes of the chunk. Returns none if that fails.
    pub(crate) fn load(&mut self, region: &MemoryRegion, offset: u64, len: u64) -> Option<()> {
        let (to, from) = (DevicePtr::from_ptr(self.chunk.as_mut_ptr()), region.ptr().add(offset));
        self.copy(region, to, from, len)
    }

    /// Copies between the chunk and a region, whose range the caller has checked.
    fn copy(&mut self, region: &MemoryRegion, to: DevicePtr, from: DevicePtr, len: u64) -> Option<()> {
        if is_on_host(region) {
            // SAFETY: the caller keeps the region and has checked the range; the chunk is as long, and nobody else has it.
            unsafe { std::ptr::copy_nonoverlapping(from.as_mut_ptr::<u8>(), to.as_mut_ptr(), len as usize) };
            return Some(());
        }
        let stream = self.stream(region)?;
        // SAFETY: the caller keeps the region and has checked the range; the chunk is as long, nobody else has it, and this
        // waits for the copy.
        unsafe { stream.copy(to, from, len).ok()? };
        stream.synchronize().ok()
    }

    /// Stores 8 bytes in a region, at an address that is a multiple of 8: kernels that see them see everything stored before.
    pub(crate) fn update(&mut self, region: &MemoryRegion, offset: u64, value: u64) -> Option<()> {
        let to = region.ptr().add(offset);
        if is_on_host(region) {
            // SAFETY: the caller keeps the region, and has checked range and address.
            unsafe { AtomicU64::from_ptr(to.as_mut_ptr()) }.store(value, Ordering::Release);
            return Some(());
        }
        let stream = self.stream(region)?;
        // SAFETY: the caller keeps the region, and has checked range and address.
        unsafe { stream.write_u64(to, value).ok()? };
        stream.synchronize().ok()
    }

    fn stream(&mut self, region: &MemoryRegion) -> Option<&Stream> {
        let gpu = region.gpu()?;
        let known = self.streams.iter().position(|(id, _)| *id == gpu.id());
        let at = match known {
            Some(at) => at,
            None => {
                self.streams.push((gpu.id(), gpu.stream().ok()?));
                self.streams.len() - 1
            }
        };
        Some(&self.streams[at].1)
    }
}

/// Whether this thread may access the region by itself. Memory of simulated devices is accessed that way only in tests of the
/// library, which have more writes than streams carry out in their time; otherwise it goes as on GPUs.
fn is_on_host(region: &MemoryRegion) -> bool {
    let direct = |platform| cfg!(feature = "knobs") && platform == Platform::Sim;
    region.gpu().is_none_or(|gpu| direct(gpu.platform()))
}
