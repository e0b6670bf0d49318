//! Claims on regions, by which a receiver keeps memory from being freed while it writes there.
//!
//! A registration need not keep its memory alive: once it is withdrawn, the owner may free the memory. So a receiver claims
//! a region before it checks that the region is registered, and withdrawing waits until nobody claims the region.
//!
//! # Why either the receiver or the withdrawing thread notices the other
//! The receiver stores its claim and then loads the table's generation. The thread that withdraws takes the region out
//! of the table, raises the generation, and then loads the claims. All four accesses to claim and generation are
//! `SeqCst`, so they have one order. Either the claim is stored before the claims are loaded, and the withdrawal waits;
//! or the generation is raised before it is loaded, and the receiver looks into the table, which no longer has the
//! region.
//!
//! The receiver takes a claim back with a release store, after its last access. The load that sees the claim gone pairs
//! with that store, so whatever the owner then does to the memory comes after all writes of the receiver.
//!
//! Copies to a device's region continue after their frame was handled. They have a claim of their own, made while the
//! frame's claim still stands. The thread that withdraws loads the frame's claim first, so it misses neither.

use std::{
    net::{Shutdown, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

/// The number of regions to which copies may be under way before the receiver waits for all copies. Most connections have two
/// regions.
const COPIED: usize = 8;

/// The claims of one receiver. Each is a region's number, or 0 for none.
pub(crate) struct Claims {
    /// The region of the current frame.
    frame: AtomicU64,
    /// The regions in device memory to which copies may be under way.
    copies: [AtomicU64; COPIED],
    /// Whether a withdrawing thread waits for one of `copies`.
    awaited: AtomicBool,
    /// The region for which the connection was cut.
    cut: AtomicU64,
    stream: Option<Arc<TcpStream>>,
}

impl Claims {
    /// Makes the claims of the receiver of `stream`, if it has one.
    pub(crate) fn new(stream: Option<Arc<TcpStream>>) -> Self {
        Self {
            frame: AtomicU64::new(0),
            copies: Default::default(),
            awaited: AtomicBool::new(false),
            cut: AtomicU64::new(0),
            stream,
        }
    }

    /// Claims the region of a frame. Only afterwards may the caller check whether it is registered.
    pub(crate) fn claim(&self, region: u64) {
        self.frame.store(region, Ordering::SeqCst);
    }

    /// Takes the frame's claim back: the frame no longer touches its region.
    pub(crate) fn unclaim(&self) {
        self.frame.store(0, Ordering::Release);
    }

    /// Whether all copies have to complete, and be unclaimed by [`Claims::unclaim_copies`], before one to `region` may begin.
    pub(crate) fn must_settle(&self, region: u64) -> bool {
        self.is_awaited() || self.place_of(region).is_none()
    }

    /// Claims a region in device memory for copies. The frame's claim on it must stand, and an entry must be free.
    pub(crate) fn claim_copies(&self, region: u64) {
        if let Some(place) = self.place_of(region) {
            place.store(region, Ordering::Release);
        }
    }

    /// Takes the claims for copies back: no copy is under way any more.
    pub(crate) fn unclaim_copies(&self) {
        self.awaited.store(false, Ordering::Relaxed);
        self.copies.iter().for_each(|place| place.store(0, Ordering::Release));
    }

    fn place_of(&self, region: u64) -> Option<&AtomicU64> {
        // Only the receiver stores these values.
        let holds = |wanted: u64| self.copies.iter().find(|place| place.load(Ordering::Relaxed) == wanted);
        holds(region).or_else(|| holds(0))
    }

    /// Whether a thread waits for copies. One that begins while they are being unclaimed is seen later, or finds no claim.
    pub(crate) fn is_awaited(&self) -> bool {
        self.awaited.load(Ordering::Relaxed)
    }

    /// The region for which the connection was cut, if it was.
    pub(crate) fn cut_for(&self) -> Option<u64> {
        Some(self.cut.load(Ordering::Acquire)).filter(|region| *region != 0)
    }

    /// Whether the receiver may be touching a region. If copies may be, asks the receiver to wait for them.
    pub(crate) fn may_touch(&self, region: u64) -> bool {
        if self.frame.load(Ordering::SeqCst) == region {
            return true;
        }
        let copied = self.copies.iter().any(|place| place.load(Ordering::Acquire) == region);
        if copied {
            self.awaited.store(true, Ordering::Relaxed);
        }
        copied
    }

    /// Ends the receiver if it is still in a frame for that region, because the rest of the frame may never come.
    pub(crate) fn cut(&self, region: u64) {
        if self.frame.load(Ordering::SeqCst) == region && self.cut.swap(region, Ordering::AcqRel) == 0 {
            // The flag is set first: a receiver that the shutdown wakes, or that finds earlier bytes, sees the flag next.
            if let Some(stream) = &self.stream {
                // This fails for a socket that is no longer connected, which needs no shutdown.
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }
}
