//! Memory that was freed: a kernel that still uses it fails, rather than the process.
//!
//! The addresses are given to nobody else, so that one of them in a kernel means the memory that was there. What lies at
//! them stays mapped until all launches have ended that ran when it was freed: these may be about to touch it.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    ptr,
};

use parking_lot::Mutex;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

struct Freed {
    /// Beginnings and ends.
    ranges: BTreeMap<usize, usize>,
    /// The ranges that are still mapped, with the number of launches that had begun by then.
    kept: Vec<(u64, Range<usize>)>,
    running: BTreeSet<u64>,
    begun: u64,
}

static FREED: Mutex<Freed> =
    Mutex::new(Freed { ranges: BTreeMap::new(), kept: Vec::new(), running: BTreeSet::new(), begun: 0 });

/// Takes over a mapping that is to be unmapped, to keep its addresses.
pub(in super::super) fn retire(range: Range<usize>) {
    let mut freed = FREED.lock();
    freed.ranges.insert(range.start, range.end);
    let begun = freed.begun;
    freed.kept.push((begun, range));
    freed.unmap();
}

/// The freed memory at an address, if there is some.
pub(super) fn at(address: usize) -> Option<Range<usize>> {
    let freed = FREED.lock();
    let (start, end) = freed.ranges.range(..=address).next_back()?;
    (address < *end).then_some(*start..*end)
}

/// The part of a range around an address where nothing was freed.
pub(super) fn between(address: usize, range: Range<usize>) -> Range<usize> {
    let freed = FREED.lock();
    let before = freed.ranges.range(..=address).next_back().map_or(0, |(_, end)| *end);
    let behind = freed.ranges.range(address..).next().map_or(usize::MAX, |(start, _)| *start);
    range.start.max(before)..range.end.min(behind)
}

/// A launch that runs.
pub(super) struct Running(u64);

impl Running {
    pub(super) fn begin() -> Self {
        let mut freed = FREED.lock();
        freed.begun += 1;
        let number = freed.begun;
        freed.running.insert(number);
        Self(number)
    }

    /// Notes that the last thread of the launch has ended.
    pub(super) fn end(&self) {
        let mut freed = FREED.lock();
        freed.running.remove(&self.0);
        freed.unmap();
    }
}

impl Freed {
    /// Gives back the memory that no launch can be about to touch. The addresses stay reserved.
    fn unmap(&mut self) {
        let oldest = self.running.first().copied().unwrap_or(u64::MAX);
        self.kept.retain(|(begun, range)| {
            if *begun >= oldest {
                return true;
            }
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
            let start = ptr::without_provenance_mut(range.start);
            // SAFETY: a mapping of this module's (`retire`), which nobody uses any more: launches that begin from now on fail
            // before they do, and the promise of everything unsafe covers the rest, as where it is unmapped at once.
            if let Err(error) = unsafe { mmap_anonymous(start, range.len(), ProtFlags::empty(), flags) } {
                tracing::warn!(target: "mscclpp::gpu", address = range.start, %error, "freed memory is leaked");
            }
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_memory_stays_while_a_launch_runs_and_its_address_for_ever() {
        let bytes = 1 << 16;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let memory =
            unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, MapFlags::PRIVATE) }.expect("memory");
        let word = memory.cast::<u64>();
        let running = Running::begin();
        retire(word.addr()..word.addr() + bytes);
        // SAFETY: mapped above, and kept as long as the launch runs.
        unsafe { word.write_volatile(7) };
        running.end();
        assert_eq!(at(word.addr() + bytes - 1), Some(word.addr()..word.addr() + bytes));
        // Launches of other tests may run, too.
        mscclpp_test_support::until("the end of all launches", || {
            FREED.lock().kept.iter().all(|(_, range)| range.start != word.addr())
        });
    }
}
