//! The memory in which data is between a socket and the memory of a device.

use mscclpp::{DevicePtr, Stream, provider::MemoryRegion};

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

    /// The first `len` bytes of the chunk.
    pub(crate) fn bytes(&mut self, len: u64) -> &mut [u8] {
        &mut self.chunk[..len as usize]
    }

    /// Copies the first `len` bytes of the chunk to a region. None if that fails.
    pub(crate) fn store(&mut self, region: &MemoryRegion, offset: u64, len: u64) -> Option<()> {
        let (to, from) = (region.ptr().add(offset), DevicePtr::from_ptr(self.chunk.as_ptr()));
        let stream = self.stream(region)?;
        // SAFETY: the caller keeps the region and has checked the range; the chunk is as long, and this waits for the copy.
        unsafe { stream.copy(to, from, len).ok()? };
        stream.synchronize().ok()
    }

    /// Copies from a region to the first `len` bytes of the chunk.
    pub(crate) fn load(&mut self, region: &MemoryRegion, offset: u64, len: u64) -> Option<()> {
        let (to, from) = (DevicePtr::from_ptr(self.chunk.as_mut_ptr()), region.ptr().add(offset));
        let stream = self.stream(region)?;
        // SAFETY: the caller keeps the region and has checked the range; this waits for the copy, and nobody else has the chunk.
        unsafe { stream.copy(to, from, len).ok()? };
        stream.synchronize().ok()
    }

    /// Stores 8 bytes in a region, at an address that is a multiple of 8: kernels that see them see everything stored before.
    pub(crate) fn update(&mut self, region: &MemoryRegion, offset: u64, value: u64) -> Option<()> {
        let stream = self.stream(region)?;
        // SAFETY: the caller keeps the region, and has checked range and address.
        unsafe { stream.write_u64(region.ptr().add(offset), value).ok()? };
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
