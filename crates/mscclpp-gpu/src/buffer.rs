use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64},
    },
};

use crate::{DevicePtr, Error, Gpu, Result, backend::MemoryBackend};

/// Device memory that can be exported to other processes. Clones share it; the last one frees it.
///
/// [`DeviceBuffer::write`], [`read`](DeviceBuffer::read) and [`fill`](DeviceBuffer::fill) block until done, use an
/// internal stream and are not ordered with work on other streams: synchronise those first.
#[derive(Clone)]
pub struct DeviceBuffer {
    inner: Arc<Inner>,
}

struct Inner {
    gpu: Gpu,
    memory: Box<dyn MemoryBackend>,
    len: u64,
}

impl DeviceBuffer {
    pub(crate) fn new(gpu: Gpu, memory: Box<dyn MemoryBackend>, len: u64) -> Self {
        Self { inner: Arc::new(Inner { gpu, memory, len }) }
    }

    /// Where it starts, for kernels and copies.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.inner.memory.ptr()
    }

    /// Its length in bytes, never 0.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> u64 {
        self.inner.len
    }

    /// The device it is on.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.inner.gpu
    }

    /// Copies `bytes` to `offset` on.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; an error of the device, also of a kernel that failed before.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        Error::bounds("DeviceBuffer::write", offset, bytes.len() as u64, self.len())?;
        // SAFETY: the range was just checked, and `self` keeps the memory.
        unsafe { self.gpu().backend().write(self.ptr().add(offset), bytes) }
    }

    /// Copies from `offset` on into `bytes`.
    ///
    /// # Errors
    /// As [`DeviceBuffer::write`].
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        Error::bounds("DeviceBuffer::read", offset, bytes.len() as u64, self.len())?;
        // SAFETY: the range was just checked, and `self` keeps the memory.
        unsafe { self.gpu().backend().read(self.ptr().add(offset), bytes) }
    }

    /// Sets `len` bytes from `offset` on to `value`.
    ///
    /// # Errors
    /// As [`DeviceBuffer::write`].
    pub fn fill(&self, offset: u64, len: u64, value: u8) -> Result<()> {
        Error::bounds("DeviceBuffer::fill", offset, len, self.len())?;
        // SAFETY: the range was just checked, and `self` keeps the memory.
        unsafe { self.gpu().backend().fill(self.ptr().add(offset), len, value) }
    }
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBuffer")
            .field("ptr", &self.ptr())
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// Page-locked host memory that the device's kernels reach as well. Clones share it.
///
/// It is only seen through atomics: device code may write it at any time.
#[derive(Clone)]
pub struct PinnedBuffer {
    inner: Arc<Inner>,
}

impl PinnedBuffer {
    pub(crate) fn new(gpu: Gpu, memory: Box<dyn MemoryBackend>, len: u64) -> Self {
        Self { inner: Arc::new(Inner { gpu, memory, len }) }
    }

    /// Where kernels find it. With unified addressing that is its host address too.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.inner.memory.ptr()
    }

    /// Its length in bytes, never 0.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> u64 {
        self.inner.len
    }

    /// The 4-byte word at `offset` bytes.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], or [`Error::InvalidArgument`] if `offset` is no multiple of 4.
    pub fn word(&self, offset: u64) -> Result<&AtomicU32> {
        // SAFETY: any bits are a u32; `checked` returns an aligned address inside memory that `self` keeps.
        self.checked(offset, 4).map(|p| unsafe { AtomicU32::from_ptr(p.cast()) })
    }

    /// The 8-byte word at `offset` bytes.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], or [`Error::InvalidArgument`] if `offset` is no multiple of 8.
    pub fn word64(&self, offset: u64) -> Result<&AtomicU64> {
        // SAFETY: any bits are a u64; `checked` returns an aligned address inside memory that `self` keeps.
        self.checked(offset, 8).map(|p| unsafe { AtomicU64::from_ptr(p.cast()) })
    }

    fn checked(&self, offset: u64, align: u64) -> Result<*mut u8> {
        Error::bounds("PinnedBuffer::word", offset, align, self.len())?;
        if !offset.is_multiple_of(align) {
            return Err(Error::InvalidArgument(format!("offset {offset} is no multiple of {align}")));
        }
        Ok(self.inner.memory.host_ptr().wrapping_add(offset as usize))
    }
}

impl fmt::Debug for PinnedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedBuffer").field("ptr", &self.ptr()).field("len", &self.len()).finish()
    }
}
