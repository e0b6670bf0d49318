use std::{any::Any, collections::HashMap, sync::Arc, time::Duration};

use mscclpp_gpu::{DeviceBuffer, DevicePtr, Gpu, PinnedBuffer, Platform, fork::OfProcess};
use mscclpp_os::waiting::FIRST_LOG;
use parking_lot::Mutex;

use crate::{
    Device, DeviceType, Endpoint, EndpointConfig, EndpointInfo, Error, MemoryRegion, RegisteredMemory,
    Result, Transport, TransportFlags,
    endpoint::Local,
    identity::{self, ProcessId},
    provider::{TokenMemory, TransportProvider},
    slab::{HOST_TOKEN_SLAB, HostWords, Slabs, StatusBlock, TOKEN_SLAB, TokenBlock, TokenSlab},
};

/// Makes endpoints, connections and registered memories, and owns the devices and words that they share. Cheap to
/// clone.
///
/// ```
/// # use mscclpp_core::{Context, TransportFlags};
/// let context = Context::builder().build(); // no provider: nothing can be connected
/// assert_eq!(context.transports(), TransportFlags::NONE);
/// ```
#[derive(Clone)]
pub struct Context {
    inner: OfProcess<Arc<ContextState>>,
}

struct ContextState {
    providers: Vec<Arc<dyn TransportProvider>>,
    absent: Vec<(TransportFlags, &'static str)>,
    platform: Mutex<Option<Platform>>,
    gpus: Mutex<HashMap<usize, Gpu>>,
    slabs: Slabs,
    log_waits_after: Duration,
}

/// A builder of a [`Context`].
#[derive(Default)]
pub struct ContextBuilder {
    providers: Vec<Arc<dyn TransportProvider>>,
    absent: Vec<(TransportFlags, &'static str)>,
    platform: Option<Platform>,
    log_waits_after: Option<Duration>,
}

impl ContextBuilder {
    /// Adds a transport provider. If two serve the same transport, the one added first is used.
    #[must_use]
    pub fn provider(mut self, provider: impl TransportProvider + 'static) -> Self {
        self.providers.push(Arc::new(provider));
        self
    }

    /// Sets the text that [`Error::NoProvider`] gives for `transports` if no provider serves them, such as how to get
    /// one.
    #[must_use]
    pub fn absent(mut self, transports: impl Into<TransportFlags>, why: &'static str) -> Self {
        self.absent.push((transports.into(), why));
        self
    }

    /// Chooses the platform. Without this, [`Platform::detect`] chooses it when a device is first needed.
    #[must_use]
    pub fn platform(mut self, platform: Platform) -> Self {
        self.platform = Some(platform);
        self
    }

    /// Sets the time after which a wait of the host is first logged, with what it waits for: ten seconds if not
    /// given, and [`Duration::MAX`] for never. Each further line about the same wait comes after three times as long.
    #[must_use]
    pub fn log_waits_after(mut self, first: Duration) -> Self {
        self.log_waits_after = Some(first);
        self
    }

    /// Builds the context. Nothing is opened yet.
    #[must_use]
    pub fn build(self) -> Context {
        Context {
            inner: OfProcess::new(Arc::new(ContextState {
                providers: self.providers,
                absent: self.absent,
                platform: Mutex::new(self.platform),
                gpus: Mutex::default(),
                slabs: Slabs::default(),
                log_waits_after: self.log_waits_after.unwrap_or(FIRST_LOG),
            })),
        }
    }
}

impl Context {
    /// Starts a new context.
    #[must_use]
    pub fn builder() -> ContextBuilder {
        ContextBuilder::default()
    }

    /// The transports that the context's providers serve in this process now.
    #[must_use]
    pub fn transports(&self) -> TransportFlags {
        self.inner.providers.iter().fold(TransportFlags::NONE, |flags, p| flags | p.transports())
    }

    /// The time that [`ContextBuilder::log_waits_after`] set.
    #[must_use]
    pub fn waits_are_logged_after(&self) -> Duration {
        self.inner.log_waits_after
    }

    /// The platform that the context's devices are on.
    ///
    /// # Errors
    /// [`Error::Gpu`] if there is no usable GPU and the builder chose no platform.
    pub fn platform(&self) -> Result<Platform> {
        let mut platform = self.inner.here()?.platform.lock();
        if let Some(platform) = *platform {
            return Ok(platform);
        }
        Ok(*platform.insert(Platform::detect()?))
    }

    /// GPU `id` of this context's platform. Each is opened once.
    ///
    /// # Errors
    /// [`Error::Gpu`] if it does not exist or cannot be opened.
    pub fn gpu(&self, id: usize) -> Result<Gpu> {
        let platform = self.platform()?;
        let mut gpus = self.inner.gpus.lock();
        if let Some(gpu) = gpus.get(&id) {
            return Ok(gpu.clone());
        }
        let gpu = platform.gpu(id)?;
        gpus.insert(id, gpu.clone());
        Ok(gpu)
    }

    /// Opens an endpoint: this process's end of connections to be made.
    ///
    /// # Errors
    /// [`Error::NoProvider`]; [`Error::Gpu`] for a GPU that does not exist; [`Error::InvalidArgument`] for a device of
    /// unknown type; the provider's own errors.
    pub fn create_endpoint(&self, config: impl Into<EndpointConfig>) -> Result<Endpoint> {
        let mut config = config.into();
        let provider = self.provider(config.transport)?;
        if config.max_write_queue_size == Some(0) {
            return Err(Error::InvalidArgument(
                "max_write_queue_size is 0: a queue holds 1 operation at least, or leave it to the transport"
                    .to_owned(),
            ));
        }
        let gpu = match config.device {
            Device { kind: DeviceType::Gpu, id: Some(id) } => Some(self.gpu(id)?),
            Device { kind: DeviceType::Gpu, id: None } => {
                let gpu = self.gpu(self.platform()?.current_gpu()?.id())?;
                config.device.id = Some(gpu.id());
                Some(gpu)
            }
            Device { kind: DeviceType::Cpu, .. } => None,
            Device { kind: DeviceType::Unknown, .. } => {
                return Err(Error::InvalidArgument(
                    "the endpoint's device is unknown: give Device::gpu(id), Device::CURRENT_GPU or Device::CPU"
                        .to_owned(),
                ));
            }
        };
        let endpoint = OfProcess::new(provider.open_endpoint(&config, gpu.as_ref())?);
        let info = EndpointInfo {
            transport: config.transport,
            device: config.device,
            process: ProcessId::current()?,
            id: u64::from_le_bytes(identity::random()?),
            host: identity::host_id()?,
            // A CPU endpoint of a machine without devices counts as simulated.
            platform: if gpu.is_some() { self.platform()? } else { self.platform().unwrap_or(Platform::Sim) },
            device_uuid: gpu.as_ref().map_or([0; 16], |gpu| gpu.properties().uuid),
            blob: endpoint.blob().to_vec(),
        };
        tracing::debug!(target: "mscclpp::conn", endpoint = %info, transport = %info.transport, "endpoint opened");
        Ok(Endpoint::local(info, Local { config, gpu, endpoint }))
    }

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

    fn register(&self, region: Arc<MemoryRegion>, transports: TransportFlags) -> Result<RegisteredMemory> {
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
        self.inner.here()?;
        if memory.is_local() {
            return Ok(memory.data());
        }
        let what = "the memory";
        let mut failure = None;
        for (transport, provider) in self.mapping_providers(memory) {
            match memory.imported(what, transport, Some(gpu), |info| provider.import(info, Some(gpu))) {
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

    /// Returns the transport among `among` that serves `gpu` best, as its provider says: of several adapters, the
    /// nearest to the GPU. May look for devices, as the first use of a transport does.
    ///
    /// # Errors
    /// [`Error::NoProvider`], with the reason, if none of them is served; the errors of a context that a forked
    /// process inherited.
    ///
    /// ```
    /// # use mscclpp_core::{Context, Error, TransportFlags};
    /// # use mscclpp_gpu::Platform;
    /// let context = Context::builder().platform(Platform::Sim).build();
    /// let none = context.nearest_transport(TransportFlags::ALL_IB, &context.gpu(0)?);
    /// assert!(matches!(none, Err(Error::NoProvider { .. })));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn nearest_transport(&self, among: impl Into<TransportFlags>, gpu: &Gpu) -> Result<Transport> {
        let among = among.into();
        let providers = &self.inner.here()?.providers;
        let nearest = providers.iter().filter_map(|provider| provider.nearest(gpu)).find(|it| among.has(*it));
        let any = || providers.iter().flat_map(|provider| (provider.transports() & among).iter()).next();
        let missing = || self.no_provider(among.iter().next().unwrap_or(Transport::IB0));
        nearest.or_else(any).ok_or_else(missing)
    }

    pub(crate) fn provider(&self, transport: Transport) -> Result<Arc<dyn TransportProvider>> {
        self.inner
            .here()?
            .providers
            .iter()
            .find(|p| p.transports().has(transport))
            .cloned()
            .ok_or_else(|| self.no_provider(transport))
    }

    fn no_provider(&self, transport: Transport) -> Error {
        let reason = self.inner.providers.iter().find_map(|provider| provider.why_not(transport));
        let absent = || self.inner.absent.iter().find(|(of, _)| of.has(transport)).map(|(_, why)| *why);
        let reason = reason.unwrap_or_else(|| absent().unwrap_or("add one to Context::builder()").to_owned());
        Error::NoProvider { transport, available: self.transports(), reason }
    }

    /// Returns words for a semaphore over `transport`: in the given memory of a GPU if its waits are there, else in
    /// host memory.
    pub(crate) fn token(
        &self,
        place: Option<(&Gpu, TokenMemory)>,
        transport: Transport,
        alignment: u64,
    ) -> Result<TokenBlock> {
        self.inner.slabs.token(place, transport, alignment, || match place {
            Some((gpu, memory)) => self.device_tokens(gpu, memory, transport),
            None => self.host_tokens(transport),
        })
    }

    pub(crate) fn status_words(&self, gpu: Option<&Gpu>) -> Result<StatusBlock> {
        self.inner.slabs.status(gpu)
    }

    /// Allocates memory for tokens that kernels poll.
    fn device_tokens(&self, gpu: &Gpu, memory: TokenMemory, transport: Transport) -> Result<TokenSlab> {
        let (ptr, of, owner): (_, _, Arc<dyn Any + Send + Sync>) = match memory {
            TokenMemory::Device => {
                let memory = self.register_buffer(&gpu.allocate(TOKEN_SLAB)?, transport)?;
                return Ok(TokenSlab { memory, len: TOKEN_SLAB, beside: None, host: None });
            }
            TokenMemory::PinnedHost => {
                let pinned = gpu.allocate_pinned(HOST_TOKEN_SLAB)?;
                (host_address(&pinned)?, None, Arc::new(pinned))
            }
            TokenMemory::Own => {
                let own = self.provider(transport)?.own_tokens(transport, gpu, HOST_TOKEN_SLAB)?;
                (own.ptr, own.gpu, own.owner)
            }
        };
        let region = MemoryRegion::new(ptr, HOST_TOKEN_SLAB, of, Some(owner))?;
        Ok(TokenSlab {
            memory: self.register(region, transport.into())?,
            len: HOST_TOKEN_SLAB,
            beside: Some(gpu.allocate(HOST_TOKEN_SLAB)?),
            host: None,
        })
    }

    fn host_tokens(&self, transport: Transport) -> Result<TokenSlab> {
        let words = Arc::new(HostWords::zeroed(HOST_TOKEN_SLAB));
        let region = MemoryRegion::new(DevicePtr(words.address()), words.len(), None, Some(words.clone()))?;
        let memory = self.register(region, transport.into())?;
        Ok(TokenSlab { memory, len: HOST_TOKEN_SLAB, beside: None, host: Some(words) })
    }
}

/// Returns the address of pinned memory, which must be the same for host and device.
fn host_address(pinned: &PinnedBuffer) -> Result<DevicePtr> {
    let host = DevicePtr::from_ptr(pinned.word(0)?.as_ptr());
    match host == pinned.ptr() {
        true => Ok(host),
        false => Err(Error::InvalidArgument(format!(
            "the device has pinned memory at {:?} which the host has at {host:?}; memory that peers write needs one address",
            pinned.ptr()
        ))),
    }
}

mscclpp_os::debug_fields!(Context, |this| transports: this.transports(), ..);

mscclpp_os::debug_fields!(ContextBuilder, |this| providers: this.providers.len(), ..);
