//! Runs a grid: one thread per block (invariant 4).

use std::{
    ffi::c_void,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use super::{
    block,
    compiler::SHARED_BYTES,
    library::{Kernel, Library},
    races::{LaunchInOrder, Order},
    schedule::{self, Random},
    turns,
};
use crate::{Error, KernelArgs, LaunchConfig, Owner, Result};

/// The most blocks of one launch that run at once. In a larger grid, further blocks start as earlier ones end, in the
/// order of their index, as on a GPU that cannot hold them all.
pub(super) const MAX_RESIDENT_BLOCKS: u64 = 1024;

/// One launch, arguments included.
pub(super) struct Launch {
    library: Arc<Library>,
    /// The number of the kernel in the library.
    kernel: usize,
    config: LaunchConfig,
    args: KernelArgs,
}

impl Launch {
    /// # Safety
    /// See [`crate::Kernel::launch`]; the promise covers every run.
    pub(super) unsafe fn new(
        library: Arc<Library>,
        kernel: usize,
        config: LaunchConfig,
        args: KernelArgs,
    ) -> Result<Self> {
        let launch = Self { library, kernel, config, args };
        let shared = config.shared_bytes;
        if shared > SHARED_BYTES {
            let why = format!("{shared} bytes of shared memory; there are {SHARED_BYTES}");
            return Err(Error::invalid(format!("launch of {}: {why}", launch.kernel().name)));
        }
        Ok(launch)
    }

    /// Returns the objects that must live until the launch is complete.
    pub(super) fn owners(&self) -> &[Owner] {
        self.args.owners()
    }

    fn kernel(&self) -> &Kernel {
        &self.library.kernels()[self.kernel]
    }

    /// Runs all blocks and returns when they are done. Their threads start after all earlier work of the calling thread,
    /// and end before its later work.
    pub(super) fn run(&self, order: &Order) -> Result<()> {
        let races = order.launches(&self.kernel().name, self.config)?;
        let failed = self.run_blocks(races.as_ref()).err();
        if let Some(races) = &races {
            order.launch_ended(races);
        }
        let problems: Vec<_> = failed.into_iter().chain(races.and_then(|races| races.problem())).collect();
        if problems.is_empty() {
            return Ok(());
        }
        let message = schedule::with_seed(problems.join("\n"));
        Err(Error::KernelFailed { kernel: self.kernel().name.clone(), message })
    }

    fn run_blocks(&self, races: Option<&Arc<LaunchInOrder>>) -> Result<(), String> {
        let [x, y, z] = self.config.grid.map(u64::from);
        // The product is at most 2^31 * 2^16 * 2^16, by `check`.
        let blocks = x * y * z;
        let next = AtomicU64::new(0);
        let failure = OnceLock::new();
        let place = races.map_or((0, 0), |launch| launch.place_in_stream());
        let turns = schedule::seed().map(|_| turns::begin(place, blocks.min(MAX_RESIDENT_BLOCKS)));
        let run_blocks = || {
            // Only the number matters: the memory of the blocks was there before their threads.
            while failure.get().is_none()
                && let index = next.fetch_add(1, Ordering::Relaxed)
                && index < blocks
            {
                if let Err(message) = self.run_block(index, &failure, races, turns.as_ref()) {
                    let _only_the_first_counts = failure.set(message);
                }
            }
        };
        // Blocks wait for each other: either all threads can be started, or none starts.
        let all_there = OnceLock::new();
        thread::scope(|scope| {
            for n in 1..blocks.min(MAX_RESIDENT_BLOCKS) {
                let started =
                    thread::Builder::new().name("mscclpp-sim-block".to_owned()).spawn_scoped(scope, || {
                        if *all_there.wait() {
                            run_blocks();
                        }
                    });
                if let Err(e) = started {
                    let _ = all_there.set(false);
                    return Err(format!("no thread for block {n} of {blocks}: {e}"));
                }
            }
            let _ = all_there.set(true);
            run_blocks();
            Ok(())
        })?;
        failure.into_inner().map_or(Ok(()), Err)
    }

    fn run_block(
        &self,
        index: u64,
        failure: &OnceLock<String>,
        races: Option<&Arc<LaunchInOrder>>,
        turns: Option<&turns::OfLaunch>,
    ) -> Result<(), String> {
        let [x, y, _] = self.config.grid.map(u64::from);
        let arguments: Vec<*mut c_void> =
            self.args.values().iter().map(|value| value.as_ptr().cast_mut().cast()).collect();
        let schedule = schedule::seed().map(|seed| {
            let place = races.map_or((0, 0), |launch| launch.place_in_stream());
            Random::new(seed, &self.kernel().name, place, index)
        });
        let work = block::Work {
            call: self.kernel().call,
            arguments: &arguments,
            config: self.config,
            index: [index % x, index / x % y, index / x / y].map(|i| i as u32),
            library: &self.library,
            races,
            schedule,
            failure,
        };
        // SAFETY: the promise of `Launch::new`: these are the kernel's arguments, and what they point to is valid.
        unsafe { block::run(&work, turns.map(|turns| turns.block(index))) }
    }
}
