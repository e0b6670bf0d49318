//! Words that carry order: what was released to each, for those who acquire it.
//!
//! A word whose value nobody here has written was written by somebody whom the detector does not see: another process, an
//! adapter, a thread of the host through a reference. Who acquires it may have learned anything. So everything recorded until
//! then counts as known to it: records have a stamp, which moves on at such a moment.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use super::{
    clock::Clock,
    record::{Record, Scope},
};

/// What a store released.
#[derive(Clone)]
pub(super) struct Release {
    /// What its thread knew.
    pub(super) clock: Arc<Clock>,
    /// The store, with the scope at which it releases.
    pub(super) by: Record,
}

/// A word that was released to, or acquired.
#[derive(Default)]
pub(super) struct Word {
    /// By the stores since the last one that began anew: each addition to a word passes on what was there.
    pub(super) releases: Vec<Release>,
    /// What the last access found or left there, if it was an atomic one.
    pub(super) value: Option<u64>,
    /// A packet that nobody had read, and the one that took its place.
    pub(super) lost: Option<(Record, Record)>,
}

/// More releases of one word than this are joined.
const MOST: usize = 8;

impl Word {
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
        let mut word = Word::default();
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
    fn a_plain_store_keeps_what_its_own_thread_released() {
        let mut word = Word::default();
        word.release(release(1, Scope::System));
        word.release(release(2, Scope::System));
        word.begin_anew(&release(2, Scope::System).by);
        assert_eq!(word.releases.iter().map(|release| release.by.thread).collect::<Vec<_>>(), [2]);
    }
}
