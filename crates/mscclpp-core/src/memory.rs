use std::sync::{Arc, OnceLock};

use mscclpp_gpu::{DevicePtr, Gpu, KernelObject, Owner, Platform, fork::OfProcess};
use parking_lot::Mutex;

use crate::{
    Error, MemoryRegion, RegionInfo, Result, Transport, TransportFlags,
    identity::ProcessId,
    provider::{Registration, RemoteRegion},
    wire::{Kind, Reader, Writer},
};

/// A memory that can be the source or destination of transfers: one registered here, or a peer's.
///
/// Made by [`Context::register_buffer`](crate::Context::register_buffer) or
/// [`Context::register_memory`](crate::Context::register_memory), or by [`RegisteredMemory::deserialize`] from the
/// bytes that a peer sent. Deserializing only parses: a peer's memory is mapped at its first use through a
/// connection, or by [`Context::map_memory`](crate::Context::map_memory). Cheap to clone. When the last clone of a
/// memory that was registered here is dropped, the registration ends: peers that use the memory later for the first
/// time get an error.
///
/// # Memory for local use
/// A memory may be registered for no transport ([`TransportFlags::NONE`]). It has an address and a size, and can be
/// 1. the `src` and the `packet_buffer` of a memory channel, whose kernels need only the address;
/// 2. the source of writes and of port channels' puts, over transports that read any memory of this process. CUDA IPC
///    (device memory) and Ethernet do; other transports return [`Error::NotRegistered`].
///
/// Peers cannot use it: if it is sent to a peer, its use there is [`Error::NotRegistered`]. A memory that is
/// registered for some transports is used only over these, at both ends.
#[derive(Clone)]
pub struct RegisteredMemory {
    inner: OfProcess<Arc<MemoryState>>,
}

struct MemoryState {
    info: MemoryInfo,
    local: Option<LocalParts>,
    /// Held while an import is made, which may take long.
    imports: Mutex<Vec<(ImportKey, Arc<dyn RemoteRegion>)>>,
    /// The address of the first import that has one. Imports stay as long as this struct.
    mapped: OnceLock<DevicePtr>,
}

impl KernelObject for MemoryState {}

impl MemoryState {
    fn registrations(&self) -> &[(Transport, Arc<dyn Registration>)] {
        self.local.as_ref().map_or(&[], |local| &local.registrations)
    }
}

struct LocalParts {
    region: Arc<MemoryRegion>,
    registrations: Vec<(Transport, Arc<dyn Registration>)>,
    /// For memory without registrations, the sources that queues write from, made at the first use.
    sources: Mutex<Vec<(Transport, Arc<dyn Registration>)>>,
}

/// The key of a mapping: there is one per transport and device that accesses the memory.
#[derive(PartialEq, Eq)]
struct ImportKey {
    transport: Transport,
    gpu: Option<[u8; 16]>,
}

struct MemoryInfo {
    process: ProcessId,
    region: u64,
    len: u64,
    host: String,
    platform: Platform,
    device_uuid: [u8; 16],
    blobs: Vec<(Transport, Vec<u8>)>,
}

impl RegisteredMemory {
    pub(crate) fn local(
        region: Arc<MemoryRegion>,
        host: String,
        platform: Platform,
        registrations: Vec<(Transport, Arc<dyn Registration>)>,
    ) -> Result<Self> {
        let info = MemoryInfo {
            process: ProcessId::current()?,
            region: region.id(),
            len: region.len(),
            host,
            platform,
            device_uuid: region.gpu().map_or([0; 16], |gpu| gpu.properties().uuid),
            blobs: registrations.iter().map(|(t, r)| (*t, r.blob().to_vec())).collect(),
        };
        let local = Some(LocalParts { region, registrations, sources: Mutex::default() });
        Ok(Self::of(info, local))
    }

    fn of(info: MemoryInfo, local: Option<LocalParts>) -> Self {
        let inner = MemoryState { info, local, imports: Mutex::default(), mapped: OnceLock::new() };
        Self { inner: OfProcess::new(Arc::new(inner)) }
    }

    /// The memory's address in this process. A peer's memory has one only once it is mapped: by
    /// [`Context::map_memory`](crate::Context::map_memory), or by its first use through a connection whose transport
    /// maps memory. If it is mapped for several devices, this is the first mapping. A memory that a communicator
    /// received is mapped already, if that is possible. Does not block, not even while another thread maps the
    /// memory.
    #[must_use]
    pub fn data(&self) -> Option<DevicePtr> {
        match &self.inner.local {
            Some(local) => Some(local.region.ptr()),
            None => self.inner.mapped.get().copied(),
        }
    }

    /// The memory's length in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.inner.info.len
    }

    /// The transports over which the memory can be used.
    #[must_use]
    pub fn transports(&self) -> TransportFlags {
        self.inner.info.blobs.iter().map(|(t, _)| *t).collect()
    }

    /// Whether this value, or the one from which it was cloned, is the registration itself, and not made from bytes.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.inner.local.is_some()
    }

    /// The device that holds the memory, if it was registered in this process; `None` for host memory, and for a
    /// peer's memory.
    #[must_use]
    pub fn gpu(&self) -> Option<&Gpu> {
        self.inner.local.as_ref().and_then(|local| local.region.gpu())
    }

    /// Whether the memory's owner declared it to be device memory.
    pub(crate) fn is_of_a_device(&self) -> bool {
        self.inner.info.device_uuid != [0; 16]
    }

    /// Keeps nothing of the memory until [`resume`](Self::resume), so that its owner can give it back
    /// ([`DeviceBuffer::suspend`](mscclpp_gpu::DeviceBuffer::suspend)): peers of a memory that was registered here cannot map
    /// it, and a peer's memory is unmapped here. Its addresses stay the same, for channels and graphs. Does nothing if it is
    /// suspended already.
    ///
    /// # Safety
    /// Until it is resumed, nothing accesses the memory through this value, its clones, and channels made of them; nor, if the
    /// transport shares whole allocations, through other memories of the same allocation.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] over a transport that has to keep the memory: all but CUDA IPC.
    pub unsafe fn suspend(&self) -> Result<()> {
        let state = self.inner.here()?;
        state.registrations().iter().try_for_each(|(_, registration)| registration.suspend())?;
        // SAFETY: the caller's promise.
        state.imports.lock().iter().try_for_each(|(_, region)| unsafe { region.suspend() })
    }

    /// Shares the memory that is at its addresses now; or maps, at the same addresses, that of the peer, whose owner has called
    /// this before. Does nothing if it is not suspended. May block for some seconds.
    ///
    /// # Errors
    /// Those of exporting or mapping memory; it is still suspended then.
    pub fn resume(&self) -> Result<()> {
        let state = self.inner.here()?;
        state.registrations().iter().try_for_each(|(_, registration)| registration.resume())?;
        state.imports.lock().iter().try_for_each(|(_, region)| region.resume())
    }

    /// The object that launches keep alive. It holds the mappings of a peer's memory.
    pub(crate) fn owner(&self) -> Owner {
        Arc::clone(&self.inner) as Owner
    }

    pub(crate) fn process(&self) -> ProcessId {
        self.inner.info.process
    }

    /// Returns the region of a memory registered here, for `transport` or for none.
    pub(crate) fn local_region(
        &self,
        what: &'static str,
        transport: Transport,
    ) -> Result<&Arc<MemoryRegion>> {
        let Some(local) = &self.inner.here()?.local else { return Err(peers_memory(what)) };
        match find(&local.registrations, transport) {
            None if !local.registrations.is_empty() => Err(self.not_registered(what, transport)),
            _ => Ok(&local.region),
        }
    }

    /// Returns the registration that a queue over `transport` needs to write from this memory, which must have been
    /// registered here, for that transport or for none. For memory that was registered for none, `local_source` makes
    /// it.
    pub(crate) fn source(
        &self,
        what: &'static str,
        transport: Transport,
        local_source: impl FnOnce(&Arc<MemoryRegion>) -> Result<Option<Arc<dyn Registration>>>,
    ) -> Result<Arc<dyn Registration>> {
        let region = self.local_region(what, transport)?;
        let Some(local) = &self.inner.local else { return Err(peers_memory(what)) };
        if let Some(registration) = find(&local.registrations, transport) {
            return Ok(registration.clone());
        }
        let mut sources = local.sources.lock();
        if let Some(source) = find(&sources, transport) {
            return Ok(source.clone());
        }
        let source = local_source(region)?.ok_or_else(|| self.not_registered(what, transport))?;
        sources.push((transport, source.clone()));
        Ok(source)
    }

    fn not_registered(&self, what: &'static str, transport: Transport) -> Error {
        Error::NotRegistered { what, transport, registered: self.transports() }
    }

    /// Returns the mapping of this memory for `transport` and `gpu`, made by `import` the first time.
    pub(crate) fn imported(
        &self,
        what: &'static str,
        transport: Transport,
        gpu: Option<&Gpu>,
        import: impl FnOnce(&RegionInfo<'_>) -> Result<Arc<dyn RemoteRegion>>,
    ) -> Result<Arc<dyn RemoteRegion>> {
        let info = &self.inner.here()?.info;
        let Some((_, blob)) = info.blobs.iter().find(|(t, _)| *t == transport) else {
            return Err(self.not_registered(what, transport));
        };
        let key = ImportKey { transport, gpu: gpu.map(|gpu| gpu.properties().uuid) };
        // Held while importing: two threads that use a memory for the first time make one mapping between them.
        let mut imports = self.inner.imports.lock();
        if let Some((_, region)) = imports.iter().find(|(known, _)| *known == key) {
            return Ok(region.clone());
        }
        let local = match info.process == ProcessId::current()? {
            true => Some(MemoryRegion::find(info.region).ok_or_else(|| {
                Error::InvalidArgument(format!(
                    "{what} was registered in this process and has been dropped since"
                ))
            })?),
            false => None,
        };
        if let Some(local) = &local
            && local.len() != info.len
        {
            return Err(Error::Malformed {
                what: "a registered memory",
                problem: format!(
                    "it claims {} bytes of a region of this process that has {}",
                    info.len,
                    local.len()
                ),
            });
        }
        let region = import(&RegionInfo {
            process: info.process,
            id: info.region,
            len: info.len,
            host: &info.host,
            platform: info.platform,
            device_uuid: info.device_uuid,
            transport,
            blob,
            local,
        })?;
        if let Some(ptr) = region.ptr() {
            self.inner.mapped.get_or_init(|| ptr);
        }
        imports.push((key, region.clone()));
        Ok(region)
    }

    /// Returns the bytes to send to a peer, a few hundred.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the providers' parts are over the wire's limit of 64 KiB.
    pub fn serialize(&self) -> Result<Vec<u8>> {
        let info = &self.inner.here()?.info;
        let mut out = Writer::new(Kind::Memory);
        out.array(&info.process.to_bytes());
        out.u64(info.region);
        out.u64(info.len);
        out.blob(info.host.as_bytes());
        out.platform(info.platform)?;
        out.array(&info.device_uuid);
        out.u8(info.blobs.len() as u8);
        for (transport, blob) in &info.blobs {
            out.u8(transport.code());
            out.blob(blob);
        }
        out.finish()
    }

    /// Reads bytes that a peer's [`RegisteredMemory::serialize`] returned. Only parses: nothing is mapped yet.
    ///
    /// # Errors
    /// [`Error::Malformed`] for bytes that are truncated, foreign, of another version or of another kind.
    pub fn deserialize(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::open(Kind::Memory, bytes)?;
        let process = ProcessId::from_bytes(r.array("the process id")?);
        let region = r.u64("the region id")?;
        let len = r.u64("the length")?;
        if len == 0 {
            return Err(r.malformed("its length is 0".to_owned()));
        }
        let host = r.text("the host id")?;
        let platform = r.platform()?;
        let device_uuid = r.array("the device uuid")?;
        let mut blobs: Vec<(Transport, Vec<u8>)> = Vec::new();
        for _ in 0..r.u8("the number of transports")? {
            let transport = r.transport()?;
            if blobs.iter().any(|(t, _)| *t == transport) {
                return Err(r.malformed(format!("{transport} comes twice")));
            }
            blobs.push((transport, r.blob("a transport's part")?.to_vec()));
        }
        r.finish()?;
        let info = MemoryInfo { process, region, len, host, platform, device_uuid, blobs };
        Ok(Self::of(info, None))
    }
}

fn find(
    registrations: &[(Transport, Arc<dyn Registration>)],
    transport: Transport,
) -> Option<&Arc<dyn Registration>> {
    registrations.iter().find_map(|(of, registration)| (*of == transport).then_some(registration))
}

fn peers_memory(what: &str) -> Error {
    Error::InvalidArgument(format!(
        "{what} is a peer's memory; it must be registered here (are source and destination swapped?)"
    ))
}

mscclpp_os::debug_fields!(RegisteredMemory, |this|
    data: this.data(), size: this.size(), transports: this.transports(), local: this.is_local()
);

#[cfg(test)]
mod tests;
