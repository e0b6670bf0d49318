//! The launches that ran, and which blocks are theirs.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use parking_lot::Mutex;

use super::{
    clock::{Clock, joined},
    found::Found,
    freed::Running,
    record::DEVICE_SHIFT,
};
use crate::{Error, LaunchConfig, Result};

/// A launch of a kernel.
pub(in super::super) struct Launch {
    pub(super) kernel: String,
    pub(super) config: LaunchConfig,
    /// The operation of a stream that it is.
    pub(super) stream: u32,
    pub(super) sequence: u32,
    /// The numbers of its blocks in this process.
    blocks: Range<u32>,
    running: Running,
    /// The clock of its stream when it began.
    pub(super) start: Arc<Clock>,
    /// The joined clocks of its threads when they ended.
    end: Mutex<Arc<Clock>>,
    /// The races that its threads have found and that have no text yet.
    pub(super) found: Mutex<Vec<Found>>,
    pub(super) problems: Mutex<Vec<String>>,
}

static LAUNCHES: Mutex<BTreeMap<u32, Arc<Launch>>> = Mutex::new(BTreeMap::new());

impl Launch {
    /// Begins a launch.
    ///
    /// # Errors
    /// Fails if there are not enough numbers left for its blocks.
    pub(super) fn begin(
        kernel: &str,
        config: LaunchConfig,
        (stream, sequence): (u32, u32),
        start: Arc<Clock>,
    ) -> Result<Arc<Self>> {
        // 0 is no block.
        static NEXT: AtomicU32 = AtomicU32::new(1);
        // The product is at most 2^63, by `LaunchConfig::check`.
        let blocks: u64 = config.grid.into_iter().map(u64::from).product();
        let end = |first: u32| u32::try_from(u64::from(first) + blocks).ok();
        let first = NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, end).map_err(|first| {
            let left = u32::MAX - first;
            let message =
                format!("the race detector has numbers for {left} more blocks, and the launch has {blocks}");
            Error::KernelFailed { kernel: kernel.to_owned(), message }
        })?;
        let launch = Arc::new(Self {
            kernel: kernel.to_owned(),
            config,
            stream,
            sequence,
            blocks: first..first + blocks as u32,
            running: Running::begin(),
            end: Mutex::new(Arc::clone(&start)),
            start,
            found: Mutex::default(),
            problems: Mutex::default(),
        });
        LAUNCHES.lock().insert(first, Arc::clone(&launch));
        Ok(launch)
    }

    /// The number of the block with this place in the grid.
    pub(super) fn block(&self, [x, y, z]: [u32; 3]) -> u32 {
        let [width, height, _] = self.config.grid;
        self.blocks.start + (z * height + y) * width + x
    }

    /// Its device, and which of its stream's operations it is.
    pub(in super::super) fn place_in_stream(&self) -> (u32, u32) {
        (self.device(), self.sequence)
    }

    /// Whether the block is one of its own.
    pub(super) fn has_block(&self, block: u32) -> bool {
        self.blocks.contains(&block)
    }

    pub(super) fn device(&self) -> u32 {
        self.stream >> DEVICE_SHIFT
    }

    /// The place of a block in the grid, and of a thread in it.
    pub(super) fn place(&self, block: u32, number: usize) -> String {
        let index = |number: u32, [x, y, _]: [u32; 3]| [number % x, number / x % y, number / x / y];
        let block = index(block - self.blocks.start, self.config.grid);
        format!("block {block:?}, thread {:?}", index(number as u32, self.config.block))
    }

    /// One of its threads has ended, and knew this.
    pub(super) fn learn(&self, clock: &Arc<Clock>) {
        let mut end = self.end.lock();
        *end = joined(&end, clock);
    }

    /// All its threads have ended: what they knew.
    pub(super) fn end(&self) -> Arc<Clock> {
        self.running.end();
        Arc::clone(&self.end.lock())
    }
}

/// Returns all launches.
pub(super) fn all() -> Vec<Arc<Launch>> {
    LAUNCHES.lock().values().cloned().collect()
}

/// The launch of a block.
pub(super) fn of_block(block: u32) -> Option<Arc<Launch>> {
    let launches = LAUNCHES.lock();
    launches.range(..=block).next_back().map(|(_, launch)| Arc::clone(launch))
}

/// When a clock is to be looked through for blocks of launches that have ended.
pub(super) struct Sweep {
    /// How many names it has by then.
    at: usize,
}

impl Sweep {
    const LEAST: usize = 64;

    pub(super) const fn new() -> Self {
        Self { at: Self::LEAST }
    }

    /// Removes the names of blocks from a clock with many names, if the clock knows that their launches have ended. If as
    /// many names are left, the next look comes when there are twice as many.
    pub(super) fn look(&mut self, clock: &mut Arc<Clock>) {
        if clock.len() <= self.at {
            return;
        }
        let launches = LAUNCHES.lock();
        Arc::make_mut(clock).forget_ended(|block| {
            launches.range(..=block).next_back().map(|(_, launch)| (launch.stream, launch.sequence))
        });
        self.at = Self::LEAST.max(2 * clock.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_has_a_number_for_each_of_its_blocks_or_is_refused() {
        let begin = |grid| {
            Launch::begin("k", LaunchConfig { grid, ..LaunchConfig::linear(1, 1) }, (0, 1), Arc::default())
        };
        for grid in [[70_000, 65_535, 1], [i32::MAX as u32, 65_535, 65_535]] {
            let Err(Error::KernelFailed { message, .. }) = begin(grid) else { panic!("{grid:?} has begun") };
            assert!(message.contains("more blocks"), "{message}");
        }
        let launches = [(); 2].map(|()| begin([3, 2, 2]).unwrap());
        let last = launches.each_ref().map(|launch| launch.block([2, 1, 1]));
        for (launch, other) in launches.iter().zip(launches.iter().rev()) {
            let of = last.map(|last| (launch.has_block(last), other.has_block(last)));
            assert!(of.contains(&(true, false)) && of.contains(&(false, true)), "{last:?}");
        }
        // Memory that other tests free is kept until then.
        launches.iter().for_each(|launch| drop(launch.end()));
    }
}
