use std::{
    fmt,
    marker::PhantomData,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64},
    },
};

use crate::{
    DevicePtr, Error, ExportHandle, Gpu, KernelArgument, KernelObject, KernelParam, Owner, Result,
    backend::MemoryBackend, fork::OfProcess,
};

/// Device memory that can be exported to other processes. Clones share it; it is freed with the last one.
///
/// [`DeviceBuffer::write`], [`read`](DeviceBuffer::read) and [`fill`](DeviceBuffer::fill) block until they are done.
/// They use an internal stream and are not ordered with work on other streams, so synchronise those streams first. Any
/// number of threads may call them at once; where ranges overlap, each byte comes from one of the calls.
#[derive(Clone)]
pub struct DeviceBuffer {
    inner: Arc<BufferState>,
}

struct BufferState {
    gpu: Gpu,
    memory: OfProcess<Box<dyn MemoryBackend>>,
    len: u64,
}

impl KernelObject for BufferState {}

/// Methods of both kinds of buffers.
macro_rules! of_inner {
    () => {
        /// The length in bytes, never 0.
        #[must_use]
        #[allow(clippy::len_without_is_empty, reason = "never empty")]
        pub fn len(&self) -> u64 {
            self.inner.len
        }

        pub(crate) fn owner(&self) -> Owner {
            Arc::clone(&self.inner) as Owner
        }
    };
}

impl DeviceBuffer {
    of_inner!();

    pub(crate) fn new(gpu: Gpu, memory: Box<dyn MemoryBackend>, len: u64) -> Self {
        Self { inner: Arc::new(BufferState { gpu, memory: OfProcess::new(memory), len }) }
    }

    /// The buffer's address, for kernels and copies.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.inner.memory.ptr()
    }

    /// The buffer's device.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.inner.gpu
    }

    /// Copies `bytes` into the buffer, from byte `offset` on.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; or an error of the device, which may come from a kernel that failed before.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        Error::bounds("DeviceBuffer::write", offset, bytes.len() as u64, self.len())?;
        // SAFETY: the range was just checked, and `self` keeps the memory.
        unsafe { self.gpu().backend()?.write(self.ptr().add(offset), bytes) }
    }

    /// Copies kernel parameters, such as device handles, into the buffer from byte `offset` on, for kernels that take a
    /// pointer to them.
    ///
    /// ```
    /// # use mscclpp_gpu::Platform;
    /// let buffer = Platform::Sim.gpu(0)?.allocate(64)?;
    /// buffer.write_params(8, &[1u64, 2, 3])?;
    /// # Ok::<(), mscclpp_gpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`DeviceBuffer::write`].
    pub fn write_params<T: KernelParam>(&self, offset: u64, params: &[T]) -> Result<()> {
        self.write(offset, &T::slice_to_bytes(params))
    }

    /// Copies from the buffer, from byte `offset` on, into `bytes`.
    ///
    /// # Errors
    /// The same as [`DeviceBuffer::write`].
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        Error::bounds("DeviceBuffer::read", offset, bytes.len() as u64, self.len())?;
        // SAFETY: the range was just checked, and `self` keeps the memory.
        unsafe { self.gpu().backend()?.read(self.ptr().add(offset), bytes) }
    }

    /// Copies values that kernels wrote from the buffer, from byte `offset` on.
    ///
    /// ```
    /// # use mscclpp_gpu::Platform;
    /// let buffer = Platform::Sim.gpu(0)?.allocate(64)?;
    /// buffer.write_params(8, &[1.5f32, 2.5])?;
    /// let mut values = [0f32; 2];
    /// buffer.read_params(8, &mut values)?;
    /// assert_eq!(values, [1.5, 2.5]);
    /// # Ok::<(), mscclpp_gpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`DeviceBuffer::write`].
    pub fn read_params<T: KernelParam>(&self, offset: u64, params: &mut [T]) -> Result<()> {
        // SAFETY: the memory of the slice, all bytes of which are initialised, and may become any others (`KernelParam`).
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(params.as_mut_ptr().cast::<u8>(), size_of_val(params)) };
        self.read(offset, bytes)
    }

    /// Sets `len` bytes of the buffer, from byte `offset` on, to `value`.
    ///
    /// # Errors
    /// The same as [`DeviceBuffer::write`].
    pub fn fill(&self, offset: u64, len: u64, value: u8) -> Result<()> {
        Error::bounds("DeviceBuffer::fill", offset, len, self.len())?;
        // SAFETY: the range was just checked, and `self` keeps the memory.
        unsafe { self.gpu().backend()?.fill(self.ptr().add(offset), len, value) }
    }

    /// Lets all devices of this process that reach this device's memory access the buffer, and opens none of them. Does nothing
    /// for memory that is not virtual: there, [`Gpu::enable_access`] of each device does it. On simulated devices all have access
    /// anyway.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn let_all_access(&self) -> Result<()> {
        self.inner.memory.here()?.let_all_access()
    }

    /// Whether [`suspend`](Self::suspend) gives the memory back: on CUDA if it is virtual memory, and on simulated devices.
    #[must_use]
    pub fn can_suspend(&self) -> bool {
        self.inner.memory.can_suspend()
    }

    /// Gives the memory back to the device, and keeps its addresses. Does nothing if the memory is suspended already, or
    /// [cannot be](Self::can_suspend). The device has the memory back when no other process has it mapped, and all
    /// [exported](Gpu::export) handles are dropped.
    ///
    /// # Safety
    /// Nothing accesses the memory until it is resumed: no kernel, copy or graph, no peer, and none of this buffer's methods.
    ///
    /// # Errors
    /// [`Error::Driver`] if the driver refuses.
    pub unsafe fn suspend(&self) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.inner.memory.here()?.suspend() }
    }

    /// Takes memory from the device again, all zero, at the same addresses. Does nothing if the buffer is not suspended. Other
    /// devices of the process need [access](Gpu::enable_access) again, and other processes a new handle.
    ///
    /// # Errors
    /// [`Error::Driver`] or [`Error::System`] if memory is short; the buffer is still suspended then.
    pub fn resume(&self) -> Result<()> {
        self.inner.memory.here()?.resume(None)
    }
}

impl Gpu {
    /// Allocates `bytes` of zeroed device memory that can be exported to other processes.
    ///
    /// `bytes` must be at least 1; the driver rounds up to its granularity (2 MiB on today's NVIDIA GPUs).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for 0 bytes; [`Error::Driver`] or [`Error::System`] if memory is short.
    pub fn allocate(&self, bytes: u64) -> Result<DeviceBuffer> {
        if bytes == 0 {
            return Err(Error::invalid("a device buffer needs at least one byte"));
        }
        Ok(DeviceBuffer::new(self.clone(), self.backend()?.allocate(bytes)?, bytes))
    }

    /// Allocates `bytes` of zeroed page-locked host memory, as words of 8 bytes. This device's kernels can access it
    /// too.
    ///
    /// On CUDA, memory that is dropped is kept for reuse, because freeing it in the driver would wait for all running
    /// kernels.
    ///
    /// # Errors
    /// As for [`Gpu::allocate`]; the message names `ulimit -l` if the limit on locked memory is the cause.
    pub fn allocate_pinned(&self, bytes: u64) -> Result<PinnedBuffer> {
        self.allocate_pinned_words(bytes)
    }

    /// Like [`Gpu::allocate_pinned`], as words of type `W`: `AtomicU32` or `AtomicU64`.
    ///
    /// # Errors
    /// The same as [`Gpu::allocate_pinned`].
    pub fn allocate_pinned_words<W: PinnedWord>(&self, bytes: u64) -> Result<PinnedBuffer<W>> {
        if bytes == 0 {
            return Err(Error::invalid("a pinned buffer needs at least one byte"));
        }
        Ok(PinnedBuffer::new(self.clone(), self.backend()?.allocate_pinned(bytes)?, bytes))
    }

    /// Maps memory that another process exported. It becomes readable and writable from this device.
    ///
    /// `allocation_size` is the one in [`MemoryExport`](crate::MemoryExport). This does not work for memory of this
    /// process: legacy handles cannot be opened by the process that made them.
    ///
    /// # Errors
    /// [`Error::Driver`] or [`Error::System`] if the handle is stale, or if the device cannot reach the memory.
    pub fn import(&self, handle: &ExportHandle, allocation_size: u64) -> Result<ImportedMemory> {
        Ok(ImportedMemory::new(self.backend()?.import(handle, allocation_size)?))
    }
}

mscclpp_os::debug_fields!(DeviceBuffer, |this| ptr: this.ptr(), len: this.len(), ..);

/// Page-locked host memory that the device's kernels can access too. Clones share it.
///
/// The host accesses it only through atomics of one width, because device code may write it at any time.
pub struct PinnedBuffer<W: PinnedWord = AtomicU64> {
    inner: Arc<BufferState>,
    words: PhantomData<fn() -> W>,
}

/// A word of pinned memory: `AtomicU32` or `AtomicU64`. A buffer has words of one of these types only, because accesses
/// of different widths to the same bytes would be undefined.
pub trait PinnedWord: sealed::Sealed + 'static {
    /// # Safety
    /// `ptr` is aligned, lives for `'a`, and is only accessed through this type by the host.
    #[doc(hidden)]
    unsafe fn at<'a>(ptr: *mut u8) -> &'a Self;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! pinned_word {
    ($($word:ty),*) => { $(
        impl sealed::Sealed for $word {}
        impl PinnedWord for $word {
            unsafe fn at<'a>(ptr: *mut u8) -> &'a Self {
                // SAFETY: the caller's promise; any bits are a number.
                unsafe { <$word>::from_ptr(ptr.cast()) }
            }
        }
    )* };
}
pinned_word!(AtomicU32, AtomicU64);

impl<W: PinnedWord> PinnedBuffer<W> {
    of_inner!();

    pub(crate) fn new(gpu: Gpu, memory: Box<dyn MemoryBackend>, len: u64) -> Self {
        Self { inner: Arc::new(BufferState { gpu, memory: OfProcess::new(memory), len }), words: PhantomData }
    }

    /// The address for kernels. With unified addressing it is the host address too.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.inner.memory.ptr()
    }

    /// The word at byte `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], or [`Error::InvalidArgument`] if `offset` is not a multiple of the word's size.
    pub fn word(&self, offset: u64) -> Result<&W> {
        let size = size_of::<W>() as u64;
        Error::bounds("PinnedBuffer::word", offset, size, self.len())?;
        if !offset.is_multiple_of(size) {
            return Err(Error::invalid(format!("offset {offset} is no multiple of {size}")));
        }
        let word = self.inner.memory.here()?.host_ptr().wrapping_add(offset as usize);
        // SAFETY: aligned and inside memory that `self` keeps; it has words of this type alone.
        Ok(unsafe { W::at(word) })
    }
}

impl<W: PinnedWord> Clone for PinnedBuffer<W> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), words: PhantomData }
    }
}

impl<W: PinnedWord> fmt::Debug for PinnedBuffer<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedBuffer").field("ptr", &self.ptr()).field("len", &self.len()).finish()
    }
}

/// The kernel gets the address of its first byte.
impl KernelArgument for &DeviceBuffer {
    type Param = DevicePtr;

    fn param(&self) -> Result<DevicePtr> {
        Ok(self.ptr())
    }

    fn owner(&self) -> Option<Owner> {
        Some(DeviceBuffer::owner(self))
    }
}

/// The kernel gets the address of its first byte.
impl<W: PinnedWord> KernelArgument for &PinnedBuffer<W> {
    type Param = DevicePtr;

    fn param(&self) -> Result<DevicePtr> {
        Ok(self.ptr())
    }

    fn owner(&self) -> Option<Owner> {
        Some(PinnedBuffer::owner(self))
    }
}

/// Memory of another process, mapped here; unmapped when dropped.
pub struct ImportedMemory {
    backend: OfProcess<Box<dyn MemoryBackend>>,
}

impl ImportedMemory {
    pub(crate) fn new(backend: Box<dyn MemoryBackend>) -> Self {
        Self { backend: OfProcess::new(backend) }
    }

    /// The start of the whole allocation, valid on the device that imported it.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.backend.ptr()
    }

    /// Unmaps the memory, so that its owner can give it back ([`DeviceBuffer::suspend`]), and keeps the addresses. Does nothing
    /// if it is suspended already, or of a kind that its owner cannot give back.
    ///
    /// # Safety
    /// Nothing accesses the memory until it is resumed.
    ///
    /// # Errors
    /// [`Error::Driver`] if the driver refuses.
    pub unsafe fn suspend(&self) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.backend.here()?.suspend() }
    }

    /// Maps the memory of `handle`, which its owner exported after it had resumed the memory, at the same addresses. Does
    /// nothing if it is not suspended.
    ///
    /// # Errors
    /// The same as [`Gpu::import`].
    pub fn resume(&self, handle: &ExportHandle) -> Result<()> {
        self.backend.here()?.resume(Some(handle))
    }
}

mscclpp_os::debug_fields!(ImportedMemory, |this| ptr: this.ptr());
