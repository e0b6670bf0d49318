//! The memory that kernels of the Host platform may touch: everything that its devices have allocated, pinned and
//! imported in this process, and the variables of modules.
//!
//! Kernels look a range up once and remember it with the epoch at that time. The epoch changes whenever memory goes
//! away.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::RwLock;

static RANGES: RwLock<BTreeMap<usize, u64>> = RwLock::new(BTreeMap::new());
static EPOCH: AtomicU64 = AtomicU64::new(0);

/// Memory that kernels may touch until this is dropped.
pub(super) struct Known {
    begin: usize,
}

impl Known {
    /// Adds memory that nothing else has added.
    pub(super) fn new(begin: usize, bytes: u64) -> Self {
        RANGES.write().insert(begin, bytes);
        Self { begin }
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        RANGES.write().remove(&self.begin);
        EPOCH.fetch_add(1, Ordering::Release);
    }
}

/// The epoch, for kernels to compare.
pub(super) fn epoch() -> &'static AtomicU64 {
    &EPOCH
}

/// The memory that has the byte at `address`: where it begins, and its size.
pub(super) fn at(address: usize) -> Option<(usize, u64)> {
    let ranges = RANGES.read();
    let (begin, bytes) = ranges.range(..=address).next_back()?;
    ((address - begin) as u64).lt(bytes).then_some((*begin, *bytes))
}

/// What lies in front of and behind `address`, for messages.
pub(super) fn around(address: usize) -> String {
    let ranges = RANGES.read();
    let before = ranges.range(..=address).next_back();
    let behind = ranges.range(address..).next();
    let mut text = String::new();
    if let Some((begin, bytes)) = before.filter(|(begin, bytes)| **begin as u64 + **bytes == address as u64) {
        text += &format!(
            "; it is right behind the {bytes} bytes of memory at {begin:#x}: see whether an offset or a size is too large"
        );
    } else if let Some((begin, bytes)) = before {
        text += &format!("; the nearest memory in front of it ends at {:#x}", *begin as u64 + bytes);
    }
    if let Some((begin, _)) = behind {
        text += &format!("; the next one begins at {begin:#x}");
    }
    text
}
