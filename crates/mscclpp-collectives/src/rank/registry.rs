//! The segments that a rank has published, and those of its peers that it has mapped. Calls find their places here. The
//! messages of the ranks about them are in `publisher.rs`; `docs/design/registrations.md` says how it goes together.

use std::{
    collections::HashMap,
    mem::{self, offset_of},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use mscclpp::{
    Context, DeviceBuffer, DevicePtr, Gpu, RegisteredMemory, Transport,
    gpu::{DeviceAllocation, KernelObject, Owner, fork::Origin},
};
use parking_lot::Mutex;

use crate::{
    Result,
    handle::{CollectivePlace, MAX_RANKS, MappedSegments, Reach, SEGMENTS, Segment as CallSegment},
    plan::overlap,
};

use super::publisher;

/// The segments of a rank, and the words by which its kernels reach those of others.
pub(crate) struct Registry {
    context: Context,
    gpu: Gpu,
    /// The memory of the words, where it begins in a buffer, which is the rank's own.
    words: DeviceBuffer,
    begin: u64,
    /// Whether captured calls publish what they take data into.
    captures: bool,
    own: Mutex<Own>,
    /// The work that the publisher has still to do.
    commands: Mutex<Vec<Command>>,
    mapped: Arc<Mapped>,
    /// Whether this rank has ever published something or mapped something: then its calls may go directly.
    is_used: AtomicBool,
    origin: Origin,
}

/// This rank's segments.
struct Own {
    segments: Vec<Weak<Segment>>,
    /// The slots that no segment has, and the number of the next segment.
    free: Vec<u64>,
    next: u64,
}

/// A piece of work for the publisher.
pub(crate) enum Command {
    Publish(Weak<Segment>, RegisteredMemory),
    /// Nobody names the segment any more. What it kept is released behind that.
    Withdraw {
        slot: u64,
        generation: u64,
        memory: SegmentMemory,
    },
}

/// Memory that this rank has published. Handles, launches and graphs keep it; when nobody does, it is withdrawn.
pub(crate) struct Segment {
    /// Its number, from 1 on, which no other segment of this rank has meanwhile, and one that none ever has.
    pub(crate) slot: u64,
    pub(crate) generation: u64,
    pub(crate) at: DevicePtr,
    pub(crate) len: u64,
    /// Whether it was dropped, or other memory has its addresses: calls do not name it any more.
    is_over: AtomicBool,
    /// Whether all peers have mapped it.
    is_ready: AtomicBool,
    memory: SegmentMemory,
    registry: Weak<Registry>,
}

/// The memory of a segment.
pub(crate) enum SegmentMemory {
    /// A buffer, which the segment keeps.
    Buffer(DeviceBuffer),
    /// The address and the length of memory that ranks have registered together. The registration keeps it.
    Registered(DevicePtr, u64),
    /// An allocation that the program may free. So a call first looks whether it is still there.
    Allocation(DeviceAllocation),
}

/// The segments of peers that are mapped, by the peer and the slot. All launches keep them, since peers may name any.
#[derive(Default)]
pub(crate) struct Mapped(Mutex<HashMap<(usize, u64), MappedSegment>>);

/// A segment of a peer, as it is mapped here.
pub(crate) struct MappedSegment {
    pub(crate) generation: u64,
    pub(crate) at: DevicePtr,
    pub(crate) bytes: u64,
    /// Keeps it mapped.
    pub(crate) _memory: RegisteredMemory,
}

impl KernelObject for Segment {}
impl KernelObject for Mapped {}

/// The places of a call, and the segments that its launch keeps.
pub(crate) struct Places {
    pub(crate) places: [CollectivePlace; MAX_RANKS],
    pub(crate) segments: Vec<Arc<Segment>>,
}

impl Registry {
    /// `words` has room for a [`Reach`] from byte `begin` on, all zero.
    pub(crate) fn new(
        context: &Context,
        gpu: &Gpu,
        words: &DeviceBuffer,
        begin: u64,
        captures: bool,
    ) -> Self {
        let own = Own { segments: Vec::new(), free: (1..=SEGMENTS as u64).rev().collect(), next: 1 };
        Self {
            context: context.clone(),
            gpu: gpu.clone(),
            words: words.clone(),
            begin,
            captures,
            own: Mutex::new(own),
            commands: Mutex::default(),
            mapped: Arc::default(),
            is_used: AtomicBool::new(false),
            origin: Origin::here(),
        }
    }

    /// The address of the [`Reach`].
    pub(crate) fn reach(&self) -> DevicePtr {
        self.words.ptr().add(self.begin)
    }

    /// Keeps what is mapped of peers.
    pub(crate) fn owner(&self) -> Owner {
        Arc::clone(&self.mapped) as Owner
    }

    /// Whether this rank has published anything, or mapped anything of a peer, at any time.
    pub(crate) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// Whether captured calls publish what they take data into.
    pub(crate) fn captures(&self) -> bool {
        self.captures
    }

    /// Makes a segment, if there is a slot for one. Nobody is told of it.
    pub(crate) fn add(self: &Arc<Self>, memory: SegmentMemory) -> Option<Arc<Segment>> {
        let slot = self.own.lock().free.pop()?;
        Some(self.add_in_slot(slot, memory))
    }

    /// Makes a segment in a slot that no other has.
    pub(crate) fn add_in_slot(self: &Arc<Self>, slot: u64, memory: SegmentMemory) -> Arc<Segment> {
        let (at, len) = memory.range();
        let mut own = self.own.lock();
        let segment = Arc::new(Segment {
            slot,
            generation: own.next,
            at,
            len,
            is_over: AtomicBool::new(false),
            is_ready: AtomicBool::new(false),
            memory,
            registry: Arc::downgrade(self),
        });
        own.next += 1;
        own.segments.retain(|segment| segment.strong_count() > 0);
        own.segments.push(Arc::downgrade(&segment));
        self.is_used.store(true, Ordering::Relaxed);
        segment
    }

    /// Makes a segment, and has it published, if its memory can be shared. Waits for nobody. The memory is exported here: the
    /// program may free it before the publisher tells the peers.
    pub(crate) fn publish(self: &Arc<Self>, memory: SegmentMemory) -> Option<Arc<Segment>> {
        let (at, len) = memory.range();
        // SAFETY: it is live memory of this device now (the caller's contract). Peers use it by mappings of their own.
        let exported = unsafe { self.context.register_memory(at, len, Transport::CUDA_IPC) };
        let exported = exported.inspect_err(|error| {
            tracing::debug!(target: "mscclpp::conn", %error, "memory is not published, so data comes into it through scratch");
        });
        let exported = exported.ok()?;
        let segment = self.add(memory)?;
        self.command(Command::Publish(Arc::downgrade(&segment), exported));
        Some(segment)
    }

    fn command(&self, command: Command) {
        self.commands.lock().push(command);
        publisher::wake();
    }

    pub(super) fn take_commands(&self) -> Vec<Command> {
        mem::take(&mut *self.commands.lock())
    }

    /// The places of the data that comes to `rank` from each peer. `results`: it is what the peer has made of what this rank
    /// sends to it. `publishes`: what has no segment gets one. `ready`: only those that all peers have mapped.
    pub(crate) fn places(
        self: &Arc<Self>,
        segments: &[CallSegment],
        rank: usize,
        results: bool,
        publishes: bool,
        ready: bool,
    ) -> Places {
        let mut found = Places { places: [CollectivePlace::NONE; MAX_RANKS], segments: Vec::new() };
        for (p, CallSegment { recv, recv_bytes, .. }) in segments.iter().copied().enumerate() {
            // D2: nothing is sent from any of it, but what a result takes the place of. Peers map memory by pages, so an address
            // that is a multiple of 16 here is one there.
            let sends = segments.iter().enumerate().any(|(to, segment)| {
                let is_replaced = results && to == p && segment.send == recv;
                !is_replaced && overlap((recv, recv_bytes), (segment.send, segment.send_bytes))
            });
            if p == rank || recv_bytes == 0 || sends || !recv.0.is_multiple_of(16) {
                continue;
            }
            let known = found.segments.iter().find(|segment| segment.holds(recv, recv_bytes)).cloned();
            let segment = known.or_else(|| {
                let allocation = || if publishes { self.gpu.allocation(recv).ok() } else { None };
                let publish = || self.publish_around(allocation()?, recv, recv_bytes);
                let segment = self.find(recv, recv_bytes).or_else(publish)?;
                found.segments.push(Arc::clone(&segment));
                Some(segment)
            });
            if let Some(segment) = segment.filter(|it| !ready || it.is_ready()) {
                found.places[p] = CollectivePlace { segment: segment.slot, offset: recv.0 - segment.at.0 };
            }
        }
        found
    }

    /// The segment that holds these bytes, if calls may name it.
    fn find(&self, at: DevicePtr, bytes: u64) -> Option<Arc<Segment>> {
        let own = self.own.lock();
        let of_bytes = |segment: Arc<Segment>| segment.holds(at, bytes).then_some(segment);
        let found: Vec<_> = own.segments.iter().filter_map(Weak::upgrade).filter_map(of_bytes).collect();
        // A segment that is dropped here takes this lock.
        drop(own);
        found.into_iter().find(|segment| segment.is_still_there(&self.gpu))
    }

    /// Publishes the whole allocation, if it holds these bytes.
    pub(crate) fn publish_around(
        self: &Arc<Self>,
        allocation: DeviceAllocation,
        at: DevicePtr,
        bytes: u64,
    ) -> Option<Arc<Segment>> {
        let offset = at.0.wrapping_sub(allocation.ptr().0);
        let holds = offset <= allocation.len() && bytes <= allocation.len() - offset;
        if holds { self.publish(SegmentMemory::Allocation(allocation)) } else { None }
    }

    /// Notes that all peers have mapped a segment: kernels name it from now on.
    pub(crate) fn set_ready(&self, segment: &Segment) -> Result<()> {
        self.write_ready(segment.slot, 1)?;
        segment.is_ready.store(true, Ordering::Release);
        Ok(())
    }

    /// Gives a slot back that nobody names any more, and of which the peers have been told.
    pub(super) fn free(&self, slot: u64) -> Result<()> {
        self.write_ready(slot, 0)?;
        self.own.lock().free.push(slot);
        Ok(())
    }

    fn write_ready(&self, slot: u64, ready: u64) -> Result<()> {
        self.write(offset_of!(Reach, ready) as u64 + 8 * (slot - 1), ready)
    }

    /// Notes where a peer's segment is mapped here, so that kernels find it. The peer has given it a slot that there is.
    pub(crate) fn map(&self, peer: usize, slot: u64, segment: MappedSegment) -> Result<()> {
        self.is_used.store(true, Ordering::Relaxed);
        self.write_mapped(peer, slot, segment.at, segment.bytes)?;
        self.write(expects(peer), 1)?;
        // The one before it, which the peer has withdrawn, is dropped without the lock: that may wait for a driver.
        let before = self.mapped.0.lock().insert((peer, slot), segment);
        drop(before);
        Ok(())
    }

    /// Forgets a peer's segment that the peer names no more.
    pub(super) fn unmap(&self, peer: usize, slot: u64, generation: u64) -> Result<()> {
        let mut mapped = self.mapped.0.lock();
        if mapped.get(&(peer, slot)).is_none_or(|segment| segment.generation != generation) {
            return Ok(());
        }
        let gone = mapped.remove(&(peer, slot));
        let others = mapped.keys().any(|(of, _)| *of == peer);
        drop(mapped);
        self.write_mapped(peer, slot, DevicePtr::NULL, 0)?;
        if !others {
            self.write(expects(peer), 0)?;
        }
        drop(gone);
        Ok(())
    }

    /// How many bytes are mapped of a peer's segment, if it is, and the largest number of those that are.
    pub(crate) fn mapped_bytes(&self, peer: usize, slot: u64) -> (Option<u64>, u64) {
        let mapped = self.mapped.0.lock();
        let last = mapped.keys().filter(|(of, _)| *of == peer).map(|(_, slot)| *slot).max();
        (mapped.get(&(peer, slot)).map(|segment| segment.bytes), last.unwrap_or(0))
    }

    fn write_mapped(&self, peer: usize, slot: u64, at: DevicePtr, bytes: u64) -> Result<()> {
        let entry = offset_of!(Reach, mapped) as u64 + (slot - 1) * size_of::<MappedSegments>() as u64;
        self.write(entry + offset_of!(MappedSegments, bytes) as u64 + 8 * peer as u64, bytes)?;
        self.write(entry + offset_of!(MappedSegments, at) as u64 + 8 * peer as u64, at.0)
    }

    /// Writes a word: see D9 in `collective_direct_device.hpp`.
    fn write(&self, offset: u64, word: u64) -> Result<()> {
        Ok(self.words.write(self.begin + offset, &word.to_le_bytes())?)
    }
}

/// Whether a slot's number is one.
pub(crate) fn is_slot(slot: u64) -> bool {
    (1..=SEGMENTS as u64).contains(&slot)
}

/// The offset of a peer's word.
fn expects(peer: usize) -> u64 {
    offset_of!(Reach, expects) as u64 + 8 * peer as u64
}

impl SegmentMemory {
    /// The first address, and the length in bytes.
    fn range(&self) -> (DevicePtr, u64) {
        match self {
            Self::Buffer(buffer) => (buffer.ptr(), buffer.len()),
            Self::Registered(at, len) => (*at, *len),
            Self::Allocation(allocation) => (allocation.ptr(), allocation.len()),
        }
    }
}

impl Segment {
    /// Makes later calls not name it.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Whether all peers have mapped it.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_ready.load(Ordering::Acquire)
    }

    fn holds(&self, at: DevicePtr, bytes: u64) -> bool {
        let offset = at.0.wrapping_sub(self.at.0);
        offset <= self.len && bytes <= self.len - offset && !self.is_over.load(Ordering::Relaxed)
    }

    /// Whether it is the memory that it was, which is asked of the driver where no buffer owns it.
    fn is_still_there(&self, gpu: &Gpu) -> bool {
        let is_there = match &self.memory {
            SegmentMemory::Allocation(known) => gpu.allocation(self.at).is_ok_and(|now| now == *known),
            SegmentMemory::Buffer(_) | SegmentMemory::Registered(..) => true,
        };
        if !is_there {
            self.end();
        }
        is_there
    }
}

/// This may run in a thread of the driver: it calls no driver, and waits for nobody.
impl Drop for Segment {
    fn drop(&mut self) {
        // In a fork, nobody would answer, and another thread may have held the locks.
        let registry = self.registry.upgrade().filter(|registry| registry.origin.is_here());
        if let Some(registry) = registry {
            let Self { slot, generation, at, len, .. } = *self;
            let memory = mem::replace(&mut self.memory, SegmentMemory::Registered(at, len));
            registry.command(Command::Withdraw { slot, generation, memory });
        }
    }
}

#[cfg(all(test, feature = "cuda-ipc"))]
mod tests {
    use mscclpp::{ContextExt, Platform};

    use super::*;

    /// A registry with one segment of 1000 bytes, and its first address.
    fn registry() -> (Arc<Registry>, Arc<Segment>, DeviceBuffer) {
        let gpu = Platform::Sim.gpu(0).expect("a device");
        let words = gpu.allocate(size_of::<Reach>() as u64).expect("memory");
        let memory = gpu.allocate(4096).expect("memory");
        let context = Context::on(Platform::Sim);
        let registry = Arc::new(Registry::new(&context, &gpu, &words, 0, true));
        let segment = registry.add(SegmentMemory::Registered(memory.ptr(), 1000)).expect("a slot");
        (registry, segment, memory)
    }

    #[test]
    fn a_place_lies_in_published_memory_whole_and_nothing_is_sent_from_it() {
        let (registry, segment, memory) = registry();
        let here = memory.ptr().0;
        let place = |offset: u64, bytes: u64, sent_from: u64| {
            let mut segments = [CallSegment::NONE; MAX_RANKS];
            segments[1].recv = DevicePtr(here).add(offset);
            segments[1].recv_bytes = bytes;
            segments[0].send = DevicePtr(sent_from);
            segments[0].send_bytes = 64;
            let place = registry.places(&segments, 0, false, false, false).places[1];
            (place != CollectivePlace::NONE).then(|| {
                assert_eq!(place.segment, 1);
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
            (64, 128, here + 191),
            (64, 128, here + 1),
        ] {
            assert_eq!(place(offset, bytes, sent_from), None, "{offset} {bytes} {sent_from:#x}");
        }
        assert_eq!(place(64, 128, here + 192), Some(64));
        assert_eq!(place(64, 128, here), Some(64));
        segment.end();
        assert_eq!(place(0, 1000, 8), None);
    }

    #[test]
    fn a_result_takes_the_place_of_what_was_sent_for_it_and_of_nothing_else() {
        let (registry, _segment, memory) = registry();
        let has_place = |results: bool, to_peer: u64, to_other: u64| {
            let mut segments = [CallSegment::NONE; 3];
            for (segment, offset) in segments[1..].iter_mut().zip([to_peer, to_other]) {
                segment.send = memory.ptr().add(offset);
                segment.send_bytes = 128;
            }
            segments[1].recv = memory.ptr().add(64);
            segments[1].recv_bytes = 128;
            registry.places(&segments, 0, results, false, false).places[1] != CollectivePlace::NONE
        };
        assert!(has_place(true, 64, 192));
        assert!(has_place(true, 1024, 192));
        for (results, to_peer, to_other) in
            [(false, 64, 192), (true, 48, 192), (true, 80, 192), (true, 64, 176), (true, 1024, 64)]
        {
            assert!(!has_place(results, to_peer, to_other), "{results} {to_peer} {to_other}");
        }
    }

    #[test]
    fn a_slot_is_given_to_others_when_its_segment_is_withdrawn() {
        let (registry, segment, memory) = registry();
        let others: Vec<_> = (1..SEGMENTS as u64)
            .map(|i| registry.add(SegmentMemory::Registered(memory.ptr(), i)).expect("a slot"))
            .collect();
        assert!(registry.add(SegmentMemory::Registered(memory.ptr(), 8)).is_none(), "there is none left");
        let slot = segment.slot;
        drop(segment);
        assert!(
            registry.add(SegmentMemory::Registered(memory.ptr(), 8)).is_none(),
            "the peers do not know it yet"
        );
        for command in registry.take_commands() {
            let Command::Withdraw { slot, .. } = command else { panic!("nothing is published") };
            registry.free(slot).expect("memory");
        }
        assert_eq!(registry.add(SegmentMemory::Registered(memory.ptr(), 8)).expect("a slot").slot, slot);
        drop(others);
    }

    #[test]
    fn memory_that_took_the_place_of_other_memory_is_not_named() {
        let (registry, ..) = registry();
        let gpu = Platform::Sim.gpu(0).expect("a device");
        let memory = gpu.allocate(4096).expect("memory");
        let mut segments = [CallSegment::NONE; 2];
        segments[1].recv = memory.ptr();
        segments[1].recv_bytes = 4096;
        let place = |publishes| registry.places(&segments, 0, false, publishes, false).places[1];
        assert_eq!(place(false), CollectivePlace::NONE);
        let found = registry.places(&segments, 0, false, true, false);
        assert_ne!(found.places[1], CollectivePlace::NONE);
        assert_eq!(found.places[1], place(true), "it is published once");
        drop(memory);
        assert_eq!(place(false), CollectivePlace::NONE, "it was freed");
        assert!(!found.segments[0].holds(segments[1].recv, 1));
    }
}
