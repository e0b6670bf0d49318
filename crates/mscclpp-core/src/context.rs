use std::{collections::HashMap, fmt, sync::Arc};

use mscclpp_gpu::{DeviceBuffer, DevicePtr, Gpu, Platform};
use parking_lot::Mutex;

use crate::{
    Connection, Device, DeviceType, Endpoint, EndpointConfig, EndpointInfo, Error, RegisteredMemory, Result,
    Transport, TransportFlags,
    endpoint::Local,
    identity::{self, ProcessId},
    memory::MemoryRegion,
    provider::TransportProvider,
    slab::{HostWords, Slabs},
};

/// What makes endpoints, connections and registered memories, and owns what they share. Cheap to clone.
///
/// ```
/// use mscclpp_core::{Context, TransportFlags};
/// let context = Context::builder().build(); // no provider: nothing can be connected
/// assert_eq!(context.transports(), TransportFlags::NONE);
/// ```
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    providers: Vec<Arc<dyn TransportProvider>>,
    platform: Mutex<Option<Platform>>,
    gpus: Mutex<HashMap<usize, Gpu>>,
    slabs: Slabs,
}

/// Puts a [`Context`] together.
#[derive(Default)]
pub struct ContextBuilder {
    providers: Vec<Arc<dyn TransportProvider>>,
    platform: Option<Platform>,
}

impl ContextBuilder {
    /// Adds a transport provider. Where two serve the same transport, the first is used.
    #[must_use]
    pub fn provider(mut self, provider: impl TransportProvider + 'static) -> Self {
        self.providers.push(Arc::new(provider));
        self
    }

    /// Chooses the platform. Without this, [`Platform::detect`] does when a device is first needed.
    #[must_use]
    pub fn platform(mut self, platform: Platform) -> Self {
        self.platform = Some(platform);
        self
    }

    /// The context. Nothing is opened yet.
    #[must_use]
    pub fn build(self) -> Context {
        Context {
            inner: Arc::new(Inner {
                providers: self.providers,
                platform: Mutex::new(self.platform),
                gpus: Mutex::default(),
                slabs: Slabs::default(),
            }),
        }
    }
}

impl Context {
    /// Starts a new context.
    #[must_use]
    pub fn builder() -> ContextBuilder {
        ContextBuilder::default()
    }

    /// Which transports its providers serve here and now.
    #[must_use]
    pub fn transports(&self) -> TransportFlags {
        self.inner.providers.iter().fold(TransportFlags::NONE, |flags, p| flags | p.transports())
    }

    /// Where its devices come from.
    ///
    /// # Errors
    /// [`Error::Gpu`] if there is no usable GPU and the builder chose no platform.
    pub fn platform(&self) -> Result<Platform> {
        let mut platform = self.inner.platform.lock();
        if let Some(platform) = *platform {
            return Ok(platform);
        }
        Ok(*platform.insert(Platform::detect()?))
    }

    /// GPU `id` of this context's platform; opened once.
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

    /// Opens this process's end of connections to come.
    ///
    /// # Errors
    /// [`Error::NoProvider`]; [`Error::Gpu`] for a GPU that does not exist; [`Error::InvalidArgument`] for a device of
    /// unknown type; the provider's own.
    pub fn create_endpoint(&self, config: impl Into<EndpointConfig>) -> Result<Endpoint> {
        let mut config = config.into();
        let provider = self.provider(config.transport)?;
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
        let endpoint = provider.open_endpoint(&config, gpu.as_ref())?;
        let info = EndpointInfo {
            process: ProcessId::current()?,
            id: u64::from_le_bytes(identity::random()?),
            host: identity::host_id()?,
            // A CPU endpoint of a machine without devices is one of Host.
            platform: if gpu.is_some() {
                self.platform()?
            } else {
                self.platform().unwrap_or(Platform::Host)
            },
            device_uuid: gpu.as_ref().map_or([0; 16], |gpu| gpu.properties().uuid),
            blob: endpoint.blob().to_vec(),
            config,
        };
        tracing::debug!(target: "mscclpp::conn", endpoint = %info, transport = %info.config.transport, "endpoint opened");
        Ok(Endpoint::local(info, Local { gpu, endpoint }))
    }

    /// Connects an endpoint made here with a peer's (or another of this process, or the same).
    ///
    /// Each side makes its own connection; both endpoints must be alive meanwhile. Blocks while the peer's process
    /// answers, for at most about 10 s.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `local` came from a peer; [`Error::TransportMismatch`]; [`Error::Unreachable`]
    /// with the reason (two hosts, two platforms, no peer access, ...); [`Error::PeerLost`], [`Error::Timeout`].
    pub fn connect(&self, local: &Endpoint, remote: &Endpoint) -> Result<Connection> {
        if !local.transport().pairs_with(remote.transport()) {
            return Err(Error::TransportMismatch { local: local.transport(), remote: remote.transport() });
        }
        let provider = self.provider(local.transport())?;
        Connection::establish(self.clone(), provider, local.clone(), remote.info().clone())
    }

    /// Registers a whole buffer for use over `transports` (one, or several as in `CUDA_IPC | IB0`).
    ///
    /// The registration keeps the buffer alive.
    ///
    /// # Errors
    /// [`Error::NoProvider`], [`Error::InvalidArgument`] for no transport, or the provider's own.
    pub fn register_buffer(
        &self,
        buffer: &DeviceBuffer,
        transports: impl Into<TransportFlags>,
    ) -> Result<RegisteredMemory> {
        let owner = Arc::new(buffer.clone());
        let region = MemoryRegion::new(buffer.ptr(), buffer.len(), Some(buffer.gpu().clone()), Some(owner))?;
        self.register(region, transports.into())
    }

    /// As [`Context::register_buffer`], for words of host memory.
    pub(crate) fn register_words(
        &self,
        words: &Arc<HostWords>,
        transports: impl Into<TransportFlags>,
    ) -> Result<RegisteredMemory> {
        let ptr = DevicePtr(words.address());
        let region = MemoryRegion::new(ptr, words.len(), None, Some(words.clone()))?;
        self.register(region, transports.into())
    }

    /// Registers memory of any origin (PyTorch, CuPy, cudarc, host memory) for use over `transports`.
    ///
    /// # Safety
    /// `ptr..ptr + len` must be valid memory, of a device of this context's platform or of the host, until the last
    /// clone of the result and every peer's use of it are gone.
    ///
    /// # Errors
    /// As [`Context::register_buffer`]; [`Error::InvalidArgument`] for a null address or no bytes.
    pub unsafe fn register_memory(
        &self,
        ptr: DevicePtr,
        len: u64,
        transports: impl Into<TransportFlags>,
    ) -> Result<RegisteredMemory> {
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
        if transports.none() {
            return Err(Error::InvalidArgument(
                "a memory must be registered for at least one transport".to_owned(),
            ));
        }
        let registrations = transports
            .iter()
            .map(|t| Ok((t, self.provider(t)?.register(t, &region)?)))
            .collect::<Result<Vec<_>>>()?;
        let platform = region.gpu().map_or(Platform::Host, Gpu::platform);
        RegisteredMemory::local(region, identity::host_id()?, platform, registrations)
    }

    pub(crate) fn provider(&self, transport: Transport) -> Result<Arc<dyn TransportProvider>> {
        self.inner
            .providers
            .iter()
            .find(|p| p.transports().has(transport))
            .cloned()
            .ok_or_else(|| Error::NoProvider { transport, available: self.transports() })
    }

    pub(crate) fn slabs(&self) -> &Slabs {
        &self.inner.slabs
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("transports", &self.transports()).finish_non_exhaustive()
    }
}

impl fmt::Debug for ContextBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContextBuilder").field("providers", &self.providers.len()).finish_non_exhaustive()
    }
}
