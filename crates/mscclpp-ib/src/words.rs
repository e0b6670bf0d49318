//! Words that this process stores for peers whose signals are not atomics.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use mscclpp_core::MemoryRegion;
use parking_lot::Mutex;

use crate::complaint::Complaint;

/// The registered regions, for the thread that stores tokens for peers without atomics.
#[derive(Default)]
pub(crate) struct WordRegions {
    /// The regions by their id, each with whether the host may store there.
    table: Mutex<HashMap<u64, (Weak<MemoryRegion>, bool)>>,
}

impl WordRegions {
    pub(crate) fn add(&self, region: &Arc<MemoryRegion>, is_host_memory: bool) {
        self.table.lock().insert(region.id(), (Arc::downgrade(region), is_host_memory));
    }

    /// Removes a region. Once this returns, nothing is stored in it any more.
    pub(crate) fn withdraw(&self, id: u64) {
        self.table.lock().remove(&id);
    }

    /// Raises the word at `offset` of a region to `value`, after everything that this thread has seen arrive: a
    /// thread that loads the word with acquire and sees the value sees all of that. A word that is already higher
    /// stays as it is: another queue, which this thread happened to poll first, may have raised it.
    pub(crate) fn raise(&self, region: u64, offset: u64, value: u64) -> Result<(), Complaint> {
        // The lock is held while storing, so that the owner of the memory waits in `withdraw` before it frees it.
        let table = self.table.lock();
        let (memory, is_host_memory) = table.get(&region).ok_or(Complaint::Region { region })?;
        let memory = memory.upgrade().ok_or(Complaint::Region { region })?;
        if !is_host_memory {
            return Err(Complaint::Device { region });
        }
        let address = memory.ptr().0.wrapping_add(offset);
        match offset.checked_add(8) {
            Some(end) if end <= memory.len() && address.is_multiple_of(8) => {}
            _ => return Err(Complaint::Place { region, offset }),
        }
        let word = std::ptr::with_exposed_provenance_mut::<u64>(address as usize);
        // SAFETY: the word is inside the region, which is memory of this process that the host reaches and that
        // `memory` keeps, or its owner by the table's lock; it is aligned. Whoever registers memory promises that all
        // accesses to it meanwhile are atomic.
        unsafe { AtomicU64::from_ptr(word) }.fetch_max(value, Ordering::Release);
        Ok(())
    }
}
