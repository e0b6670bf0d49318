//! The table of this process's regions to which peers may write, and the check of frames against it.

use std::{
    collections::HashMap,
    net::TcpStream,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use mscclpp_core::MemoryRegion;
use mscclpp_gpu::DevicePtr;
use mscclpp_os::waiting::Backoff;
use parking_lot::{Mutex, RwLock};

use crate::{claims::Claims, frame::Fault};

/// The time that a frame which has begun may still take once its region is withdrawn. A receiver that has
/// all bytes of a frame, but has not been scheduled yet, finishes within this time, so its connection is not cut.
const GRACE: Duration = Duration::from_millis(500);
/// The longest wait for all receivers. It is longer than the copies of a receiver that ends may take.
const LIMIT: Duration = Duration::from_secs(10);

/// The table of all registered regions.
///
/// Invariant: `generation` is raised after a region was taken out of `table`. A reader that loads the same generation
/// as when it filled its cache knows that nothing has been taken out since. [`Claims`] explains why these accesses are
/// `SeqCst`.
#[derive(Default)]
pub(crate) struct Regions {
    table: RwLock<HashMap<u64, Weak<MemoryRegion>>>,
    generation: AtomicU64,
    /// The claims of every receiver.
    claims: Mutex<Vec<Weak<Claims>>>,
}

impl Regions {
    pub(crate) fn register(&self, region: &Arc<MemoryRegion>) {
        self.table.write().insert(region.id(), Arc::downgrade(region));
    }

    /// Takes a region out of the table, and waits until no receiver touches it, because its owner may then free the
    /// memory. If a peer does not send the rest of a frame that it began, its connection is cut.
    pub(crate) fn withdraw(&self, id: u64) {
        self.table.write().remove(&id);
        self.generation.fetch_add(1, Ordering::SeqCst);
        // A receiver that is added after this lock does not find the region in the table.
        let receivers: Vec<_> = self.claims.lock().iter().filter_map(Weak::upgrade).collect();
        let began = Instant::now();
        for claims in receivers {
            let mut backoff = Backoff::default();
            while claims.may_touch(id) {
                let waited = began.elapsed();
                if waited > LIMIT {
                    // The receiver keeps the region, and so the memory if this library allocated it. No other can be kept.
                    tracing::error!(
                        target: "mscclpp::conn", region = id,
                        "a peer's write to a dropped memory did not end within {LIMIT:?}; a device hangs"
                    );
                    return;
                }
                if waited > GRACE {
                    claims.cut(id);
                }
                backoff.wait();
            }
        }
    }

    fn add(&self, claims: &Arc<Claims>) {
        let mut all = self.claims.lock();
        all.retain(|claims| claims.strong_count() > 0);
        all.push(Arc::downgrade(claims));
    }
}

/// A checked range of a region, which keeps the region.
pub(crate) struct Target {
    pub(crate) region: Arc<MemoryRegion>,
    pub(crate) address: DevicePtr,
}

/// One receiver's copy of parts of [`Regions`], so that it does not take a lock for each frame.
pub(crate) struct KnownRegions {
    regions: Arc<Regions>,
    generation: u64,
    // The references are weak: an idle receiver keeps nobody's memory.
    known: Vec<Weak<MemoryRegion>>,
    claims: Arc<Claims>,
}

/// The number of regions that a receiver remembers: most connections have two, data and semaphores.
const REMEMBERED: usize = 8;

impl KnownRegions {
    /// Makes the copy of the receiver of `stream`, if it has one.
    pub(crate) fn new(regions: Arc<Regions>, stream: Option<Arc<TcpStream>>) -> Self {
        let claims = Arc::new(Claims::new(stream));
        regions.add(&claims);
        Self { regions, generation: 0, known: Vec::with_capacity(REMEMBERED), claims }
    }

    /// The range that a frame names, if it lies inside a registered region. It is claimed until [`KnownRegions::done`].
    pub(crate) fn target(&mut self, id: u64, offset: u64, len: u64) -> Result<Target, Fault> {
        let region = self.claim(id).ok_or(Fault::Region { region: id })?;
        match offset.checked_add(len) {
            Some(end) if end <= region.len() => Ok(Target { address: region.ptr().add(offset), region }),
            _ => Err(Fault::Bounds { region: id, offset, len }),
        }
    }

    /// The region `id`, if it is registered. It is claimed until [`KnownRegions::done`].
    pub(crate) fn claim(&mut self, id: u64) -> Option<Arc<MemoryRegion>> {
        // The claim comes before the look at the table. 0 stands for no claim, so no region has that number.
        self.claims.claim(id);
        if id == 0 { None } else { self.region(id) }
    }

    /// Ends the claim: the current frame no longer touches its region.
    pub(crate) fn done(&self) {
        self.claims.unclaim();
    }

    /// The receiver's claims, which also tell whether the connection was cut.
    pub(crate) fn claims(&self) -> &Claims {
        &self.claims
    }

    fn region(&mut self, id: u64) -> Option<Arc<MemoryRegion>> {
        let generation = self.regions.generation.load(Ordering::SeqCst);
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

impl Drop for KnownRegions {
    /// Ends all claims: the receiver has ended, and its copies with it. If a device hangs, its copies were given up, and
    /// this was logged.
    fn drop(&mut self) {
        self.claims.unclaim_copies();
        self.claims.unclaim();
    }
}
