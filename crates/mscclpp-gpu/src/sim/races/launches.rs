//! The launches that ran, and which blocks are theirs.

use std::{
    collections::BTreeMap,
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
use crate::LaunchConfig;

/// A launch of a kernel.
pub(in super::super) struct Launch {
    pub(super) kernel: String,
    pub(super) config: LaunchConfig,
    /// The operation of a stream that it is.
    pub(super) stream: u32,
    pub(super) sequence: u32,
    first_block: u32,
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
    pub(super) fn begin(
        kernel: &str,
        config: LaunchConfig,
        (stream, sequence): (u32, u32),
        start: Arc<Clock>,
    ) -> Arc<Self> {
        // 0 is no block.
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let blocks = config.grid.iter().product::<u32>();
        let first_block = NEXT.fetch_add(blocks, Ordering::Relaxed);
        let kernel = kernel.to_owned();
        let (found, problems) = (Mutex::default(), Mutex::default());
        let (end, running) = (Mutex::new(Arc::clone(&start)), Running::begin());
        let launch = Arc::new(Self {
            kernel,
            config,
            stream,
            sequence,
            first_block,
            running,
            start,
            end,
            found,
            problems,
        });
        LAUNCHES.lock().insert(first_block, Arc::clone(&launch));
        launch
    }

    /// The number of the block with this place in the grid.
    pub(super) fn block(&self, [x, y, z]: [u32; 3]) -> u32 {
        let [width, height, _] = self.config.grid;
        self.first_block + (z * height + y) * width + x
    }

    /// Its device, and which of its stream's operations it is.
    pub(in super::super) fn place_in_stream(&self) -> (u32, u32) {
        (self.device(), self.sequence)
    }

    /// Whether the block is one of its own.
    pub(super) fn has_block(&self, block: u32) -> bool {
        let blocks = self.config.grid.iter().product::<u32>();
        block.checked_sub(self.first_block).is_some_and(|number| number < blocks)
    }

    pub(super) fn device(&self) -> u32 {
        self.stream >> DEVICE_SHIFT
    }

    /// The place of a block in the grid, and of a thread in it.
    pub(super) fn place(&self, block: u32, number: usize) -> String {
        let index = |number: u32, [x, y, _]: [u32; 3]| [number % x, number / x % y, number / x / y];
        let block = index(block - self.first_block, self.config.grid);
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

    /// One of its threads has found a race.
    pub(super) fn found(&self, found: Found) {
        self.found.lock().push(found);
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
