//! Words that carry order: what was released to each, for those who acquire it.
//!
//! A word is an address and a size, as a memory location is in PTX: words that share only some of their bytes order nothing for
//! each other. A write to one of them is a change of the other all the same. The sizes of the host's words are not known, nor
//! those of streams and transports: what they have released is acquired with every word that has a byte of it.
//!
//! A word whose value nobody here has written was written by somebody whom the detector does not see: another process, an
//! adapter, a thread of the host through a reference. Who acquires it may have learned anything. So everything recorded until
//! then counts as known to it: records have a stamp, which moves on at such a moment.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use super::{
    clock::Clock,
    record::{Record, Scope},
};

/// The release of a store.
#[derive(Clone)]
pub(super) struct Release {
    /// The events that its thread knew.
    pub(super) clock: Arc<Clock>,
    /// The store, with the scope at which it releases.
    pub(super) by: Record,
}

/// Which word: its address, a multiple of its size, and its size, 8 bytes at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Location {
    pub(super) address: usize,
    pub(super) bytes: usize,
}

impl Location {
    pub(super) fn range(self) -> Range<usize> {
        self.address..self.address + self.bytes
    }

    /// Its bytes among the 8 that they are part of.
    pub(super) fn mask(self) -> u8 {
        self.mask_of(&self.range())
    }

    /// Its own part of a value that was read or written at an address, at which it is or in front of it.
    pub(super) fn part_of(self, value: u64, address: usize) -> u64 {
        (value >> (8 * (self.address - address))) & (!0 >> (64 - 8 * self.bytes))
    }

    /// Those of its bytes that are in the range, among the 8 that they are part of.
    fn mask_of(self, range: &Range<usize>) -> u8 {
        let base = self.address & !7;
        let (from, to) = (range.start.max(self.address), range.end.min(self.address + self.bytes));
        if from < to { (!0u8 >> (8 - (to - from))) << (from - base) } else { 0 }
    }
}

/// The words of a page that were released to, or acquired.
#[derive(Default)]
pub(super) struct SyncWords(BTreeMap<Location, Word>);

impl SyncWords {
    pub(super) fn get(&self, location: Location) -> Option<&Word> {
        self.0.get(&location)
    }

    pub(super) fn get_mut(&mut self, location: Location) -> Option<&mut Word> {
        self.0.get_mut(&location)
    }

    pub(super) fn get_or_insert(&mut self, location: Location) -> &mut Word {
        self.0.entry(location).or_insert_with(|| Word::of(location))
    }

    /// The word, to which somebody writes.
    pub(super) fn write(&mut self, location: Location) -> &mut Word {
        self.overwrite(location.range(), Some(location));
        self.get_or_insert(location)
    }

    /// The word and all that share bytes with it which nobody has overwritten.
    pub(super) fn that_overlap(&self, location: Location) -> impl Iterator<Item = (Location, &Word)> {
        let mask = location.mask();
        let words = self.0.range(near(&location.range()));
        words
            .filter(move |(at, word)| **at == location || word.bytes & mask != 0)
            .map(|(at, word)| (*at, word))
    }

    /// The releases by hosts, streams and transports to words that share bytes with this one.
    fn released_in_any_size(&self, location: Location) -> impl Iterator<Item = &Release> {
        let others = self.that_overlap(location).filter(move |(at, _)| *at != location);
        others.flat_map(|(_, word)| &word.releases).filter(|release| release.by.block == 0)
    }

    /// A kernel has written a value to the word, by an update of what was there or not, and released this with it.
    pub(super) fn leave(
        &mut self,
        location: Location,
        is_update: bool,
        by: &Record,
        releases: &[Release],
        value: u64,
    ) {
        // An update passes on what it has found, also what was released in any size.
        let found: Vec<Release> =
            self.released_in_any_size(location).filter(|_| is_update).cloned().collect();
        self.overwrite(location.range(), Some(location));
        if !is_update && let Some(word) = self.get_mut(location) {
            word.begin_anew(by);
        }
        if !releases.is_empty() || !found.is_empty() || self.get(location).is_some() {
            let word = self.get_or_insert(location);
            found.iter().chain(releases).for_each(|release| word.release(release.clone()));
            word.value = Some(value);
        }
    }

    /// Bytes are written: they are no longer those of the words that were there, but for the one that is written to.
    pub(super) fn overwrite(&mut self, range: Range<usize>, written: Option<Location>) {
        let mut is_one_gone = false;
        for (at, word) in self.0.range_mut(near(&range)) {
            let mask = at.mask_of(&range);
            if Some(*at) == written {
                word.bytes = at.mask();
            } else if mask != 0 {
                word.bytes &= !mask;
                word.value = None;
                is_one_gone |= word.bytes == 0;
            }
        }
        while is_one_gone {
            let gone = self.0.range(near(&range)).find(|(_, word)| word.bytes == 0).map(|(at, _)| *at);
            is_one_gone = gone.is_some_and(|at| self.0.remove(&at).is_some());
        }
    }
}

/// All words that may have a byte of the range, and some that have none.
fn near(range: &Range<usize>) -> Range<Location> {
    let [start, end] = [range.start & !7, range.end].map(|address| Location { address, bytes: 0 });
    start..end
}

/// A word that was released to, or acquired.
pub(super) struct Word {
    /// The releases of the stores since the last one that began anew: each addition to a word passes the earlier ones on.
    pub(super) releases: Vec<Release>,
    /// The value that the last access found or left there, if it was an atomic one.
    pub(super) value: Option<u64>,
    /// A packet that nobody had read, and the one that took its place.
    pub(super) lost: Option<(Record, Record)>,
    /// Those of its bytes, among the 8 that they are part of, that nobody has overwritten by an access of another size.
    bytes: u8,
}

/// More releases of one word than this are joined.
const MOST: usize = 8;

impl Word {
    fn of(location: Location) -> Self {
        Self { releases: Vec::new(), value: None, lost: None, bytes: location.mask() }
    }

    /// Adds what a store releases.
    pub(super) fn release(&mut self, release: Release) {
        let same = |old: &Release| old.by.key() == release.by.key() && old.by.stream == release.by.stream;
        self.releases.retain(|old| !same(old) || old.by.how.scope() > release.by.how.scope());
        self.releases.push(release);
        if self.releases.len() <= MOST {
            return;
        }
        // Those of one scope and device, between which no reader tells a difference.
        let alike = |a: &Record, b: &Record| {
            a.how.scope() == b.how.scope()
                && match a.how.scope() {
                    Scope::System => true,
                    Scope::Device => a.device() == b.device(),
                    Scope::Block => a.block == b.block,
                }
        };
        let mut joined: Vec<Release> = Vec::new();
        for release in self.releases.drain(..) {
            match joined.iter_mut().find(|there| alike(&there.by, &release.by)) {
                Some(there) => {
                    Arc::make_mut(&mut there.clock).join(&release.clock);
                    there.by = release.by;
                }
                None => joined.push(release),
            }
        }
        self.releases = joined;
    }

    /// A store that is no addition begins anew; what its own thread has released before, it still stands for.
    pub(super) fn begin_anew(&mut self, by: &Record) {
        self.releases.retain(|old| old.by.key() == by.key() && old.by.stream == by.stream);
    }
}

/// The stamp of what is recorded now.
static STAMP: AtomicU32 = AtomicU32::new(1);

pub(super) fn stamp() -> u32 {
    STAMP.load(Ordering::Relaxed)
}

/// The stamp of everything that was recorded until now; what comes later has a later one.
pub(super) fn everything_until_now() -> u32 {
    STAMP.fetch_add(1, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::{super::record::How, *};

    const FLAG: Location = Location { address: 0x1000, bytes: 4 };

    fn release(thread: u16, scope: Scope) -> Release {
        let mut clock = Clock::default();
        let by = Record {
            block: 1,
            stream: 1,
            stamp: 1,
            thread,
            how: How::strong(true, scope),
            ..Record::default()
        };
        clock.learn_thread(by.key(), u64::from(thread));
        Release { clock: Arc::new(clock), by }
    }

    #[test]
    fn many_releases_are_joined_and_none_is_lost() {
        let mut word = Word::of(FLAG);
        for thread in 1..100 {
            let scope = if thread % 2 == 0 { Scope::System } else { Scope::Device };
            word.release(release(thread, scope));
        }
        assert!(word.releases.len() <= MOST);
        for thread in 1..100 {
            let by = Record { clock: u64::from(thread), sequence: 1, ..release(thread, Scope::System).by };
            assert!(word.releases.iter().any(|release| release.clock.covers(&by)), "{thread}");
        }
    }

    #[test]
    fn a_write_takes_its_bytes_from_words_of_other_sizes_alone() {
        let mut words = SyncWords::default();
        let [whole, low, high] =
            [(0x1000, 8), (0x1000, 4), (0x1004, 4)].map(|(address, bytes)| Location { address, bytes });
        let behind = Location { address: 0x1008, bytes: 4 };
        for word in [whole, behind] {
            words.write(word).value = Some(7);
        }
        words.write(low).value = Some(1);
        assert_eq!(words.get(whole).map(|word| word.value), Some(None), "half of it is left");
        let overlapping =
            |words: &SyncWords, at| words.that_overlap(at).map(|(at, _)| at).collect::<Vec<_>>();
        assert_eq!(overlapping(&words, high), [whole]);
        assert_eq!(overlapping(&words, low), [low]);
        words.overwrite(0x1003..0x1007, None);
        assert!(words.get(low).is_some_and(|word| word.value.is_none()) && words.get(whole).is_some());
        words.overwrite(0x1000..0x1008, None);
        assert!(words.get(whole).is_none() && words.get(low).is_none());
        assert_eq!(words.get(behind).and_then(|word| word.value), Some(7));
    }

    #[test]
    fn a_plain_store_keeps_what_its_own_thread_released() {
        let mut word = Word::of(FLAG);
        word.release(release(1, Scope::System));
        word.release(release(2, Scope::System));
        word.begin_anew(&release(2, Scope::System).by);
        assert_eq!(word.releases.iter().map(|release| release.by.thread).collect::<Vec<_>>(), [2]);
    }
}
