use std::{
    any::Any,
    collections::HashMap,
    sync::{Arc, LazyLock, Weak},
};

use mscclpp_gpu::{DevicePtr, Gpu, Platform};
use parking_lot::Mutex;

use crate::{Result, Transport, identity::ProcessId};

/// A range of this process's memory that peers may be given.
#[derive(Debug)]
pub struct MemoryRegion {
    id: u64,
    ptr: DevicePtr,
    len: u64,
    gpu: Option<Gpu>,
    /// The owner of memory that this library allocated, kept alive with the region.
    _owner: Option<Arc<dyn Any + Send + Sync>>,
}

/// The regions of this process that are registered now. By its id, a blob that a peer sent back is recognised. The
/// references are weak: a region lives as long as its [`RegisteredMemory`].
static REGIONS: LazyLock<Mutex<HashMap<u64, Weak<MemoryRegion>>>> = LazyLock::new(Mutex::default);

impl MemoryRegion {
    pub(crate) fn new(
        ptr: DevicePtr,
        len: u64,
        gpu: Option<Gpu>,
        owner: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Arc<Self>> {
        let id = u64::from_le_bytes(mscclpp_os::random()?);
        let region = Arc::new(Self { id, ptr, len, gpu, _owner: owner });
        REGIONS.lock().insert(id, Arc::downgrade(&region));
        Ok(region)
    }

    /// Makes a region of host memory that no provider has registered, for tests of a provider's parts.
    ///
    /// # Errors
    /// Fails if the system has no random numbers.
    ///
    /// # Safety
    /// The memory must be valid for as long as anybody reads or writes it through the region.
    #[doc(hidden)]
    pub unsafe fn of_host(ptr: DevicePtr, len: u64) -> Result<Arc<Self>> {
        Self::new(ptr, len, None, None)
    }

    pub(crate) fn find(id: u64) -> Option<Arc<Self>> {
        REGIONS.lock().get(&id).and_then(Weak::upgrade)
    }

    /// A random number that no other region of this process has.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The address of the region's first byte.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// The region's length in bytes, never 0.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The device that holds the memory, or `None` for host memory.
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

/// The information that a provider gets about a region that it is to import.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RegionInfo<'a> {
    /// The process that owns the region.
    pub process: ProcessId,
    /// The region's [`MemoryRegion::id`] in that process.
    pub id: u64,
    /// The region's length in bytes, as the owner says.
    pub len: u64,
    /// The identifier of the owner's node, which all processes of the node share.
    pub host: &'a str,
    /// The platform of the owner's devices.
    pub platform: Platform,
    /// The UUID of the region's device; zeros for host memory.
    pub device_uuid: [u8; 16],
    /// The transport that the region was registered for.
    pub transport: Transport,
    /// The bytes that the provider needs to import the region.
    pub blob: &'a [u8],
    /// The region itself, if it is of this process.
    pub local: Option<Arc<MemoryRegion>>,
}
