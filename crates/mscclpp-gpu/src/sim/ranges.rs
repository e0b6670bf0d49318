//! The memory that kernels of simulated devices may touch, to the byte: all memory that the devices have allocated, pinned
//! and imported in this process, and the variables of modules.
//!
//! Kernels look a range up once and remember it with the epoch at that time. The epoch changes whenever memory is removed.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::RwLock;

use super::races;
use crate::{DevicePtr, Error, Result};

static RANGES: RwLock<BTreeMap<usize, Extent>> = RwLock::new(BTreeMap::new());
static EPOCH: AtomicU64 = AtomicU64::new(0);
/// The number of additions and removals.
static CHANGES: AtomicU64 = AtomicU64::new(0);

#[derive(Clone, Copy)]
struct Extent {
    bytes: u64,
    /// The size with the addresses after it, which belong to no other memory.
    reserved: u64,
    whose: Whose,
}

/// The processes that have the memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// This process alone.
    Ours,
    /// This process, which has allocated it on that device and may give it to others.
    Device(usize),
    /// Another process, which gave it to this one.
    Theirs,
}

/// Memory that kernels may touch until this is dropped. The race detector is told when it comes and when it goes.
pub(super) struct AccessibleRange {
    begin: usize,
}

impl AccessibleRange {
    /// Adds memory that no other call has added, and that has `reserved` bytes with its guard.
    pub(super) fn new(begin: usize, bytes: u64, reserved: u64, whose: Whose) -> Self {
        if matches!(whose, Whose::Device(_)) {
            races::allocates(begin);
        }
        races::forget(begin, bytes as usize);
        RANGES.write().insert(begin, Extent { bytes, reserved, whose });
        CHANGES.fetch_add(1, Ordering::Release);
        Self { begin }
    }
}

impl Drop for AccessibleRange {
    fn drop(&mut self) {
        let removed = RANGES.write().remove(&self.begin);
        CHANGES.fetch_add(1, Ordering::Release);
        EPOCH.fetch_add(1, Ordering::Release);
        if let Some(extent) = removed {
            races::forget(self.begin, extent.bytes as usize);
        }
    }
}

/// Returns the epoch, for kernels to compare.
pub(super) fn epoch() -> &'static AtomicU64 {
    &EPOCH
}

/// Returns the last memory that begins at `address` or before it.
fn before(address: usize) -> Option<(usize, Extent)> {
    RANGES.read().range(..=address).next_back().map(|(begin, extent)| (*begin, *extent))
}

/// Returns the start and the size of the memory with the byte at `address`.
pub(super) fn at(address: usize) -> Option<(usize, u64)> {
    let (begin, extent) = before(address)?;
    ((address - begin) as u64).lt(&extent.bytes).then_some((begin, extent.bytes))
}

/// The place of an address.
pub(super) enum Whereabouts {
    /// Memory that kernels may touch.
    In(Range<usize>),
    /// The guard after memory that begins there and has so many bytes.
    Behind(usize, u64),
    /// A range without any known memory.
    Between(Range<usize>),
}

pub(super) fn whereabouts(address: usize) -> Whereabouts {
    let ranges = RANGES.read();
    let before = ranges.range(..=address).next_back();
    let start = match before {
        Some((begin, extent)) if ((address - begin) as u64) < extent.bytes => {
            return Whereabouts::In(*begin..begin + extent.bytes as usize);
        }
        Some((begin, extent)) if ((address - begin) as u64) < extent.reserved => {
            return Whereabouts::Behind(*begin, extent.bytes);
        }
        Some((begin, extent)) => begin + extent.reserved.max(extent.bytes) as usize,
        None => 0,
    };
    let end = ranges.range(address..).next().map_or(usize::MAX, |(begin, _)| *begin);
    Whereabouts::Between(start..end)
}

/// Returns a number that changes whenever memory is added or removed.
pub(super) fn changes() -> u64 {
    CHANGES.load(Ordering::Acquire)
}

/// Calls `each` with the mappings that other processes have too, guards included, and returns whether there are any.
/// Waits for no other thread: in a forked child one may have been changing them, and then it returns false.
pub(super) fn for_each_shared(each: impl Fn(usize, usize)) -> bool {
    let Some(ranges) = RANGES.try_read() else { return false };
    let shared = ranges.iter().filter(|(_, extent)| extent.whose != Whose::Ours);
    shared.fold(false, |_, (begin, extent)| {
        each(*begin, extent.reserved as usize);
        true
    })
}

/// Whether `address` is in a mapping that other processes have too. Waits for no other thread either.
pub(super) fn is_shared(address: usize) -> bool {
    RANGES.try_read().is_some_and(|ranges| whose(&ranges, address).is_some_and(|whose| whose != Whose::Ours))
}

/// Whether `address` is in memory of another process.
pub(super) fn is_imported(address: usize) -> bool {
    whose(&RANGES.read(), address) == Some(Whose::Theirs)
}

/// Returns the device of this process that has allocated the memory at `address`.
pub(super) fn device_of(address: usize) -> Option<usize> {
    match whose(&RANGES.read(), address) {
        Some(Whose::Device(device)) => Some(device),
        _ => None,
    }
}

fn whose(ranges: &BTreeMap<usize, Extent>, address: usize) -> Option<Whose> {
    let (begin, extent) = ranges.range(..=address).next_back()?;
    (((address - begin) as u64) < extent.reserved).then_some(extent.whose)
}

/// Whether the memory may have readers that are not seen: the host by a reference, or another process.
pub(super) fn has_unseen_readers(address: usize) -> bool {
    !matches!(whose(&RANGES.read(), address), Some(Whose::Device(_)))
}

/// Refuses an access of the host to `len` bytes at `ptr`, which may also be memory of the host alone, if it is out of
/// bounds.
///
/// # Errors
/// [`Error::OutOfBounds`] if they begin in memory of a device, or in its guard, and go past its end.
pub(super) fn refuse_overrun(what: &'static str, ptr: DevicePtr, len: u64) -> Result<()> {
    match before(ptr.0 as usize) {
        Some((begin, extent)) if ptr.0 - (begin as u64) < extent.reserved => {
            Error::bounds(what, ptr.0 - begin as u64, len, extent.bytes)
        }
        _ => Ok(()),
    }
}

/// Describes the memory before and after `address`, for messages.
pub(super) fn around(address: usize) -> String {
    let mut text = match before(address) {
        Some((begin, Extent { bytes, reserved, .. })) if ((address - begin) as u64) < reserved => {
            return format!(
                "; it is at offset {} of the {bytes} bytes of memory at {begin:#x}: see whether an offset or a size is too large",
                address - begin
            );
        }
        Some((begin, extent)) => {
            format!("; the nearest memory in front of it ends at {:#x}", begin as u64 + extent.bytes)
        }
        None => String::new(),
    };
    if let Some((begin, _)) = RANGES.read().range(address..).next() {
        text += &format!("; the next one begins at {begin:#x}");
    }
    text
}
