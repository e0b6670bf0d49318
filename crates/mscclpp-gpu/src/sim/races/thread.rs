//! The events that the threads of a block know, and learn from barriers, words and fences.

use std::sync::Arc;

use super::{
    clock::{Clock, joined},
    launches::{Launch, Sweep},
    record::{How, Record, Scope},
    words::{Location, Release, everything_until_now, stamp},
};

/// Kinds of memory of which the asynchronous proxy has a view of its own.
#[derive(Clone, Copy)]
pub(super) enum Space {
    Global,
    Shared,
}

/// The events that a thread of a kernel knows.
pub(super) struct ThreadView {
    block: u32,
    stream: u32,
    sequence: u32,
    number: u16,
    /// How many barriers of the block it has passed, and how often it has released since.
    phase: u32,
    time: u32,
    /// The events that it knows, except its own.
    pub(super) clock: Arc<Clock>,
    /// The events before its bulk copies, in each memory.
    proxies: [Arc<Clock>; 2],
    /// The events that it knew at its last fence of each scope.
    fences: [Option<Arc<Clock>>; 3],
    /// The releases that it has read and not acquired: a later fence acquires them.
    pending: Vec<(Location, Release)>,
    pending_all: u32,
    sweep: Sweep,
    /// The functions that it is in: see [`super::sites`].
    pub(super) node: u32,
    /// Bulk copies so far, and how many of them each group ends with that it has not waited for.
    pub(super) copies: u32,
    pub(super) groups: Vec<u32>,
}

/// How many reads without acquire are remembered.
const PENDING: usize = 16;

impl ThreadView {
    pub(super) fn new(launch: &Launch, block: u32, number: usize, start: &Arc<Clock>) -> Self {
        Self {
            block,
            stream: launch.stream,
            sequence: launch.sequence,
            number: number as u16,
            phase: 0,
            time: 0,
            clock: Arc::clone(start),
            proxies: [Arc::clone(start), Arc::clone(start)],
            fences: [None, None, None],
            pending: Vec::new(),
            pending_all: 0,
            sweep: Sweep::new(),
            node: 0,
            copies: 0,
            groups: Vec::new(),
        }
    }

    /// Returns the record of the thread's current access.
    pub(super) fn record(&self, site: u32, how: How) -> Record {
        Record {
            clock: u64::from(self.phase) << 32 | u64::from(self.time),
            block: self.block,
            stream: self.stream,
            sequence: self.sequence,
            stamp: stamp(),
            site,
            thread: self.number,
            bytes: 0,
            how,
        }
    }

    /// Whether the access is ordered in front of what this thread does now.
    pub(super) fn is_behind(&self, earlier: &Record) -> bool {
        // Behind a barrier which that thread has reached later.
        let by_barrier = earlier.block == self.block && !earlier.is_async() && earlier.phase() < self.phase;
        by_barrier || self.clock.covers(earlier)
    }

    /// Whether an access of this thread may follow; `only_writes` says that it reads nothing.
    pub(super) fn may_do_behind(&self, only_writes: bool, earlier: &Record) -> bool {
        self.is_behind(earlier) || (only_writes && self.clock.lets_write(earlier))
    }

    /// Whether the access is this thread's own.
    pub(super) fn is(&self, other: &Record) -> bool {
        other.block == self.block && other.thread == self.number
    }

    /// Whether the access is ordered in front of a bulk copy that this thread starts now. A read need not be, by another way
    /// than what the thread knows: nothing that was read can change.
    pub(super) fn copy_is_behind(&self, space: Space, earlier: &Record) -> bool {
        let known = self.is_behind(earlier) || self.is(earlier);
        known
            && (earlier.is_async() || !earlier.how.is_write() || self.proxies[space as usize].covers(earlier))
    }

    /// Returns the events that the thread knows now, its own included. Its later accesses are not among them.
    pub(super) fn release(&mut self) -> Arc<Clock> {
        let mut clock = Clock::clone(&self.clock);
        let own = self.record(0, How::default());
        clock.learn_thread(own.key(), own.clock);
        self.time += 1;
        Arc::new(clock)
    }

    pub(super) fn learn(&mut self, clock: &Arc<Clock>) {
        self.clock = joined(&self.clock, clock);
        self.sweep.look(&mut self.clock);
    }

    /// Notes that it has read, acquiring it or not, a write of a launch that began after `start`.
    pub(super) fn learn_complete(&mut self, start: &Clock) {
        if !self.clock.knows_as_complete(start) {
            Arc::make_mut(&mut self.clock).learn_complete(start);
        }
    }

    /// Learns of everything that was recorded until now.
    pub(super) fn learn_everything(&mut self) {
        Arc::make_mut(&mut self.clock).all = everything_until_now();
    }

    /// Notes that the thread has read a word, and whether it acquires it.
    pub(super) fn see(&mut self, word: Location, release: &Release, acquires: bool) {
        if acquires {
            self.learn(&release.clock);
            return;
        }
        let is_new = |(_, there): &(Location, Release)| !Arc::ptr_eq(&there.clock, &release.clock);
        if !self.clock.includes(&release.clock) && self.pending.iter().all(is_new) {
            if self.pending.len() == PENDING {
                self.pending.remove(0);
            }
            self.pending.push((word, release.clone()));
        }
    }

    /// Notes that it has read, without acquiring it, a write that the detector does not see.
    pub(super) fn see_unknown(&mut self) {
        self.pending_all = everything_until_now();
    }

    /// Notes that the thread acquires a word, and with it the releases that it read there before.
    pub(super) fn acquire_earlier(&mut self, word: Location) {
        let (of_word, rest) = std::mem::take(&mut self.pending).into_iter().partition(|(at, _)| *at == word);
        self.pending = rest;
        let of_word: Vec<(Location, Release)> = of_word;
        of_word.iter().for_each(|(_, release)| self.learn(&release.clock));
    }

    /// A fence that acquires and releases.
    pub(super) fn fence(&mut self, scope: Scope) {
        let reader = self.record(0, How::strong(false, scope));
        for (word, release) in std::mem::take(&mut self.pending) {
            if reader.is_one_for(&release.by) {
                self.learn(&release.clock);
            } else {
                self.pending.push((word, release));
            }
        }
        if self.pending_all > self.clock.all {
            Arc::make_mut(&mut self.clock).all = self.pending_all;
        }
        let known = self.release();
        self.fences[..=scope as usize].iter_mut().for_each(|fence| *fence = Some(Arc::clone(&known)));
    }

    /// Returns the releases of a store at `scope` that does not release by itself, because of the fences before it.
    pub(super) fn released_by_fences(&self, by: &Record) -> Vec<Release> {
        const SCOPES: [Scope; 3] = [Scope::Block, Scope::Device, Scope::System];
        let fences =
            self.fences.iter().zip(SCOPES).filter_map(|(fence, scope)| Some((fence.as_ref()?, scope)));
        fences
            .map(|(clock, scope)| {
                let how = How::strong(true, scope.min(by.how.scope()));
                Release { clock: Arc::clone(clock), by: Record { how, ..*by } }
            })
            .collect()
    }

    /// The thread's bulk copies that follow are ordered behind all that it knows.
    pub(super) fn fence_proxy(&mut self, space: Space) {
        let known = self.release();
        let proxy = &mut self.proxies[space as usize];
        *proxy = joined(proxy, &known);
    }

    /// Whether what it has read without acquiring would have ordered the access.
    pub(super) fn would_have_known(&self, earlier: &Record) -> Option<&Release> {
        self.pending.iter().map(|(_, release)| release).find(|release| release.clock.covers(earlier))
    }
}

/// The events that the threads in `came` know together, of all memory and of their bulk copies; none without threads.
fn known_to_all(
    threads: &[ThreadView],
    came: impl Fn(usize) -> bool,
) -> Option<(Arc<Clock>, [Arc<Clock>; 2])> {
    let mut came = threads.iter().enumerate().filter(|(number, _)| came(*number)).map(|(_, thread)| thread);
    let first = came.next()?;
    Some(came.fold((Arc::clone(&first.clock), first.proxies.clone()), |(all, [global, shared]), thread| {
        let proxies = [joined(&global, &thread.proxies[0]), joined(&shared, &thread.proxies[1])];
        (joined(&all, &thread.clock), proxies)
    }))
}

/// The threads have all come to the block's barrier, and go on.
pub(super) fn meet_at_block_barrier(threads: &mut [ThreadView], came: impl Fn(usize) -> bool) {
    let Some((mut all, proxies)) = known_to_all(threads, &came) else { return };
    let those = || threads.iter().enumerate().filter(|(number, _)| came(*number));
    let phase = those().map(|(_, thread)| thread.phase).max().unwrap_or(0) + 1;
    Arc::make_mut(&mut all).learn_block(threads[0].block, phase);
    for (_, thread) in threads.iter_mut().enumerate().filter(|(number, _)| came(*number)) {
        thread.clock = Arc::clone(&all);
        thread.proxies.clone_from(&proxies);
        (thread.phase, thread.time) = (phase, 0);
    }
}

/// The threads of a warp in `came` have met.
pub(super) fn meet_at_warp_barrier(threads: &mut [ThreadView], came: impl Fn(usize) -> bool) {
    let Some((mut all, proxies)) = known_to_all(threads, &came) else { return };
    let those = threads.iter().enumerate().filter(|(lane, _)| came(*lane));
    let own = those.map(|(_, thread)| thread.record(0, How::default()));
    let own: Vec<_> = own.map(|record| (record.key(), record.clock)).collect();
    Arc::make_mut(&mut all).learn_threads(&own);
    for (_, thread) in threads.iter_mut().enumerate().filter(|(lane, _)| came(*lane)) {
        thread.clock = Arc::clone(&all);
        thread.proxies.clone_from(&proxies);
        thread.time += 1;
    }
}
