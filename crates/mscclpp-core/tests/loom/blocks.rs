//! Models of the barrier and of the semaphore between blocks.

use std::sync::{Arc, atomic::Ordering};

use loom::{cell::UnsafeCell, sync::atomic::AtomicU32, thread};
use mscclpp_core::protocol::SharedWord;

use super::{
    Status, Word32, Word64, backoff,
    kernels::{DeviceSemaphore, DeviceSyncer},
    model,
};

/// Blocks' shared words, and data that the blocks leave for each other.
struct Grid {
    syncer: DeviceSyncer<Word64>,
    semaphore: DeviceSemaphore<Word32>,
    status: Status,
    data: [UnsafeCell<u32>; 2],
}

// SAFETY: the data is in checked cells: an access that is not ordered fails the model, which is what is tested.
unsafe impl Sync for Grid {}
// SAFETY: as above.
unsafe impl Send for Grid {}

impl Grid {
    fn new(weakened: bool) -> Arc<Self> {
        Arc::new(Self {
            syncer: DeviceSyncer::over(Word64::new(weakened)),
            semaphore: DeviceSemaphore::over(Word32(AtomicU32::new(0))),
            status: Status::new(),
            data: [UnsafeCell::new(0), UnsafeCell::new(0)],
        })
    }

    fn sync(&self, n_blocks: u32, max_spins: i64) -> bool {
        self.syncer.sync(n_blocks, max_spins, &self.status.words(), backoff())
    }

    fn add(&self, i: usize) {
        // SAFETY: loom checks that nothing else accesses it meanwhile.
        self.data[i].with_mut(|data| unsafe { *data += 1 });
    }

    fn value(&self, i: usize) -> u32 {
        // SAFETY: loom checks that nothing writes it meanwhile.
        self.data[i].with(|data| unsafe { *data })
    }

    /// Runs block `i` of two: it writes its part, meets the other at the barrier, reads the other's part, and so on.
    fn play(&self, i: usize) {
        for round in 1..=2 {
            self.add(i);
            assert!(self.sync(2, -1));
            assert_eq!(self.value(1 - i), round);
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
            grid.add(0);
            grid.semaphore.release();
        };
        let other = grid.clone();
        let block = thread::spawn(move || act(&other));
        act(&grid);
        block.join().unwrap();
        assert_eq!(grid.value(0), 2);
        assert_eq!(grid.status.0[1].load(Ordering::Relaxed), 0);
    });
}
