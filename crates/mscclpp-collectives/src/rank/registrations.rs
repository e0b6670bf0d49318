//! The registered memory of a rank, and where calls find their places in it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use mscclpp::{DevicePtr, RegisteredMemory, Stream, engine::Group, gpu::Owner};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::{
    Result,
    handle::{MAX_RANKS, MappedSegments},
    plan::{Plan, overlap},
};

use super::registry::Segment;

/// The memory that ranks have registered together, in the order of their calls, which is the same on all ranks. Peers write into
/// it by its [`Segment`]s, as into all published memory. Besides, all ranks know whether memory is registered, and whether it
/// is symmetric.
#[derive(Default)]
pub(crate) struct Registrations {
    list: RwLock<List>,
    /// A lock that a thread holds while it exchanges something with the other ranks.
    turn: Mutex<()>,
}

#[derive(Default)]
pub(crate) struct List {
    pub(crate) next: u64,
    pub(crate) all: Vec<Arc<Memory>>,
}

/// Memory that this rank has registered.
pub(crate) struct Memory {
    pub(crate) id: u64,
    pub(crate) dropped: AtomicBool,
    pub(crate) at: DevicePtr,
    pub(crate) len: u64,
    /// The segment by which peers write into the memory. None if they do not.
    pub(crate) segment: Option<Arc<Segment>>,
    /// The memory that the peers have registered together with this one, and where this rank has mapped it.
    pub(crate) peers: Option<MappedSegments>,
    /// The limits of symmetric memory; none for other memory.
    pub(crate) symmetric: Option<Symmetric>,
    /// Keeps the memory, and what the peers have registered with it.
    pub(crate) owner: Owner,
}

/// The memory that a rank registers: its address, its offset in the memory that peers map, and its length.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub(crate) at: DevicePtr,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// The limits of symmetric memory.
pub(crate) struct Symmetric {
    /// The length of the shortest.
    pub(crate) least: u64,
    /// See [`CopyPlaces::aside`].
    pub(crate) aside: Option<Stream>,
}

/// The memory that peers have registered together, as it is mapped here.
pub(crate) struct Mapping {
    pub(crate) peers: MappedSegments,
    /// The memory of each other rank, in the order of the ranks.
    pub(crate) memories: Vec<RegisteredMemory>,
    /// Keeps it mapped.
    pub(crate) owners: Vec<Owner>,
}

/// The places that copies into symmetric memory go to.
pub(crate) struct CopyPlaces {
    /// The address of this rank's part at each peer.
    pub(crate) at_peers: [DevicePtr; MAX_RANKS],
    /// The stream for the copy of the own part, if it has one of its own.
    pub(crate) aside: Option<Stream>,
    /// Keeps the memory until the call is complete.
    pub(crate) owner: Owner,
}

impl Registrations {
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, List> {
        self.list.read()
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, List> {
        self.list.write()
    }

    /// Waits until no other thread exchanges something with the other ranks.
    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock()
    }

    /// Returns the memory that not all ranks have dropped. Blocks until all call it.
    pub(crate) fn kept(&self, group: &Group) -> Result<Vec<Arc<Memory>>> {
        let mut all = self.read().all.clone();
        let is_dropped = |memory: &&Arc<Memory>| memory.dropped.load(Ordering::Relaxed);
        let own: Vec<u64> = all.iter().filter(is_dropped).map(|memory| memory.id).collect();
        let dropped = group.all_gather_list(&own, None)?;
        all.retain(|memory| !dropped.iter().all(|dropped| dropped.contains(&memory.id)));
        Ok(all)
    }
}

impl List {
    /// Whether something is registered: alike on all ranks.
    pub(crate) fn are_some(&self) -> bool {
        !self.all.is_empty()
    }

    /// The places that the copies of a call of `rank` go to, if copy engines can do it: alike on all ranks, by their promise.
    pub(crate) fn copy_places(&self, plan: &Plan, rank: usize) -> Option<CopyPlaces> {
        let ranks = plan.segments.len();
        if !plan.same_offsets || ranks < 2 {
            return None;
        }
        let (own, recv) = (plan.segments[rank], plan.segments[0].recv);
        let bytes = own.recv_bytes * ranks as u64;
        let memory = self.all.iter().find(|memory| {
            let least = memory.symmetric.as_ref().map_or(0, |symmetric| symmetric.least);
            let offset = recv.0.wrapping_sub(memory.at.0);
            offset <= least && bytes <= least - offset && !memory.dropped.load(Ordering::Relaxed)
        })?;
        let (symmetric, peers) = (memory.symmetric.as_ref()?, memory.peers.as_ref()?);
        // C3.
        let in_place = own.send == own.recv;
        let clashes = plan.segments.iter().any(|segment| {
            !(in_place && segment.send == own.recv)
                && overlap((recv, bytes), (segment.send, segment.send_bytes))
        });
        if clashes {
            return None;
        }
        let offset = own.recv.0 - memory.at.0;
        let at_peers = peers.at.map(|base| base.add(offset));
        Some(CopyPlaces { at_peers, aside: symmetric.aside.clone(), owner: memory.owner.clone() })
    }
}
