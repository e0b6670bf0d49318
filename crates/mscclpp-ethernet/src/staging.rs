//! Pinned host memory between a device and the network, in chunks, so that one chunk is copied while another travels.

use std::{ops::Range, sync::Arc, time::Duration};

use mscclpp_core::MemoryRegion;
use mscclpp_gpu::{DevicePtr, Event, Gpu, PinnedBuffer, Result, Stream};

use crate::{settings::Settings, socket::Piece};

/// The chunks of one device at one end of one connection, and the stream on which all their copies are made.
///
/// Chunks of a size are used in turn. A chunk is free when its event is complete and its data, if any, has been sent.
///
/// There are many small chunks beside the few large ones. If each small write took a large chunk, only a few writes of 64
/// bytes could be under way at a time, and each would wait for another's copy.
pub(crate) struct Staging {
    gpu: Gpu,
    stream: Stream,
    /// The large chunks, followed by the small ones.
    chunks: Vec<Chunk>,
    /// The number of large chunks.
    large: usize,
    /// The next chunk to be used: among the large ones, and among the small ones.
    next: [usize; 2],
    /// The regions that copies under way touch.
    kept: Vec<Arc<MemoryRegion>>,
}

/// The index of the staging of `gpu` among those of one end of a connection; it is made at the first use. Usually there is
/// one, or none.
pub(crate) fn number_of(stagings: &mut Vec<Staging>, gpu: &Gpu, settings: &Settings) -> Result<usize> {
    if let Some(known) = stagings.iter().position(|staging| staging.is_of(gpu)) {
        return Ok(known);
    }
    stagings.push(Staging::new(gpu, settings)?);
    Ok(stagings.len() - 1)
}

/// The size of a small chunk in bytes, and the number of small chunks.
const SMALL: u64 = 4 << 10;
const SMALL_CHUNKS: u64 = 64;

struct Chunk {
    memory: PinnedBuffer,
    /// The chunk's place in the memory.
    offset: u64,
    len: u64,
    /// The event behind the last copy from or to this chunk.
    copied: Event,
}

impl Chunk {
    /// The chunk's address on the device.
    fn ptr(&self) -> DevicePtr {
        self.memory.ptr().add(self.offset)
    }
}

impl Staging {
    /// Makes the staging for the calling thread, which must be one of this transport's own.
    fn new(gpu: &Gpu, settings: &Settings) -> Result<Self> {
        gpu.adopt_thread()?;
        let chunk = |memory, offset, len| Ok(Chunk { memory, offset, len, copied: gpu.event(false)? });
        let large = (0..settings.chunks).map(|_| {
            let memory = gpu.allocate_pinned(settings.chunk)?;
            chunk(memory, 0, settings.chunk)
        });
        let shared = gpu.allocate_pinned(SMALL * SMALL_CHUNKS)?;
        let small = (0..SMALL_CHUNKS).map(|i| chunk(shared.clone(), i * SMALL, SMALL));
        Ok(Self {
            gpu: gpu.clone(),
            stream: gpu.stream()?,
            chunks: large.chain(small).collect::<Result<_>>()?,
            large: settings.chunks,
            next: [0; 2],
            kept: Vec::new(),
        })
    }

    fn is_of(&self, gpu: &Gpu) -> bool {
        self.gpu.id() == gpu.id() && self.gpu.platform() == gpu.platform()
    }

    /// The chunks that are used for parts of `len` bytes.
    fn kind(&self, len: u64) -> Range<usize> {
        if len <= SMALL { self.large..self.chunks.len() } else { 0..self.large }
    }

    /// Whether `chunk` is used for parts of `len` bytes.
    pub(crate) fn serves(&self, chunk: usize, len: u64) -> bool {
        self.kind(len).contains(&chunk)
    }

    /// The number of chunks for parts of `len` bytes.
    pub(crate) fn count(&self, len: u64) -> usize {
        self.kind(len).len()
    }

    /// The size of a large chunk in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.chunks[0].len
    }

    /// Chooses the next chunk for a part of `len` bytes.
    pub(crate) fn turn(&mut self, len: u64) -> usize {
        let kind = self.kind(len);
        let next = &mut self.next[usize::from(kind.start > 0)];
        let turn = *next;
        *next = (turn + 1) % kind.len();
        kind.start + turn
    }

    /// Whether the last copy from or to a chunk is complete.
    pub(crate) fn is_copied(&self, chunk: usize) -> Result<bool> {
        self.chunks[chunk].copied.query()
    }

    /// The first `len` bytes of a chunk, for the system to read or write. No copy may be under way there.
    pub(crate) fn piece(&self, chunk: usize, len: usize) -> Result<Piece> {
        // A pinned buffer gives access by words only; the address of the word is the chunk's address on the host.
        let Chunk { memory, offset, len: size, .. } = &self.chunks[chunk];
        Ok(Piece { start: memory.word(*offset)?.as_ptr().cast(), len: len.min(*size as usize) })
    }

    /// Starts copying `len` bytes of a region, from `src` on, into a chunk.
    ///
    /// # Safety
    /// The range must be inside the region, `len` at most the size of a chunk, and the chunk free.
    pub(crate) unsafe fn fetch(
        &mut self,
        chunk: usize,
        region: &Arc<MemoryRegion>,
        src: DevicePtr,
        len: u64,
    ) -> Result<()> {
        self.keep(region);
        let chunk = &self.chunks[chunk];
        // SAFETY: the caller promises the ranges; `kept` has the region, and `self` the chunk, until the copy is complete.
        unsafe { self.stream.copy(chunk.ptr(), src, len)? };
        self.stream.record(&chunk.copied)
    }

    /// Starts copying the first `len` bytes of a chunk to offset `dst` of a region.
    ///
    /// # Safety
    /// The same as [`Staging::fetch`], and nobody may write to the chunk before the copy is complete.
    pub(crate) unsafe fn store(
        &mut self,
        chunk: usize,
        region: &Arc<MemoryRegion>,
        dst: DevicePtr,
        len: u64,
    ) -> Result<()> {
        self.keep(region);
        let chunk = &self.chunks[chunk];
        // SAFETY: the caller promises the ranges; `kept` has the region, and `self` the chunk, until the copy is complete.
        unsafe { self.stream.copy(dst, chunk.ptr(), len)? };
        self.stream.record(&chunk.copied)
    }

    /// Stores `value` at `dst` in a region, after all copies so far: a reader that sees the value sees their data.
    ///
    /// # Safety
    /// The 8 bytes must be inside the region, and aligned.
    pub(crate) unsafe fn publish(
        &mut self,
        region: &Arc<MemoryRegion>,
        dst: DevicePtr,
        value: u64,
    ) -> Result<()> {
        self.keep(region);
        // SAFETY: the caller promises the range; `kept` has the region until the store is done.
        unsafe { self.stream.write_u64(dst, value) }
    }

    fn keep(&mut self, region: &Arc<MemoryRegion>) {
        if !self.kept.iter().any(|kept| Arc::ptr_eq(kept, region)) {
            self.kept.push(region.clone());
        }
    }

    /// Whether all copies and stores are complete. If so, releases the regions.
    pub(crate) fn is_idle(&mut self) -> Result<bool> {
        if self.kept.is_empty() {
            return Ok(true);
        }
        let idle = self.stream.query()?;
        if idle {
            self.kept.clear();
        }
        Ok(idle)
    }
}

/// The longest time that a dropped staging waits for copies under way, before it leaks their memory.
const DRAIN: Duration = Duration::from_secs(5);

impl Drop for Staging {
    fn drop(&mut self) {
        if self.kept.is_empty() {
            return;
        }
        if let Err(error) = self.stream.synchronize_timeout(DRAIN) {
            tracing::error!(
                target: "mscclpp::conn", %error,
                "copies between a device and the wire did not finish; their memory is kept for ever"
            );
            std::mem::forget(std::mem::take(&mut self.kept));
            std::mem::forget(std::mem::take(&mut self.chunks));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_parts_have_many_chunks_which_share_no_byte() {
        let gpu = mscclpp_gpu::Platform::Sim.gpu(0).unwrap();
        let mut staging = Staging::new(&gpu, &Settings::default()).unwrap();
        for (len, count, size) in [(1, 64, 4096), (4096, 64, 4096), (4097, 4, 1 << 20)] {
            assert_eq!(staging.count(len), count);
            let turns: Vec<_> = (0..count).map(|_| staging.turn(len)).collect();
            assert!(turns.iter().all(|chunk| staging.serves(*chunk, len)));
            let mut starts: Vec<_> =
                turns.iter().map(|chunk| staging.piece(*chunk, 1).unwrap().start.addr()).collect();
            starts.sort_unstable();
            assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= size), "{starts:x?}");
            assert_eq!(staging.turn(len), turns[0], "round again");
        }
    }
}
