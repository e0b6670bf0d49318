//! The regions of this process that peers may write to, and how frames are checked against them.

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

/// How long a frame that has begun may go on once its region is withdrawn. Long enough for a receiver that has all
/// bytes and was only not scheduled: its connection must not suffer.
const GRACE: Duration = Duration::from_millis(500);
/// How long to wait for all receivers. Longer than the copies of a receiver that ends may take.
const LIMIT: Duration = Duration::from_secs(10);

/// All regions that are registered now.
///
/// Invariant: `generation` is raised after a region was taken out of `table`. A reader that loads the same generation
/// as when it filled its cache knows that nothing has been taken out since. [`Claims`] explains why these accesses are
/// `SeqCst`.
#[derive(Default)]
pub(crate) struct Regions {
    table: RwLock<HashMap<u64, Weak<MemoryRegion>>>,
    generation: AtomicU64,
    /// Of every receiver.
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
        // A receiver that is added behind this lock finds the region in the table no more.
        let receivers: Vec<_> = self.claims.lock().iter().filter_map(Weak::upgrade).collect();
        let began = Instant::now();
        for claims in receivers {
            let mut backoff = Backoff::default();
            while claims.may_touch(id) {
                let waited = began.elapsed();
                if waited > LIMIT {
                    // The receiver keeps the region, and with it memory that this library made. More is not to be had.
                    tracing::error!(
                        target: "mscclpp::conn", region = id,
                        "what a peer writes to a memory that was dropped did not end within {LIMIT:?}; a device hangs"
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

/// A range of a region, checked. Keeps the memory.
pub(crate) struct Target {
    pub(crate) region: Arc<MemoryRegion>,
    pub(crate) address: DevicePtr,
}

/// What one receiver remembers of [`Regions`], so that it need not take a lock for each frame.
pub(crate) struct KnownRegions {
    regions: Arc<Regions>,
    generation: u64,
    // Weak: a receiver that has nothing to do keeps nobody's memory.
    known: Vec<Weak<MemoryRegion>>,
    claims: Arc<Claims>,
}

/// How many regions a receiver remembers: most connections have two, data and semaphores.
const REMEMBERED: usize = 8;

impl KnownRegions {
    /// For the receiver of `stream`, if it has one.
    pub(crate) fn new(regions: Arc<Regions>, stream: Option<Arc<TcpStream>>) -> Self {
        let claims = Arc::new(Claims::new(stream));
        regions.add(&claims);
        Self { regions, generation: 0, known: Vec::with_capacity(REMEMBERED), claims }
    }

    /// The range that a frame names, if it lies inside a registered region. Claimed until [`KnownRegions::done`].
    pub(crate) fn target(&mut self, id: u64, offset: u64, len: u64) -> Result<Target, Fault> {
        let region = self.claim(id).ok_or(Fault::Region { region: id })?;
        match offset.checked_add(len) {
            Some(end) if end <= region.len() => Ok(Target { address: region.ptr().add(offset), region }),
            _ => Err(Fault::Bounds { region: id, offset, len }),
        }
    }

    /// A region, if it is registered. Claimed until [`KnownRegions::done`].
    pub(crate) fn claim(&mut self, id: u64) -> Option<Arc<MemoryRegion>> {
        // Before the look at what is registered. 0 claims nothing, so a region of that number is none.
        self.claims.claim(id);
        if id == 0 { None } else { self.region(id) }
    }

    /// The current frame no longer touches its region.
    pub(crate) fn done(&self) {
        self.claims.unclaim();
    }

    /// What copies to devices claim, and whether the connection was cut.
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
    /// The receiver has ended, and its copies with it. If a device hangs, its copies were given up, and this was
    /// logged.
    fn drop(&mut self) {
        self.claims.unclaim_copies();
        self.claims.unclaim();
    }
}
