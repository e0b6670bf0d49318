//! Schedules of kernels that are made by a seed (`MSCCLPP_SIM_SCHEDULE`).
//!
//! In each round the warps of a block come in another order, and some of them not at all; turns end early; blocks pause, and
//! one block at a time has a round (`turns.rs`). The decisions for a block depend on the seed, the kernel, the launch and the
//! block alone, so that a seed makes the same decisions again.
//!
//! # Invariants
//! 1. The lanes of a warp keep their order in a round, and a turn directly after a barrier is whole: see `block.rs`.
//! 2. Under all decisions each thread has a turn again and again.

use std::sync::OnceLock;

use super::abi::WARP;

/// Returns the seed, if schedules are to be made. Read once; a malformed value counts as none here, and is an error where
/// devices are opened.
pub(super) fn seed() -> Option<u64> {
    static SEED: OnceLock<Option<u64>> = OnceLock::new();
    *SEED.get_or_init(|| crate::env::sim_schedule().unwrap_or(None))
}

/// Adds the seed that made the schedule to a message, if there is one.
pub(super) fn with_seed(message: String) -> String {
    match seed() {
        Some(seed) if !message.contains("MSCCLPP_SIM_SCHEDULE=") => {
            format!("{message}\n(with MSCCLPP_SIM_SCHEDULE={seed})")
        }
        _ => message,
    }
}

/// Random numbers from a seed (splitmix64).
#[derive(Clone)]
pub(super) struct Random(u64);

impl Random {
    /// Makes the numbers of a block, by its number in its grid, of the launch with this place in a stream.
    pub(super) fn new(seed: u64, kernel: &str, place: (u32, u32), block: u64) -> Self {
        let mut random = Self(seed);
        let place = u64::from(place.0) << 32 | u64::from(place.1);
        for word in kernel.bytes().map(u64::from).chain([place, block]) {
            random.0 = random.next() ^ word;
        }
        random
    }

    /// Makes an independent sequence of numbers.
    pub(super) fn split(&mut self) -> Self {
        Self(self.next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns a number less than `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Returns true once in so many times on average.
    pub(super) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// The turns of threads, and their lengths.
pub(super) struct Schedule {
    random: Random,
    order: Vec<usize>,
    /// The number of rounds since a thread did something other than waiting.
    waited: u32,
}

impl Schedule {
    pub(super) fn new(random: Random) -> Self {
        Self { random, order: Vec::new(), waited: 0 }
    }

    /// Returns how many rounds the block has in its next turn, unless it waits before: each turn takes a change of
    /// threads.
    pub(super) fn rounds(&mut self) -> u64 {
        1 << self.random.below(6)
    }

    /// Returns the time that a turn took, while other blocks have theirs: sometimes a long one, which is a pause. The
    /// time of a block that waits grows.
    pub(super) fn cost(&mut self) -> u64 {
        let pause = if self.random.once_in(32) { self.random.below(256) } else { 0 };
        ((1 + self.random.below(8)) << self.waited.min(4)) + pause
    }

    /// Notes the result of a round: whether all threads that had a turn waited.
    pub(super) fn was(&mut self, waiting: bool) {
        self.waited = if waiting { self.waited + 1 } else { 0 };
    }

    /// Returns the threads that have a turn in the next round among so many, in their order.
    pub(super) fn round(&mut self, threads: usize) -> Vec<usize> {
        let warps = threads.div_ceil(WARP);
        self.order.clear();
        self.order.extend(0..warps);
        for at in (1..warps).rev() {
            self.order.swap(at, self.random.below(at as u64 + 1) as usize);
        }
        let first = self.order[0];
        let random = &mut self.random;
        // At least one warp stays.
        self.order.retain(|warp| *warp == first || !random.once_in(4));
        self.order.iter().flat_map(|warp| warp * WARP..threads.min((warp + 1) * WARP)).collect()
    }

    /// Returns the branches of a turn, which may end early.
    pub(super) fn steps(&mut self) -> i64 {
        1 << self.random.below(13)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_rounds_again_and_another_one_others() {
        let rounds = |seed| {
            let mut schedule = Schedule::new(Random::new(seed, "k", (1, 2), 3));
            (0..20).map(|_| (schedule.round(100), schedule.steps())).collect::<Vec<_>>()
        };
        assert_eq!(rounds(7), rounds(7));
        assert_ne!(rounds(7), rounds(8));
    }

    #[test]
    fn lanes_keep_their_order_and_each_warp_has_a_turn() {
        let mut schedule = Schedule::new(Random::new(1, "k", (0, 0), 0));
        let mut turns = [0; 4];
        for _ in 0..200 {
            let round = schedule.round(100);
            assert!(!round.is_empty());
            for warp in round.chunk_by(|a, b| a / WARP == b / WARP) {
                let first = warp[0] / WARP * WARP;
                assert!(warp.iter().copied().eq(first..(first + WARP).min(100)), "{warp:?}");
                turns[warp[0] / WARP] += 1;
            }
        }
        assert!(turns.iter().all(|turns| *turns > 50), "{turns:?}");
    }
}
