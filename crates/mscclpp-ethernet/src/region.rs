//! Regions of this process, and of a peer, as the core uses them.

use std::sync::{Arc, Weak};

use mscclpp_core::{
    Error as CoreError, MemoryRegion, RegionInfo,
    provider::{Registration, RemoteRegion},
};
use mscclpp_gpu::DevicePtr;

use crate::{blob::RegionBlob, error::Result, hub::Hub};

/// A region of this process.
pub(crate) struct LocalRegion {
    region: Arc<MemoryRegion>,
    blob: Vec<u8>,
    /// The hub whose table, against which frames are checked, has the region as long as this lives. None if the memory is
    /// for local use.
    hub: Option<Arc<Hub>>,
}

impl LocalRegion {
    pub(crate) fn register(hub: Arc<Hub>, region: &Arc<MemoryRegion>) -> Self {
        let misalignment = (region.ptr().0 % 8) as u8;
        let blob = RegionBlob { id: region.id(), len: region.len(), misalignment }.encode();
        hub.regions.register(region);
        Self { region: region.clone(), blob, hub: Some(hub) }
    }

    /// Makes a region that no frame may name.
    pub(crate) fn for_local_use(region: &Arc<MemoryRegion>) -> Self {
        Self { region: region.clone(), blob: Vec::new(), hub: None }
    }

    pub(crate) fn region(&self) -> &Arc<MemoryRegion> {
        &self.region
    }
}

impl Registration for LocalRegion {
    fn blob(&self) -> &[u8] {
        &self.blob
    }
}

impl Drop for LocalRegion {
    /// Waits, for a bounded time, until no peer's bytes are on their way into the region.
    fn drop(&mut self) {
        if let Some(hub) = &self.hub {
            hub.regions.withdraw(self.region.id());
        }
    }
}

/// A region of a peer. Frames name it by its id. Nothing is mapped.
#[derive(Clone)]
pub(crate) struct PeerRegion {
    blob: RegionBlob,
    /// The region itself, if it belongs to this process: a call then notices that the region was dropped.
    local: Option<Weak<MemoryRegion>>,
}

impl PeerRegion {
    pub(crate) fn import(info: &RegionInfo<'_>) -> Result<Self> {
        let blob = RegionBlob::decode(info.blob, info.id, info.len)?;
        Ok(Self { blob, local: info.local.as_ref().map(Arc::downgrade) })
    }

    pub(crate) fn id(&self) -> u64 {
        self.blob.id
    }

    /// The region's address modulo 8.
    pub(crate) fn misalignment(&self) -> u64 {
        u64::from(self.blob.misalignment)
    }

    /// Fails if the region is known to have been dropped.
    pub(crate) fn check(&self) -> Result<(), CoreError> {
        match &self.local {
            Some(local) if local.strong_count() == 0 => Err(CoreError::InvalidArgument(
                "the destination was registered in this process and has been dropped since".to_owned(),
            )),
            _ => Ok(()),
        }
    }
}

impl RemoteRegion for PeerRegion {
    fn ptr(&self) -> Option<DevicePtr> {
        None
    }
}
