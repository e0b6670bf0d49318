//! Regions as the core sees them: of this process, and of a peer.

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use mscclpp_core::{
    MemoryRegion, RegionInfo,
    provider::{Registration, RemoteRegion, own},
};
use mscclpp_gpu::DevicePtr;
use parking_lot::Mutex;

use crate::{
    adapter::{Access, Adapter, Mr},
    blob::RegionBlob,
    error::Result,
    hub::Hub,
};

/// Which keys a region has to which peers write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    /// One key for everything, without relaxed ordering.
    Strict,
    /// A key with relaxed ordering for data, and a key without for words: what is written with the second stays behind
    /// everything before.
    RelaxedData,
}

/// A region of this process.
pub(crate) struct LocalRegion {
    // In this order: peers get in no more before the region is let go of.
    _shared: Option<Shared>,
    /// The registration through which this side's adapter reads the region, made when it is first written from. It is
    /// separate from the one for peers: queues keep it until they have sent what they read, and peers must not have
    /// access for that long.
    source: OnceLock<Arc<Source>>,
    blob: Vec<u8>,
    adapter: Arc<Adapter>,
    region: Arc<MemoryRegion>,
    is_host_memory: bool,
}

/// The registration through which peers write.
struct Shared {
    // They are keys for as long as they live.
    _data: Mr,
    _updates: Option<Mr>,
    hub: Arc<Hub>,
    id: u64,
}

/// A region that this side's adapter may read.
pub(crate) struct Source {
    mr: Mr,
    pub(crate) address: u64,
    /// Whether the host may read it too, as it must to put data inside a request.
    pub(crate) is_host_memory: bool,
    // Behind the registration, which must not outlive it.
    _region: Arc<MemoryRegion>,
}

impl Source {
    pub(crate) fn key(&self) -> u32 {
        self.mr.lkey()
    }
}

impl LocalRegion {
    /// A region that peers may write to. `is_host_memory` says whether the host itself may read and write it.
    pub(crate) fn register(
        hub: Arc<Hub>,
        adapter: Arc<Adapter>,
        region: &Arc<MemoryRegion>,
        is_host_memory: bool,
    ) -> Result<Self> {
        let key = |access| Mr::of_region(&adapter, region, access);
        let (data, updates) = match hub.keys() {
            Keys::Strict => (key(Access::Strict)?, None),
            Keys::RelaxedData => (key(Access::Relaxed)?, Some(key(Access::Strict)?)),
        };
        let blob = RegionBlob {
            id: region.id(),
            address: region.ptr().0,
            len: region.len(),
            data_key: data.rkey(),
            update_key: updates.as_ref().unwrap_or(&data).rkey(),
        };
        hub.words().add(region, is_host_memory);
        let shared = Some(Shared { _data: data, _updates: updates, hub, id: region.id() });
        Ok(Self {
            _shared: shared,
            source: OnceLock::new(),
            blob: blob.encode(),
            adapter,
            region: region.clone(),
            is_host_memory,
        })
    }

    /// Memory that no peer may reach.
    pub(crate) fn for_local_use(
        adapter: Arc<Adapter>,
        region: &Arc<MemoryRegion>,
        is_host_memory: bool,
    ) -> Self {
        let (source, region) = (OnceLock::new(), region.clone());
        Self { _shared: None, source, blob: Vec::new(), adapter, region, is_host_memory }
    }

    pub(crate) fn of(registration: &dyn Registration) -> Result<&Self> {
        Ok(own(registration, "the source")?)
    }

    pub(crate) fn adapter(&self) -> &Arc<Adapter> {
        &self.adapter
    }

    /// The registration through which this side's requests read it.
    pub(crate) fn source(&self) -> Result<Arc<Source>> {
        if let Some(source) = self.source.get() {
            return Ok(source.clone());
        }
        let source = Arc::new(Source {
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

impl Drop for Shared {
    fn drop(&mut self) {
        self.hub.words().withdraw(self.id);
    }
}

/// A region of a peer, as this side's adapter names it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerRegion(pub(crate) RegionBlob);

impl PeerRegion {
    pub(crate) fn import(info: &RegionInfo<'_>) -> Result<Self> {
        RegionBlob::decode(info.blob, info.id, info.len).map(Self)
    }

    pub(crate) fn of(region: &dyn RemoteRegion) -> Result<&Self> {
        Ok(own(region, "the destination")?)
    }
}

impl RemoteRegion for PeerRegion {
    fn ptr(&self) -> Option<DevicePtr> {
        None
    }
}

/// The registered regions, for the thread that stores tokens for peers without atomics.
#[derive(Default)]
pub(crate) struct Words {
    /// Each with whether the host may store there.
    table: Mutex<HashMap<u64, (Weak<MemoryRegion>, bool)>>,
}

/// Why a token was not raised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// There is no such region, or it was dropped.
    Region,
    /// The word is not inside it, or not aligned.
    Place,
    /// The host cannot store there.
    Device,
}

impl Words {
    fn add(&self, region: &Arc<MemoryRegion>, is_host_memory: bool) {
        self.table.lock().insert(region.id(), (Arc::downgrade(region), is_host_memory));
    }

    /// Once this returns, nothing is stored in the region any more.
    fn withdraw(&self, id: u64) {
        self.table.lock().remove(&id);
    }

    /// Raises the word at `offset` of a region to `value`, after everything that this thread has seen arrive: a thread
    /// that loads the word with acquire and sees the value sees all of that. A word that is already higher stays as it
    /// is: another queue, at which this thread happened to look first, may have raised it.
    pub(crate) fn raise(&self, region: u64, offset: u64, value: u64) -> Result<(), Refusal> {
        // Held while storing, so that the owner of the memory waits in `withdraw` before it frees it.
        let table = self.table.lock();
        let (region, is_host_memory) = table.get(&region).ok_or(Refusal::Region)?;
        let region = region.upgrade().ok_or(Refusal::Region)?;
        if !is_host_memory {
            return Err(Refusal::Device);
        }
        let address = region.ptr().0.wrapping_add(offset);
        match offset.checked_add(8) {
            Some(end) if end <= region.len() && address.is_multiple_of(8) => {}
            _ => return Err(Refusal::Place),
        }
        let word = std::ptr::with_exposed_provenance_mut::<u64>(address as usize);
        // SAFETY: the word is inside the region, which is memory of this process that the host reaches and that
        // `region` keeps, or its owner by the table's lock; it is aligned. Whoever registers memory promises that all
        // accesses to it meanwhile are atomic.
        unsafe { AtomicU64::from_ptr(word) }.fetch_max(value, Ordering::Release);
        Ok(())
    }
}
