use std::{
    any::Any,
    collections::HashMap,
    sync::{Arc, LazyLock, Weak},
};

use mscclpp_gpu::{DevicePtr, Gpu, Platform};
use parking_lot::Mutex;

use crate::{
    Result, Transport,
    identity::{self, ProcessId},
};

/// A range of this process's memory that peers may be given.
#[derive(Debug)]
pub struct MemoryRegion {
    id: u64,
    ptr: DevicePtr,
    len: u64,
    gpu: Option<Gpu>,
    /// What keeps the memory, where this library made it.
    _owner: Option<Arc<dyn Any + Send + Sync>>,
}

/// Regions of this process that are registered now, so that a blob that comes back home is recognised by its id.
/// Weak: a region lives as long as its [`RegisteredMemory`].
static REGIONS: LazyLock<Mutex<HashMap<u64, Weak<MemoryRegion>>>> = LazyLock::new(Mutex::default);

impl MemoryRegion {
    pub(crate) fn new(
        ptr: DevicePtr,
        len: u64,
        gpu: Option<Gpu>,
        owner: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Arc<Self>> {
        let id = u64::from_le_bytes(identity::random()?);
        let region = Arc::new(Self { id, ptr, len, gpu, _owner: owner });
        REGIONS.lock().insert(id, Arc::downgrade(&region));
        Ok(region)
    }

    pub(crate) fn find(id: u64) -> Option<Arc<Self>> {
        REGIONS.lock().get(&id).and_then(Weak::upgrade)
    }

    /// A random number that no other region of this process has.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Where it starts.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// Its length in bytes, never 0.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The device whose memory it is, or none for host memory.
    #[must_use]
    pub fn gpu(&self) -> Option<&Gpu> {
        self.gpu.as_ref()
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        REGIONS.lock().remove(&self.id);
    }
}

/// What a provider is told about a region that it is to import.
#[derive(Debug)]
#[non_exhaustive]
pub struct RegionInfo<'a> {
    /// The process that owns it.
    pub process: ProcessId,
    /// Its [`MemoryRegion::id`] there.
    pub id: u64,
    /// Its length in bytes, as the owner says.
    pub len: u64,
    /// What two processes of one host have in common.
    pub host: &'a str,
    /// Where its owner's devices come from.
    pub platform: Platform,
    /// What identifies its device on that host; zeros for host memory.
    pub device_uuid: [u8; 16],
    /// The transport it was registered for.
    pub transport: Transport,
    /// What its provider needs to import it.
    pub blob: &'a [u8],
    /// The region itself, if it is one of this process.
    pub local: Option<Arc<MemoryRegion>>,
}
