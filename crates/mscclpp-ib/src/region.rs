//! Regions of this process and of peers, as the core uses them.

use std::sync::{Arc, OnceLock};

use mscclpp_core::{
    MemoryRegion, RegionInfo,
    provider::{Registration, RemoteRegion},
};
use mscclpp_gpu::DevicePtr;

use crate::{
    adapter::{Access, Adapter, Mr},
    blob::RegionBlob,
    error::Result,
    hub::Hub,
};

/// A region of this process.
pub(crate) struct LocalRegion {
    // Fields are dropped in this order: peers lose their access before the region is released.
    _shared: Option<PeerRegistration>,
    /// The registration through which this side's adapter reads the region, made when it is first written from. It is
    /// separate from the one for peers: queues keep it until they have sent what they read, and peers must not have
    /// access for that long.
    source: OnceLock<Arc<SourceRegion>>,
    blob: Vec<u8>,
    adapter: Arc<Adapter>,
    region: Arc<MemoryRegion>,
    is_host_memory: bool,
}

/// The registration through which peers write.
struct PeerRegistration {
    // The registrations are kept because their keys are valid only as long as they live.
    _data: Mr,
    _updates: Option<Mr>,
    hub: Arc<Hub>,
    id: u64,
}

/// A region that this side's adapter may read.
pub(crate) struct SourceRegion {
    mr: Mr,
    pub(crate) address: u64,
    /// Whether the host may read the region too, as it must to put data inside a request.
    pub(crate) is_host_memory: bool,
    // Dropped after the registration, which must not outlive the region.
    _region: Arc<MemoryRegion>,
}

impl SourceRegion {
    pub(crate) fn key(&self) -> u32 {
        self.mr.lkey()
    }
}

impl LocalRegion {
    /// Registers a region that peers may write to. `is_host_memory` says whether the host itself may read and write
    /// it.
    pub(crate) fn register(
        hub: Arc<Hub>,
        adapter: Arc<Adapter>,
        region: &Arc<MemoryRegion>,
        is_host_memory: bool,
    ) -> Result<Self> {
        let key = |access| Mr::of_region(&adapter, region, access);
        let (data, updates) = match hub.relaxes_data {
            true => (key(Access::Relaxed)?, Some(key(Access::Strict)?)),
            false => (key(Access::Strict)?, None),
        };
        let blob = RegionBlob {
            id: region.id(),
            address: region.ptr().0,
            len: region.len(),
            data_key: data.rkey(),
            update_key: updates.as_ref().unwrap_or(&data).rkey(),
        };
        hub.words.add(region, is_host_memory);
        let shared = Some(PeerRegistration { _data: data, _updates: updates, hub, id: region.id() });
        Ok(Self {
            _shared: shared,
            source: OnceLock::new(),
            blob: blob.encode(),
            adapter,
            region: region.clone(),
            is_host_memory,
        })
    }

    /// Makes a region that no peer may reach.
    pub(crate) fn for_local_use(
        adapter: Arc<Adapter>,
        region: &Arc<MemoryRegion>,
        is_host_memory: bool,
    ) -> Self {
        let (source, region) = (OnceLock::new(), region.clone());
        Self { _shared: None, source, blob: Vec::new(), adapter, region, is_host_memory }
    }

    pub(crate) fn adapter(&self) -> &Arc<Adapter> {
        &self.adapter
    }

    /// Returns the registration through which this side's requests read the region.
    pub(crate) fn source(&self) -> Result<Arc<SourceRegion>> {
        if let Some(source) = self.source.get() {
            return Ok(source.clone());
        }
        let source = Arc::new(SourceRegion {
            mr: Mr::of_region(&self.adapter, &self.region, Access::Source)?,
            address: self.region.ptr().0,
            is_host_memory: self.is_host_memory,
            _region: self.region.clone(),
        });
        Ok(self.source.get_or_init(|| source).clone())
    }
}

impl Registration for LocalRegion {
    fn blob(&self) -> &[u8] {
        &self.blob
    }
}

impl Drop for PeerRegistration {
    fn drop(&mut self) {
        self.hub.words.withdraw(self.id);
    }
}

/// A region of a peer, as this side's adapter names it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerRegion(pub(crate) RegionBlob);

impl PeerRegion {
    pub(crate) fn import(info: &RegionInfo<'_>) -> Result<Self> {
        RegionBlob::decode(info.blob, info.id, info.len).map(Self)
    }
}

impl RemoteRegion for PeerRegion {
    fn ptr(&self) -> Option<DevicePtr> {
        None
    }
}
