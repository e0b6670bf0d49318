//! The regions of this process that peers may write to, and how frames are checked against them.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use mscclpp_core::MemoryRegion;
use mscclpp_gpu::DevicePtr;
use parking_lot::RwLock;

use crate::protocol::frame::Fault;

/// All regions that are registered now.
///
/// Invariant: `generation` is raised, with release, after a region was taken out of `table`. A reader that loads the
/// same generation, with acquire, as when it filled its cache knows that nothing has been taken out since.
#[derive(Default)]
pub(crate) struct Regions {
    table: RwLock<HashMap<u64, Weak<MemoryRegion>>>,
    generation: AtomicU64,
}

impl Regions {
    pub(crate) fn register(&self, region: &Arc<MemoryRegion>) {
        self.table.write().insert(region.id(), Arc::downgrade(region));
    }

    pub(crate) fn withdraw(&self, id: u64) {
        self.table.write().remove(&id);
        self.generation.fetch_add(1, Ordering::Release);
    }
}

/// A range of a region, checked. Keeps the memory.
pub(crate) struct Target {
    pub(crate) region: Arc<MemoryRegion>,
    pub(crate) address: DevicePtr,
}

/// What one receiver knows of [`Regions`], so that it takes no lock for a frame.
pub(crate) struct KnownRegions {
    regions: Arc<Regions>,
    generation: u64,
    // Weak: a receiver that has nothing to do keeps nobody's memory.
    known: Vec<Weak<MemoryRegion>>,
}

/// How many regions a receiver remembers: most connections have two, data and semaphores.
const REMEMBERED: usize = 8;

impl KnownRegions {
    pub(crate) fn new(regions: Arc<Regions>) -> Self {
        Self { regions, generation: 0, known: Vec::with_capacity(REMEMBERED) }
    }

    /// The range that a frame names, if it is inside a region that is registered.
    pub(crate) fn target(&mut self, id: u64, offset: u64, len: u64) -> Result<Target, Fault> {
        let region = self.region(id).ok_or(Fault::Region { region: id })?;
        match offset.checked_add(len) {
            Some(end) if end <= region.len() => Ok(Target { address: region.ptr().add(offset), region }),
            _ => Err(Fault::Bounds { region: id, offset, len }),
        }
    }

    fn region(&mut self, id: u64) -> Option<Arc<MemoryRegion>> {
        let generation = self.regions.generation.load(Ordering::Acquire);
        if generation != self.generation {
            self.known.clear();
            self.generation = generation;
        }
        if let Some(region) = self.known.iter().filter_map(Weak::upgrade).find(|region| region.id() == id) {
            return Some(region);
        }
        let found = self.regions.table.read().get(&id).cloned()?;
        let region = found.upgrade()?;
        if self.known.len() == REMEMBERED {
            self.known.remove(0);
        }
        self.known.push(found);
        Some(region)
    }
}
