//! The order of blocks, if a seed makes the schedule (`MSCCLPP_SIM_SCHEDULE`).
//!
//! Blocks run on threads of the system, in an arbitrary order. With a seed one block at a time has a turn, of all launches
//! that run: the one whose time is least. It does some rounds, and its time moves on by an amount that the seed decides. So
//! blocks that begin together meet in the same order each time. Those that begin later than the rest, when the host starts
//! them, join at the least time of the others.
//!
//! # Invariants
//! 1. A block that is listed here asks for its turn soon, or its launch is over. A block that waits longer than [`LONGEST`]
//!    goes on out of order.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

/// The time for which launches that begin at the same time are waited for, before the first of them runs.
const BEGINNING: Duration = Duration::from_millis(10);

/// The longest that a block waits for its turn.
const LONGEST: Duration = Duration::from_secs(10);

/// The interval at which a block that waits checks whether its launch is over.
const LOOK: Duration = Duration::from_millis(20);

/// The time of a block, and its identity: the device, the launch's place in its stream, its number, and the block's in
/// the launch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Key {
    time: u64,
    place: (u32, u32),
    launch: u64,
    block: u64,
}

struct State {
    /// Each block with the condition that wakes it.
    blocks: BTreeMap<Key, Arc<Condvar>>,
    is_running: bool,
    begins: Option<Instant>,
}

static STATE: Mutex<State> = Mutex::new(State { blocks: BTreeMap::new(), is_running: false, begins: None });

impl State {
    fn add(&mut self, mut key: Key) -> Key {
        match self.blocks.keys().next() {
            Some(first) => key.time = first.time,
            None => self.begins = Some(Instant::now() + BEGINNING),
        }
        self.blocks.insert(key, Arc::default());
        key
    }

    fn remove(&mut self, key: &Key) {
        if self.blocks.remove(key).is_some() {
            self.wake_first();
        }
    }

    fn wake_first(&self) {
        if let Some(wakes) = self.blocks.values().next() {
            wakes.notify_one();
        }
    }
}

/// The turns of the blocks of a launch.
pub(super) struct OfLaunch {
    first: Key,
    /// The keys of the blocks that are there from the beginning, each until it has begun.
    waiting: Mutex<Vec<Option<Key>>>,
}

/// Begins a launch, of which so many blocks can run at once.
pub(super) fn begin(place: (u32, u32), blocks: u64) -> OfLaunch {
    static LAUNCHES: AtomicU64 = AtomicU64::new(0);
    let first = Key { time: 0, place, launch: LAUNCHES.fetch_add(1, Ordering::Relaxed), block: 0 };
    let mut state = STATE.lock();
    let waiting = (0..blocks).map(|block| Some(state.add(Key { block, ..first }))).collect();
    OfLaunch { first, waiting: Mutex::new(waiting) }
}

impl OfLaunch {
    /// Returns the turns of one of its blocks.
    pub(super) fn block(&self, block: u64) -> Turns {
        let waiting = self.waiting.lock().get_mut(block as usize).and_then(Option::take);
        let key = waiting.unwrap_or_else(|| STATE.lock().add(Key { block, ..self.first }));
        Turns { key, is_running: false }
    }
}

impl Drop for OfLaunch {
    fn drop(&mut self) {
        let mut state = STATE.lock();
        self.waiting.lock().iter().flatten().for_each(|key| state.remove(key));
    }
}

/// The turns of a block, until it has ended.
pub(super) struct Turns {
    key: Key,
    is_running: bool,
}

impl Turns {
    /// Waits for the block's turn, which lasts until [`Self::give`]. Returns false when the launch is over.
    pub(super) fn take(&mut self, is_over: &dyn Fn() -> bool) -> bool {
        let start = Instant::now();
        let mut state = STATE.lock();
        let wakes = Arc::clone(state.blocks.entry(self.key).or_default());
        loop {
            if is_over() {
                return false;
            }
            let now = Instant::now();
            let begins = state.begins.filter(|begins| *begins > now);
            let is_first = state.blocks.keys().next() == Some(&self.key);
            if (is_first && !state.is_running && begins.is_none()) || now - start > LONGEST {
                break;
            }
            wakes.wait_for(&mut state, begins.map_or(LOOK, |begins| (begins - now).min(LOOK)));
        }
        (state.is_running, self.is_running) = (true, true);
        true
    }

    /// Ends the turn, which took so much time.
    pub(super) fn give(&mut self, time: u64) {
        let mut state = STATE.lock();
        if let Some(wakes) = state.blocks.remove(&self.key) {
            self.key.time += time;
            state.blocks.insert(self.key, wakes);
        }
        (state.is_running, self.is_running) = (false, false);
        state.wake_first();
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        let mut state = STATE.lock();
        if self.is_running {
            state.is_running = false;
        }
        state.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Runs three launches, whose blocks record when they have a turn.
    fn turns() -> Vec<(u32, u64)> {
        let seen = Mutex::new(Vec::new());
        let launches: Vec<OfLaunch> = (0..3).map(|device| begin((device, 1), 2)).collect();
        thread::scope(|scope| {
            for (device, launch) in launches.iter().enumerate().rev() {
                for block in 0..2 {
                    let seen = &seen;
                    scope.spawn(move || {
                        let mut turns = launch.block(block);
                        for n in 0..5 {
                            let cost = 1 + (device as u64 * 7 + block * 3 + n) % 5;
                            assert!(turns.take(&|| false));
                            seen.lock().push((device as u32, block));
                            thread::yield_now();
                            turns.give(cost);
                        }
                    });
                }
            }
        });
        seen.into_inner()
    }

    #[test]
    fn blocks_that_begin_together_have_their_turns_in_the_same_order_each_time() {
        let first = turns();
        assert_eq!(first.len(), 30);
        for _ in 0..5 {
            assert_eq!(turns(), first);
        }
        // A block that waits before others whose launch is over goes on; it waits for no turn itself.
        let (over, waits) = (begin((0, 1), 2), begin((1, 1), 1));
        let mut turns = over.block(1);
        assert!(!turns.take(&|| true));
        drop((turns, over));
        assert!(waits.block(0).take(&|| false));
    }
}
