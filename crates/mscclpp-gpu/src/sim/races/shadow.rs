//! The accesses that are remembered for every byte of simulated memory: the last writes, and the reads since.
//!
//! # Invariants
//! 1. A read of a cell is dropped if a later access of the same bytes is ordered after it and is at least as strict: whoever
//!    knows the later one knows the read. A write replaces all records, because a race with them is reported at that moment.
//! 2. A cell has at most [`MOST`] records. What does not fit is forgotten, so a race can be missed, and none made up.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

use parking_lot::{Mutex, MutexGuard};

use super::{
    record::Record,
    switch::is_on,
    words::{Location, SyncWords},
};

const PAGE: usize = 4096;
const GRANULE: usize = 8;
const CELLS: usize = PAGE / GRANULE;
const MOST: usize = 12;
const SHARDS: usize = 64;

/// The records of 8 bytes.
type Cell = Vec<Record>;

/// The records of a page.
pub(super) struct Page {
    cells: Cells,
    /// The words of the page that carry order.
    pub(super) words: SyncWords,
}

enum Cells {
    /// All 8 bytes of the page alike, as after a copy.
    Same(Cell),
    Each(Box<[Cell]>),
}

impl Default for Page {
    fn default() -> Self {
        Self { cells: Cells::Same(Vec::new()), words: SyncWords::default() }
    }
}

/// Pages by their number.
pub(super) type Pages = HashMap<usize, Page, BuildHasherDefault<Mix>>;

static PAGES: [Mutex<Option<Pages>>; SHARDS] = [const { Mutex::new(None) }; SHARDS];

/// The pages among which the page of `address` is, for this thread alone as long as it holds them.
pub(super) struct Held(MutexGuard<'static, Option<Pages>>);

pub(super) fn hold(address: usize) -> Held {
    let mut pages = PAGES[address / PAGE % SHARDS].lock();
    pages.get_or_insert_default();
    Held(pages)
}

impl Held {
    pub(super) fn page(&mut self, address: usize) -> &mut Page {
        self.0.get_or_insert_default().entry(address / PAGE).or_default()
    }
}

impl Page {
    /// Takes note of an access to bytes that all lie in this page. Calls `race` with each earlier access that must be ordered
    /// before this one and is not, the address of the 8 bytes, and which of them both accessed (see [`first`]). `is_before` says
    /// which accesses are ordered before this one.
    pub(super) fn access(
        &mut self,
        address: usize,
        bytes: usize,
        record: Record,
        is_before: impl Fn(&Record) -> bool,
        mut race: impl FnMut(Record, usize, u8),
    ) {
        if record.how.is_write() && !record.how.is_strong() {
            self.words.overwrite(address..address + bytes, None);
        }
        if bytes == PAGE
            && let Cells::Same(cell) = &mut self.cells
        {
            let mut race = |earlier, common| race(earlier, address, common);
            note(cell, Record { bytes: !0, ..record }, &is_before, &mut race);
            return;
        }
        let mut at = address;
        while at < address + bytes {
            let end = ((at / GRANULE + 1) * GRANULE).min(address + bytes);
            let mask = (!0u8 >> (GRANULE - (end - at))) << (at % GRANULE);
            let cell = &mut self.each()[offset(at) / GRANULE];
            let mut race = |earlier, common| race(earlier, at & !(GRANULE - 1), common);
            note(cell, Record { bytes: mask, ..record }, &is_before, &mut race);
            at = end;
        }
        if bytes == PAGE && record.how.is_write() {
            // All of it is alike again.
            self.cells = Cells::Same(vec![Record { bytes: !0, ..record }]);
        }
    }

    /// The records of the 8 bytes at `address`.
    pub(super) fn records(&self, address: usize) -> &[Record] {
        match &self.cells {
            Cells::Same(cell) => cell,
            Cells::Each(cells) => &cells[offset(address) / GRANULE],
        }
    }

    /// Those of a word by others than the one whose record this is, the last first.
    pub(super) fn records_but(&self, word: Location, own: &Record) -> impl Iterator<Item = &Record> {
        let (bytes, own) = (word.mask(), *own);
        self.records(word.address)
            .iter()
            .rev()
            .filter(move |record| record.bytes & bytes != 0 && !record.is_of_same(&own))
    }

    fn each(&mut self) -> &mut [Cell] {
        if let Cells::Same(cell) = &mut self.cells {
            let cells = vec![std::mem::take(cell); CELLS];
            self.cells = Cells::Each(cells.into());
        }
        match &mut self.cells {
            Cells::Each(cells) => cells,
            Cells::Same(_) => &mut [],
        }
    }
}

/// Where an address is in its page.
fn offset(address: usize) -> usize {
    address % PAGE
}

/// The first byte that two accesses have in common, of the 8 at `address`.
pub(super) fn first(address: usize, common: u8) -> usize {
    address + common.trailing_zeros() as usize
}

fn note(
    cell: &mut Cell,
    record: Record,
    is_before: &impl Fn(&Record) -> bool,
    race: &mut impl FnMut(Record, u8),
) {
    if cell.last() == Some(&record) {
        return;
    }
    let mut at = 0;
    while at < cell.len() {
        let earlier = cell[at];
        if earlier.bytes & record.bytes == 0 {
            at += 1;
            continue;
        }
        let before = earlier.is_of_same(&record) || is_before(&earlier);
        if !before && earlier.excludes(&record) {
            race(earlier, earlier.bytes & record.bytes);
        }
        let is_enough = before && record.how.is_as_strict_as(earlier.how);
        let is_replaced = record.how.is_write() || (!earlier.how.is_write() && is_enough);
        if is_replaced {
            cell[at].bytes &= !record.bytes;
            if cell[at].bytes == 0 {
                cell.remove(at);
                continue;
            }
        }
        at += 1;
    }
    if cell.len() >= MOST {
        // An old read rather than a write.
        let victim = cell.iter().position(|old| !old.how.is_write()).unwrap_or(0);
        cell.remove(victim);
    }
    cell.push(record);
}

/// Calls `each` with the part of a range that is in each page.
pub(super) fn by_page(address: usize, bytes: usize, mut each: impl FnMut(usize, usize)) {
    let mut at = address;
    while at < address + bytes {
        let end = ((at / PAGE + 1) * PAGE).min(address + bytes);
        each(at, end - at);
        at = end;
    }
}

/// Forgets all about a range: its memory is new, or gone.
pub(in super::super) fn forget(address: usize, bytes: usize) {
    if !is_on() {
        return;
    }
    by_page(address, bytes, |at, bytes| {
        let mut held = hold(at);
        let pages = held.0.get_or_insert_default();
        if bytes == PAGE {
            pages.remove(&(at / PAGE));
        } else if let Some(page) = pages.get_mut(&(at / PAGE)) {
            let (from, to) = (offset(at), offset(at) + bytes);
            page.words.overwrite(at..at + bytes, None);
            for cell in &mut page.each()[from / GRANULE..to.div_ceil(GRANULE)] {
                cell.clear();
            }
        }
    });
}

/// A hash of small numbers that costs a multiplication.
#[derive(Default)]
pub(super) struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 29;
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::record::{How, Scope},
        *,
    };

    fn record(thread: u16, is_write: bool) -> Record {
        Record { block: 1, stream: 1, stamp: 1, thread, how: How::plain(is_write), ..Record::default() }
    }

    fn races(page: &mut Page, address: usize, bytes: usize, record: Record, known: &[u16]) -> Vec<u16> {
        let mut found = Vec::new();
        let is_before = |earlier: &Record| known.contains(&earlier.thread);
        page.access(address, bytes, record, is_before, |earlier, _, _| found.push(earlier.thread));
        found
    }

    #[test]
    fn only_accesses_to_the_same_bytes_race() {
        let mut page = Page::default();
        assert!(races(&mut page, 0x1002, 2, record(1, true), &[]).is_empty());
        assert!(races(&mut page, 0x1000, 2, record(2, true), &[]).is_empty());
        assert!(races(&mut page, 0x1004, 12, record(3, true), &[]).is_empty());
        assert_eq!(races(&mut page, 0x1003, 1, record(4, false), &[]), [1]);
        assert_eq!(races(&mut page, 0x1000, 16, record(5, true), &[1, 2, 4]), [3, 3]);
    }

    #[test]
    fn reads_race_with_later_writes_and_not_with_each_other() {
        let mut page = Page::default();
        for thread in 1..=3 {
            assert!(races(&mut page, 0x2000, 8, record(thread, false), &[]).is_empty());
        }
        assert_eq!(races(&mut page, 0x2000, 8, record(9, true), &[1, 3]), [2]);
        assert!(
            races(&mut page, 0x2000, 8, record(4, false), &[9]).is_empty(),
            "the write replaced the reads"
        );
    }

    #[test]
    fn a_read_in_one_size_does_not_stand_for_one_in_another() {
        let strong = |thread, is_write, bytes| Record {
            how: How::strong(is_write, Scope::System).of_bytes(bytes),
            ..record(thread, is_write)
        };
        for (first, second) in [(4, 8), (8, 4)] {
            let mut page = Page::default();
            assert!(races(&mut page, 0x2000, first, strong(1, false, first), &[]).is_empty());
            assert!(races(&mut page, 0x2000, second, strong(2, false, second), &[1]).is_empty());
            assert_eq!(races(&mut page, 0x2000, second, strong(3, true, second), &[]), [1]);
        }
    }

    #[test]
    fn whole_pages_are_kept_as_one_and_split_when_needed() {
        let mut page = Page::default();
        assert!(races(&mut page, 0x3000, PAGE, record(1, true), &[]).is_empty());
        assert!(matches!(page.cells, Cells::Same(_)));
        assert_eq!(races(&mut page, 0x3008, 4, record(2, false), &[]), [1]);
        assert_eq!(races(&mut page, 0x3000, PAGE, record(3, true), &[1]), [2]);
        assert!(matches!(page.cells, Cells::Same(_)));
    }
}
