//! The segments of peers that a rank has mapped, and the words in device memory by which its kernels find them.

use std::{
    collections::HashMap,
    mem::offset_of,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use mscclpp::{
    DeviceBuffer, DevicePtr, RegisteredMemory,
    gpu::{KernelObject, Owner},
};
use parking_lot::Mutex;

use crate::{
    Result,
    handle::{MappedSegments, Reach, SEGMENTS},
};

/// The segments of peers, as this rank has mapped them.
pub(crate) struct PeerSegments {
    /// A buffer of this rank, which holds a [`Reach`] from byte `begin` on.
    words: DeviceBuffer,
    begin: u64,
    mapped: Arc<Mapped>,
    /// Held while a segment is mapped or unmapped, so that the words and the table name the same segments: a registration does
    /// so on its own thread, and messages about published memory are handled on another one.
    changing: Mutex<()>,
    /// Whether this rank has mapped any segment, at any time.
    are_used: AtomicBool,
}

/// The segments of peers that this rank has mapped, by peer and slot. Every launch keeps all of them, since a peer may name any.
#[derive(Default)]
pub(crate) struct Mapped(Mutex<HashMap<(usize, u64), MappedSegment>>);

/// A segment of a peer, and where this rank has mapped it.
pub(crate) struct MappedSegment {
    pub(crate) generation: u64,
    pub(crate) at: DevicePtr,
    pub(crate) bytes: u64,
    /// Keeps the segment mapped.
    pub(crate) _memory: RegisteredMemory,
}

impl KernelObject for Mapped {}

impl PeerSegments {
    /// Starts with no segments. `words` has room for a [`Reach`] from byte `begin` on, all zero.
    pub(super) fn new(words: &DeviceBuffer, begin: u64) -> Self {
        Self {
            words: words.clone(),
            begin,
            mapped: Arc::default(),
            changing: Mutex::default(),
            are_used: AtomicBool::new(false),
        }
    }

    /// Whether this rank has mapped any segment, at any time.
    pub(super) fn are_used(&self) -> bool {
        self.are_used.load(Ordering::Relaxed)
    }

    /// The address of the [`Reach`].
    pub(crate) fn reach(&self) -> DevicePtr {
        self.words.ptr().add(self.begin)
    }

    /// Returns what keeps the segments of peers mapped.
    pub(crate) fn owner(&self) -> Owner {
        Arc::clone(&self.mapped) as Owner
    }

    /// Writes whether all peers have mapped this rank's segment in a slot.
    pub(super) fn write_ready(&self, slot: u64, ready: bool) -> Result<()> {
        self.write(offset_of!(Reach, ready) as u64 + 8 * (slot - 1), ready.into())
    }

    /// Notes where this rank has mapped a peer's segment, so that kernels find it. The slot [exists](is_slot). Does nothing if
    /// the slot has a later segment of the peer: a message about an earlier one may come after the later one was registered.
    pub(crate) fn map(&self, peer: usize, slot: u64, segment: MappedSegment) -> Result<()> {
        let _changing = self.changing.lock();
        let later = |there: &MappedSegment| there.generation > segment.generation;
        if self.mapped.0.lock().get(&(peer, slot)).is_some_and(later) {
            return Ok(());
        }
        self.are_used.store(true, Ordering::Relaxed);
        self.write_mapped(peer, slot, segment.at, segment.bytes)?;
        self.write(expects(peer), 1)?;
        // The peer has withdrawn the segment that had this slot before. It is dropped without the table's lock, as that may wait
        // for a driver.
        let before = self.mapped.0.lock().insert((peer, slot), segment);
        drop(before);
        Ok(())
    }

    /// Unmaps a segment that its peer names no more, if it is still the one of this generation.
    pub(super) fn unmap(&self, peer: usize, slot: u64, generation: u64) -> Result<()> {
        let _changing = self.changing.lock();
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

    /// Returns how many bytes of a peer's segment are mapped, if it is mapped, and the last slot of the peer's mapped segments.
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

    /// Writes a word, which kernels may read at the same time: see D9 in `collective_direct_device.hpp`.
    fn write(&self, offset: u64, word: u64) -> Result<()> {
        Ok(self.words.write(self.begin + offset, &word.to_le_bytes())?)
    }
}

/// Whether a slot with this number exists.
pub(crate) fn is_slot(slot: u64) -> bool {
    (1..=SEGMENTS as u64).contains(&slot)
}

/// The offset of the word [`Reach::expects`] of a peer.
fn expects(peer: usize) -> u64 {
    offset_of!(Reach, expects) as u64 + 8 * peer as u64
}
