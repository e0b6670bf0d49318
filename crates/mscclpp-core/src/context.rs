use std::{any::Any, collections::HashMap, sync::Arc, time::Duration};

use mscclpp_gpu::{DevicePtr, Gpu, Platform, fork::OfProcess};
use mscclpp_os::waiting::FIRST_LOG;
use parking_lot::Mutex;

use crate::{
    Device, DeviceType, Endpoint, EndpointConfig, EndpointInfo, Error, MemoryRegion, Result, Transport,
    TransportFlags,
    endpoint::Local,
    identity::{self, ProcessId},
    provider::{TokenMemory, TransportProvider},
    slab::{HOST_TOKEN_SLAB, HostWords, Slabs, StatusBlock, TOKEN_SLAB, TokenBlock, TokenSlab},
};

mod registering;

use registering::host_address;

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

    /// Whether a provider of the context serves the transport in this process now. They are asked in the order in which the
    /// builder was given them, until one does: so others load no library for it.
    #[must_use]
    pub fn serves(&self, transport: Transport) -> bool {
        self.inner.providers.iter().any(|provider| provider.transports().has(transport))
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
            id: u64::from_le_bytes(mscclpp_os::random()?),
            host: identity::host_id()?,
            // A CPU endpoint of a machine without devices counts as simulated.
            platform: if gpu.is_some() { self.platform()? } else { self.platform().unwrap_or(Platform::Sim) },
            device_uuid: gpu.as_ref().map_or([0; 16], |gpu| gpu.properties().uuid),
            blob: endpoint.blob().to_vec(),
        };
        tracing::debug!(target: "mscclpp::conn", endpoint = %info, transport = %info.transport, "endpoint opened");
        Ok(Endpoint::local(info, Local { config, gpu, endpoint }))
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

mscclpp_os::debug_fields!(Context, |this| transports: this.transports(), ..);

mscclpp_os::debug_fields!(ContextBuilder, |this| providers: this.providers.len(), ..);
