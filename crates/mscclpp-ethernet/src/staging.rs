//! Pinned host memory between a device and the wire, in chunks, so that one chunk is copied while another travels.

use std::{sync::Arc, time::Duration};

use mscclpp_core::MemoryRegion;
use mscclpp_gpu::{DevicePtr, Event, Gpu, PinnedBuffer, Result, Stream};

use crate::{Settings, socket::Piece};

/// The chunks of one device at one end of one connection, and the stream that all its copies are on.
///
/// Chunks are used in turn. A chunk is free when its event is complete and its data, if any, has been sent.
pub(crate) struct Staging {
    gpu: Gpu,
    stream: Stream,
    chunks: Vec<Chunk>,
    next: usize,
    /// What the copies under way touch.
    kept: Vec<Arc<MemoryRegion>>,
}

struct Chunk {
    memory: PinnedBuffer,
    /// Behind the last copy from or to this chunk.
    copied: Event,
}

impl Staging {
    /// Staging for the calling thread, which must be one of this transport's own.
    pub(crate) fn new(gpu: &Gpu, settings: &Settings) -> Result<Self> {
        gpu.adopt_thread()?;
        let chunk = || Ok(Chunk { memory: gpu.allocate_pinned(settings.chunk)?, copied: gpu.event(false)? });
        Ok(Self {
            gpu: gpu.clone(),
            stream: gpu.stream()?,
            chunks: (0..settings.chunks).map(|_| chunk()).collect::<Result<_>>()?,
            next: 0,
            kept: Vec::new(),
        })
    }

    pub(crate) fn is_of(&self, gpu: &Gpu) -> bool {
        self.gpu.id() == gpu.id() && self.gpu.platform() == gpu.platform()
    }

    /// How many chunks there are.
    pub(crate) fn count(&self) -> usize {
        self.chunks.len()
    }

    /// Bytes of a chunk.
    pub(crate) fn size(&self) -> u64 {
        self.chunks[0].memory.len()
    }

    /// The chunk whose turn it is.
    pub(crate) fn turn(&mut self) -> usize {
        let turn = self.next;
        self.next = (turn + 1) % self.chunks.len();
        turn
    }

    /// Whether the last copy from or to a chunk is complete.
    pub(crate) fn is_copied(&self, chunk: usize) -> Result<bool> {
        self.chunks[chunk].copied.query()
    }

    /// The first `len` bytes of a chunk, for the system to read or write. Only while no copy is under way there.
    pub(crate) fn piece(&self, chunk: usize, len: usize) -> Result<Piece> {
        // A pinned buffer is only seen through words; this is the address that the host has for it.
        let start = self.chunks[chunk].memory.word(0)?.as_ptr().cast();
        Ok(Piece { start, len: len.min(self.size() as usize) })
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
        // SAFETY: the caller's promise; `kept` has the region, and `self` the chunk, until the copy is complete.
        unsafe { self.stream.copy(chunk.memory.ptr(), src, len)? };
        self.stream.record(&chunk.copied)
    }

    /// Starts copying the first `len` bytes of a chunk to offset `dst` of a region.
    ///
    /// # Safety
    /// As [`Staging::fetch`], and nobody may write to the chunk before the copy is complete.
    pub(crate) unsafe fn store(
        &mut self,
        chunk: usize,
        region: &Arc<MemoryRegion>,
        dst: DevicePtr,
        len: u64,
    ) -> Result<()> {
        self.keep(region);
        let chunk = &self.chunks[chunk];
        // SAFETY: the caller's promise; `kept` has the region, and `self` the chunk, until the copy is complete.
        unsafe { self.stream.copy(dst, chunk.memory.ptr(), len)? };
        self.stream.record(&chunk.copied)
    }

    /// Stores `value` at `dst` of a region, after all copies so far: a reader that sees it sees their data.
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
        // SAFETY: the caller's promise; `kept` has the region until the store is done.
        unsafe { self.stream.write_u64(dst, value) }
    }

    fn keep(&mut self, region: &Arc<MemoryRegion>) {
        if !self.kept.iter().any(|kept| Arc::ptr_eq(kept, region)) {
            self.kept.push(region.clone());
        }
    }

    /// Whether everything is complete. If so, lets go of the regions.
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

/// How long a dropped staging waits for copies under way, before it gives up their memory as lost.
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

/// How a thread waits for a device: it spins, then yields, then naps.
#[derive(Default)]
pub(crate) struct Backoff(u32);

impl Backoff {
    pub(crate) fn wait(&mut self) {
        self.0 = self.0.saturating_add(1);
        match self.0 {
            0..200 => std::hint::spin_loop(),
            200..2000 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_micros(20)),
        }
    }
}
