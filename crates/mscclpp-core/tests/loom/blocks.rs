//! Models of the barrier and of the semaphore between blocks.

use std::sync::{Arc, atomic::Ordering};

use loom::{sync::atomic::AtomicU32, thread};
use mscclpp_core::protocol::SharedWord;

use super::{
    Seen, Status, Word32, Word64, backoff,
    kernels::{DeviceSemaphore, DeviceSyncer},
    model,
};

/// Blocks' shared words, and data that the blocks leave for each other.
struct Grid {
    syncer: DeviceSyncer<Word64>,
    semaphore: DeviceSemaphore<Word32>,
    status: Status,
    data: [Seen; 2],
}

impl Grid {
    fn new(weakened: bool) -> Arc<Self> {
        Arc::new(Self {
            syncer: DeviceSyncer::over(Word64::new(weakened)),
            semaphore: DeviceSemaphore::over(Word32(AtomicU32::new(0))),
            status: Status::new(),
            data: Default::default(),
        })
    }

    fn sync(&self, n_blocks: u32, max_spins: i64) -> bool {
        self.syncer.sync(n_blocks, max_spins, &self.status.words(), backoff())
    }

    /// Runs block `i` of two: it writes its part, meets the other at the barrier, reads the other's part, and so on.
    fn play(&self, i: usize) {
        for round in 1..=2 {
            self.data[i].write();
            assert!(self.sync(2, -1));
            assert_eq!(self.data[1 - i].read(), round);
            assert!(self.sync(2, -1));
        }
    }
}

fn blocks_meet(weakened: bool) {
    model(Some(2), move || {
        let grid = Grid::new(weakened);
        let other = grid.clone();
        let block = thread::spawn(move || other.play(1));
        grid.play(0);
        block.join().unwrap();
    });
}

#[test]
fn behind_the_barrier_blocks_see_what_was_before_it() {
    blocks_meet(false);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn an_arrival_must_acquire_and_release() {
    blocks_meet(true);
}

#[test]
fn three_blocks_meet() {
    model(Some(1), || {
        let grid = Grid::new(false);
        let blocks: Vec<_> = (0..2)
            .map(|_| {
                let grid = grid.clone();
                thread::spawn(move || assert!(grid.sync(3, -1) && grid.sync(3, -1)))
            })
            .collect();
        assert!(grid.sync(3, -1) && grid.sync(3, -1));
        blocks.into_iter().for_each(|block| block.join().unwrap());
        assert!(!grid.sync(3, 1), "nobody else comes a third time");
    });
}

#[test]
fn one_turn_is_had_by_one_block_at_a_time() {
    model(Some(3), || {
        let grid = Grid::new(false);
        grid.semaphore.set(1);
        let act = |grid: &Grid| {
            assert!(grid.semaphore.acquire(-1, &grid.status.words(), backoff()));
            grid.data[0].write();
            grid.semaphore.release();
        };
        let other = grid.clone();
        let block = thread::spawn(move || act(&other));
        act(&grid);
        block.join().unwrap();
        assert_eq!(grid.data[0].read(), 2);
        assert_eq!(grid.status.0[1].load(Ordering::Relaxed), 0);
    });
}
