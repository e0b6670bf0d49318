//! The registered memory of a rank, and where calls find their places in it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use mscclpp::{
    DevicePtr, Gpu, Stream,
    engine::Group,
    gpu::{KernelArgument, Owner},
};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::{
    Result,
    handle::{CollectivePlace, MAX_RANKS, Registration, Segment},
    plan::{Plan, overlap},
};

/// The registered memory, in the order of the calls that registered it, and so alike on all ranks: ranks name a place to
/// each other by the number of a registration in the list and an offset.
#[derive(Default)]
pub(crate) struct Registrations {
    list: RwLock<List>,
    /// Held while ranks exchange something.
    turn: Mutex<()>,
}

#[derive(Default)]
pub(crate) struct List {
    pub(crate) next: u64,
    pub(crate) all: Vec<Arc<Memory>>,
    /// The table by which kernels find them: see D7 in `collective_direct_device.hpp`.
    pub(crate) table: DevicePtr,
    /// Keeps all of them and the table, for launches.
    pub(crate) owner: Arc<Vec<Owner>>,
}

/// Memory that this rank has registered.
pub(crate) struct Memory {
    pub(crate) id: u64,
    pub(crate) dropped: AtomicBool,
    pub(crate) at: DevicePtr,
    pub(crate) len: u64,
    /// The memory that the peers have registered with it, as mapped here. None where nobody writes into it.
    pub(crate) peers: Option<Registration>,
    /// The limits of symmetric memory; none for other memory.
    pub(crate) symmetric: Option<Symmetric>,
    /// Keeps the memory, and what the peers have registered with it.
    pub(crate) owner: Owner,
}

/// The memory that a rank registers: where it is, where in the memory that peers map it begins, and its length.
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
    pub(crate) peers: Registration,
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
    pub(crate) fn new(gpu: &Gpu, next: u64, all: Vec<Arc<Memory>>) -> Result<Self> {
        let table: Vec<_> = all.iter().map(|memory| memory.peers.unwrap_or(Registration::NONE)).collect();
        let mut owner: Vec<_> = all.iter().map(|memory| memory.owner.clone()).collect();
        let mut at = DevicePtr::NULL;
        if !table.is_empty() {
            let buffer = gpu.allocate(size_of_val(&*table) as u64)?;
            buffer.write_params(0, &table)?;
            at = buffer.ptr();
            owner.extend((&buffer).owner());
        }
        Ok(Self { next, all, table: at, owner: Arc::new(owner) })
    }

    /// Whether something is registered: alike on all ranks.
    pub(crate) fn are_some(&self) -> bool {
        !self.all.is_empty()
    }

    /// The place, if there is one, of the data that comes to `rank` from each peer.
    pub(crate) fn places(&self, segments: &[Segment], rank: usize) -> [CollectivePlace; MAX_RANKS] {
        let mut places = [CollectivePlace::NONE; MAX_RANKS];
        let of_peers = places.iter_mut().zip(segments).enumerate().filter(|(p, _)| *p != rank);
        for (_, (place, segment)) in of_peers {
            let Segment { recv, recv_bytes, .. } = *segment;
            // D2: nothing is sent from any of it.
            let sends = segments
                .iter()
                .any(|segment| overlap((recv, recv_bytes), (segment.send, segment.send_bytes)));
            if recv_bytes > 0 && !sends {
                *place = self.find(recv, recv_bytes).unwrap_or(CollectivePlace::NONE);
            }
        }
        places
    }

    /// The place of these bytes in the registered memory, if peers may write there.
    fn find(&self, at: DevicePtr, bytes: u64) -> Option<CollectivePlace> {
        let (index, memory) = self.all.iter().enumerate().find(|(_, memory)| {
            let offset = at.0.wrapping_sub(memory.at.0);
            offset <= memory.len && bytes <= memory.len - offset && !memory.dropped.load(Ordering::Relaxed)
        })?;
        // Peers map memory by pages, so an address that is a multiple of 16 here is one there.
        let usable = memory.peers.is_some() && at.0.is_multiple_of(16);
        usable.then(|| CollectivePlace { registration: index as u64 + 1, offset: at.0 - memory.at.0 })
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

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: u64 = 1 << 20;

    /// One memory of 1000 bytes, of which peers have others.
    fn registrations() -> Registrations {
        let (dropped, owner) = (AtomicBool::new(false), Arc::new(Vec::<Owner>::new()));
        let memory = Arc::new(Memory {
            id: 0,
            dropped,
            at: DevicePtr(HERE),
            len: 1000,
            peers: Some(Registration::NONE),
            symmetric: None,
            owner,
        });
        let all = vec![memory];
        Registrations { list: RwLock::new(List { all, ..List::default() }), turn: Mutex::default() }
    }

    #[test]
    fn a_place_lies_in_registered_memory_whole_and_nothing_is_sent_from_it() {
        let registrations = registrations();
        let place = |offset: u64, bytes: u64, sent_from: u64| {
            let mut segments = [Segment::NONE; MAX_RANKS];
            segments[1].recv = DevicePtr(HERE).add(offset);
            segments[1].recv_bytes = bytes;
            segments[0].send = DevicePtr(sent_from);
            segments[0].send_bytes = 64;
            let place = registrations.read().places(&segments, 0)[1];
            (place != CollectivePlace::NONE).then(|| {
                assert_eq!(place.registration, 1);
                place.offset
            })
        };
        assert_eq!(place(0, 1000, 8), Some(0));
        assert_eq!(place(32, 968, 8), Some(32));
        for (offset, bytes, sent_from) in [
            (0, 1001, 8),
            (32, 969, 8),
            (8, 16, 8),
            (2000, 16, 8),
            (0, 0, 8),
            (64, 128, HERE + 191),
            (64, 128, HERE + 1),
        ] {
            assert_eq!(place(offset, bytes, sent_from), None, "{offset} {bytes} {sent_from:#x}");
        }
        assert_eq!(place(64, 128, HERE + 192), Some(64));
        assert_eq!(place(64, 128, HERE), Some(64));
        registrations.read().all[0].dropped.store(true, Ordering::Relaxed);
        assert_eq!(place(0, 1000, 8), None);
    }
}
