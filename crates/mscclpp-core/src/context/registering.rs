//! Memory of this process that a context registers, and memory of peers that it maps.

use std::sync::Arc;

use mscclpp_gpu::{DeviceBuffer, DevicePtr, Gpu, PinnedBuffer, Platform};

use super::Context;
use crate::{
    Error, MemoryRegion, RegionInfo, RegisteredMemory, Result, Transport, TransportFlags, identity,
    provider::{RemoteRegion, TransportProvider},
};

impl Context {
    /// Registers a whole buffer for use over `transports`: one, several as in `CUDA_IPC | IB0`, or none for [local
    /// use](RegisteredMemory#memory-for-local-use).
    ///
    /// The registration keeps the buffer alive.
    ///
    /// # Errors
    /// [`Error::NoProvider`], or the provider's own errors.
    pub fn register_buffer(
        &self,
        buffer: &DeviceBuffer,
        transports: impl Into<TransportFlags>,
    ) -> Result<RegisteredMemory> {
        self.inner.here()?;
        let owner = Arc::new(buffer.clone());
        let region = MemoryRegion::new(buffer.ptr(), buffer.len(), Some(buffer.gpu().clone()), Some(owner))?;
        self.register(region, transports.into())
    }

    /// Registers a whole buffer of pinned host memory, as [`Context::register_buffer`] does with one of a device.
    /// Kernels of the device that it was allocated for reach it, and transports that move host memory need no copy of
    /// their own.
    ///
    /// The registration keeps the buffer alive.
    ///
    /// # Errors
    /// The same as [`Context::register_buffer`]; [`Error::InvalidArgument`] if the memory's address on the device
    /// differs from that on the host.
    pub fn register_pinned(
        &self,
        buffer: &PinnedBuffer,
        transports: impl Into<TransportFlags>,
    ) -> Result<RegisteredMemory> {
        self.inner.here()?;
        let region =
            MemoryRegion::new(host_address(buffer)?, buffer.len(), None, Some(Arc::new(buffer.clone())))?;
        self.register(region, transports.into())
    }

    /// Registers memory of any origin (PyTorch, CuPy, cudarc, host memory) for use over `transports`.
    ///
    /// # Safety
    /// `ptr..ptr + len` must be valid memory, of a device of this context's platform or of the host, until the last
    /// clone of the result and every peer's use of it are gone. As soon as a peer may have got the result
    /// ([`RegisteredMemory::serialize`]), the memory may be written at any moment, and it is read when this side
    /// writes from it. During that time no Rust reference may cover any part of it, except shared references to
    /// atomics and to the inside of an `UnsafeCell`. So it is undefined behaviour to register the memory of a `Vec`
    /// or a slice and use it as such meanwhile, even if nobody looks at it while a peer writes.
    ///
    /// # Errors
    /// The same as [`Context::register_buffer`]; [`Error::InvalidArgument`] for a null address or no bytes.
    pub unsafe fn register_memory(
        &self,
        ptr: DevicePtr,
        len: u64,
        transports: impl Into<TransportFlags>,
    ) -> Result<RegisteredMemory> {
        self.inner.here()?;
        if ptr == DevicePtr::NULL || len == 0 || ptr.0.checked_add(len).is_none() {
            return Err(Error::InvalidArgument(format!("cannot register {len} bytes at {ptr:?}")));
        }
        let gpu = match self.platform() {
            Ok(platform) => platform.owner_of(ptr)?,
            Err(_) => None,
        };
        let region = MemoryRegion::new(ptr, len, gpu, None)?;
        self.register(region, transports.into())
    }

    pub(super) fn register(
        &self,
        region: Arc<MemoryRegion>,
        transports: TransportFlags,
    ) -> Result<RegisteredMemory> {
        let registrations = transports
            .iter()
            .map(|t| Ok((t, self.provider(t)?.register(t, &region)?)))
            .collect::<Result<Vec<_>>>()?;
        let platform = region.gpu().map_or(Platform::Sim, Gpu::platform);
        RegisteredMemory::local(region, identity::host_id()?, platform, registrations)
    }

    /// Maps a peer's memory for kernels of `gpu`, without a connection, and returns its address. Uses the first of
    /// the memory's transports that this context serves and that maps memory; returns `None` if there is no such
    /// transport. The address is valid as long as `memory` or a clone of it is kept, and [`RegisteredMemory::data`]
    /// returns it from now on. For a memory that was registered here, returns the memory's own address.
    ///
    /// Blocks until the memory's owner answers, for some seconds at most. Memory that is mapped already is not mapped
    /// again.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a memory that its owner registered for local use; [`Error::NoProvider`] if this context
    /// serves none of its transports; errors of mapping, such as [`Error::Unreachable`] and [`Error::PeerLost`].
    pub fn map_memory(&self, memory: &RegisteredMemory, gpu: &Gpu) -> Result<Option<DevicePtr>> {
        self.map(memory, gpu, |provider, info| provider.import(info, Some(gpu)))
    }

    /// Maps memory as [`Context::map_memory`] does, but memory of this process at other addresses than its owner's. So it may
    /// be used and unmapped also after the owner has freed it.
    ///
    /// # Errors
    /// The same as [`Context::map_memory`]; an error of mapping also for memory that cannot be mapped twice in a process.
    pub fn map_memory_apart(&self, memory: &RegisteredMemory, gpu: &Gpu) -> Result<Option<DevicePtr>> {
        self.map(memory, gpu, |provider, info| {
            provider.import(&RegionInfo { local: None, ..info.clone() }, Some(gpu))
        })
    }

    fn map(
        &self,
        memory: &RegisteredMemory,
        gpu: &Gpu,
        import: impl Fn(&dyn TransportProvider, &RegionInfo<'_>) -> Result<Arc<dyn RemoteRegion>>,
    ) -> Result<Option<DevicePtr>> {
        self.inner.here()?;
        if memory.is_local() {
            return Ok(memory.data());
        }
        let what = "the memory";
        let mut failure = None;
        for (transport, provider) in self.mapping_providers(memory) {
            match memory.imported(what, transport, Some(gpu), |info| import(&*provider, info)) {
                Ok(region) if region.ptr().is_some() => return Ok(region.ptr()),
                Ok(_) => {}
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        match (failure, memory.transports().iter().next()) {
            (Some(error), _) => Err(error),
            (None, Some(transport)) if (memory.transports() & self.transports()).none() => {
                Err(self.no_provider(transport))
            }
            (None, Some(_)) => Ok(None),
            (None, None) => Err(Error::InvalidArgument(format!(
                "{what} is registered for no transport, for local use alone; its owner must register it for one that both \
                 sides have"
            ))),
        }
    }

    /// Whether [`Context::map_memory`] may return an address of this memory: it was registered here, or it is memory
    /// of a device and this context serves a transport of it that maps memory. Does not ask the memory's owner.
    #[must_use]
    pub fn may_map(&self, memory: &RegisteredMemory) -> bool {
        memory.is_local() || (memory.is_of_a_device() && self.mapping_providers(memory).next().is_some())
    }

    fn mapping_providers(
        &self,
        memory: &RegisteredMemory,
    ) -> impl Iterator<Item = (Transport, Arc<dyn TransportProvider>)> {
        let transports: Vec<_> = memory.transports().iter().collect();
        transports.into_iter().filter_map(|transport| {
            let provider = self.provider(transport).ok()?;
            provider.maps_memory(transport).then_some((transport, provider))
        })
    }
}

/// Returns the address of pinned memory, which must be the same for host and device.
pub(super) fn host_address(pinned: &PinnedBuffer) -> Result<DevicePtr> {
    let host = DevicePtr::from_ptr(pinned.word(0)?.as_ptr());
    match host == pinned.ptr() {
        true => Ok(host),
        false => Err(Error::InvalidArgument(format!(
            "the device has pinned memory at {:?} which the host has at {host:?}; memory that peers write needs one address",
            pinned.ptr()
        ))),
    }
}
