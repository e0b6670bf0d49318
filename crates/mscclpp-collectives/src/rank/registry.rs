//! The segments that a rank has published, in which calls find their places. Those of its peers are in `peer_segments.rs`, and
//! the messages that ranks send each other about segments in `publisher.rs`; `docs/design/registrations.md` describes all three.

use std::{
    mem,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use mscclpp::{
    Context, DeviceBuffer, DevicePtr, Gpu, RegisteredMemory, Transport,
    gpu::{DeviceAllocation, KernelObject, fork::Origin},
};
use parking_lot::Mutex;

use crate::{
    Result,
    handle::{CollectivePlace, MAX_RANKS, SEGMENTS, Segment as CallSegment},
    plan::overlap,
};

use super::{pause::wake, peer_segments::PeerSegments};

/// The segments of a rank, and those of its peers.
pub(crate) struct Registry {
    context: Context,
    gpu: Gpu,
    pub(crate) peers: PeerSegments,
    /// Whether captured calls publish the memory that they take data into.
    publishes_captured: bool,
    own: Mutex<Own>,
    /// The commands that the publisher has not yet carried out.
    commands: Mutex<Vec<Command>>,
    /// Whether this rank has published any segment, at any time.
    has_published: AtomicBool,
    origin: Origin,
}

/// The segments of this rank.
struct Own {
    segments: Vec<Weak<Segment>>,
    /// The slots that no segment has, and the number of the next segment.
    free: Vec<u64>,
    next: u64,
}

/// A command to the publisher.
pub(crate) enum Command {
    /// Tell the peers of a segment, whose memory is exported.
    Publish(Weak<Segment>, RegisteredMemory),
    /// Tell the peers that a segment is not named any more, and then release its memory.
    Withdraw { slot: u64, generation: u64, memory: SegmentMemory },
}

/// Memory that this rank has published. Handles, launches and graphs keep it. When the last of them is gone, it is withdrawn.
pub(crate) struct Segment {
    /// The segment's number, from 1 on, which no other segment of this rank has at the same time.
    pub(crate) slot: u64,
    /// A number that no other segment of this rank ever has.
    pub(crate) generation: u64,
    /// Whether calls name the segment no more: its handle was dropped, or other memory has its addresses.
    is_over: AtomicBool,
    /// Whether all peers have mapped the segment. It is what the host knows of the word in [`Reach::ready`].
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

impl KernelObject for Segment {}

/// The places that a call names to each peer, and the segments that its launch keeps.
pub(crate) struct Places {
    pub(crate) places: [CollectivePlace; MAX_RANKS],
    pub(crate) segments: Vec<Arc<Segment>>,
}

impl Registry {
    /// Makes the registry of a rank that has no segments. `words` has room for a [`Reach`] from byte `begin` on, all zero.
    pub(crate) fn new(
        context: &Context,
        gpu: &Gpu,
        words: &DeviceBuffer,
        begin: u64,
        publishes_captured: bool,
    ) -> Self {
        let own = Own { segments: Vec::new(), free: (1..=SEGMENTS as u64).rev().collect(), next: 1 };
        Self {
            context: context.clone(),
            gpu: gpu.clone(),
            peers: PeerSegments::new(words, begin),
            publishes_captured,
            own: Mutex::new(own),
            commands: Mutex::default(),
            has_published: AtomicBool::new(false),
            origin: Origin::here(),
        }
    }

    /// Whether this rank has published or mapped any segment, at any time. If so, its calls may go directly.
    pub(crate) fn is_used(&self) -> bool {
        self.has_published.load(Ordering::Relaxed) || self.peers.are_used()
    }

    /// Whether captured calls publish the memory that they take data into.
    pub(crate) fn publishes_captured(&self) -> bool {
        self.publishes_captured
    }

    /// Makes a segment, if there is a free slot. Does not tell the peers of it.
    pub(crate) fn add(self: &Arc<Self>, memory: SegmentMemory) -> Option<Arc<Segment>> {
        let slot = self.own.lock().free.pop()?;
        Some(self.add_in_slot(slot, memory))
    }

    /// Makes a segment in a slot that no other segment has.
    pub(crate) fn add_in_slot(self: &Arc<Self>, slot: u64, memory: SegmentMemory) -> Arc<Segment> {
        let mut own = self.own.lock();
        let segment = Arc::new(Segment {
            slot,
            generation: own.next,
            is_over: AtomicBool::new(false),
            is_ready: AtomicBool::new(false),
            memory,
            registry: Arc::downgrade(self),
        });
        own.next += 1;
        own.segments.retain(|segment| segment.strong_count() > 0);
        own.segments.push(Arc::downgrade(&segment));
        self.has_published.store(true, Ordering::Relaxed);
        segment
    }

    /// Makes a segment and has the publisher tell the peers of it, if there is a free slot and the memory can be shared. Does not
    /// block. This exports the memory itself, because the program may free it before the publisher tells the peers.
    pub(crate) fn publish(self: &Arc<Self>, memory: SegmentMemory) -> Option<Arc<Segment>> {
        let (at, len) = memory.range();
        // SAFETY: this is live memory of this device now (the caller's contract). Peers use it by mappings of their own.
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
        wake();
    }

    pub(super) fn take_commands(&self) -> Vec<Command> {
        mem::take(&mut *self.commands.lock())
    }

    /// Finds the places for the data that `rank` takes from each peer. `results`: the data are results, which the peer has made
    /// of what this rank sends to it. `publishes`: memory that no segment holds is published. `ready`: segments that not all
    /// peers have mapped are left out.
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
            // D2: this rank sends from no part of the place, except the numbers that a result replaces. Peers map memory by
            // pages, so an address that is a multiple of 16 here is one there.
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
                let (base, _) = segment.memory.range();
                found.places[p] = CollectivePlace { segment: segment.slot, offset: recv.0 - base.0 };
            }
        }
        found
    }

    /// Finds the segment that holds these bytes and that calls may name.
    fn find(&self, at: DevicePtr, bytes: u64) -> Option<Arc<Segment>> {
        let own = self.own.lock();
        let of_bytes = |segment: Arc<Segment>| segment.holds(at, bytes).then_some(segment);
        let found: Vec<_> = own.segments.iter().filter_map(Weak::upgrade).filter_map(of_bytes).collect();
        // The driver is asked without the lock.
        drop(own);
        found.into_iter().find(|segment| segment.is_still_there(&self.gpu))
    }

    /// Publishes a whole allocation, if it holds these bytes.
    pub(crate) fn publish_around(
        self: &Arc<Self>,
        allocation: DeviceAllocation,
        at: DevicePtr,
        bytes: u64,
    ) -> Option<Arc<Segment>> {
        let memory = SegmentMemory::Allocation(allocation);
        if memory.holds(at, bytes) { self.publish(memory) } else { None }
    }

    /// Notes that all peers have mapped a segment. Kernels name it from now on.
    pub(crate) fn set_ready(&self, segment: &Segment) -> Result<()> {
        self.peers.write_ready(segment.slot, true)?;
        segment.is_ready.store(true, Ordering::Release);
        Ok(())
    }

    /// Frees the slot of a segment that calls name no more, for another segment.
    pub(super) fn free(&self, slot: u64) -> Result<()> {
        self.peers.write_ready(slot, false)?;
        self.own.lock().free.push(slot);
        Ok(())
    }
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

    fn holds(&self, at: DevicePtr, bytes: u64) -> bool {
        let (base, len) = self.range();
        let offset = at.0.wrapping_sub(base.0);
        offset <= len && bytes <= len - offset
    }
}

impl Segment {
    /// Lets later calls name the segment no more.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Whether all peers have mapped the segment.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_ready.load(Ordering::Acquire)
    }

    /// Whether the segment holds these bytes, and calls may name it.
    fn holds(&self, at: DevicePtr, bytes: u64) -> bool {
        self.memory.holds(at, bytes) && !self.is_over.load(Ordering::Relaxed)
    }

    /// Whether the segment still has its memory. For an allocation of the program, this asks the driver.
    fn is_still_there(&self, gpu: &Gpu) -> bool {
        let is_there = match &self.memory {
            SegmentMemory::Allocation(known) => gpu.allocation(known.ptr()).is_ok_and(|now| now == *known),
            SegmentMemory::Buffer(_) | SegmentMemory::Registered(..) => true,
        };
        if !is_there {
            self.end();
        }
        is_there
    }
}

/// Withdraws the segment. A thread of the driver may do this, so it calls no driver and does not block.
impl Drop for Segment {
    fn drop(&mut self) {
        // In a forked child there is no publisher, and another thread of the parent may have held the locks.
        let registry = self.registry.upgrade().filter(|registry| registry.origin.is_here());
        if let Some(registry) = registry {
            let Self { slot, generation, .. } = *self;
            let memory = mem::replace(&mut self.memory, SegmentMemory::Registered(DevicePtr::NULL, 0));
            registry.command(Command::Withdraw { slot, generation, memory });
        }
    }
}

#[cfg(all(test, feature = "cuda-ipc"))]
mod tests {
    use mscclpp::{ContextExt, Platform};

    use super::*;
    use crate::{handle::Reach, rank::peer_segments::MappedSegment};

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

    /// A registration has a slot that something published had before, and messages about that come late.
    #[test]
    fn a_late_message_about_a_segment_leaves_the_later_one_of_its_slot() {
        let (registry, _segment, memory) = registry();
        let mapped = |generation: u64, bytes: u64| {
            // SAFETY: the memory lives until the end of the test, and nobody reads or writes it.
            let registered =
                unsafe { registry.context.register_memory(memory.ptr(), bytes, Transport::CUDA_IPC) };
            let segment = MappedSegment {
                generation,
                at: memory.ptr(),
                bytes,
                _memory: registered.expect("registered memory"),
            };
            registry.peers.map(1, 2, segment).expect("mapped");
        };
        mapped(7, 512);
        mapped(6, 256);
        assert_eq!(
            registry.peers.mapped_bytes(1, 2),
            (Some(512), 2),
            "what was published before has not come back"
        );
        registry.peers.unmap(1, 2, 6).expect("unmapped");
        assert_eq!(registry.peers.mapped_bytes(1, 2), (Some(512), 2));
        mapped(8, 1024);
        assert_eq!(registry.peers.mapped_bytes(1, 2), (Some(1024), 2));
        registry.peers.unmap(1, 2, 8).expect("unmapped");
        assert_eq!(registry.peers.mapped_bytes(1, 2), (None, 0));
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
