//! Running a grid: one thread per block (invariant 4).

use std::{
    any::Any,
    cell::RefCell,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use super::{HostBlock, HostKernel, module::HostModule};
use crate::{Error, KernelArgs, LaunchConfig, Result};

/// How many blocks of one launch the Host platform runs at once. Those of a larger grid start as earlier ones end, in
/// the order of their index, as on a GPU that cannot hold them all.
pub const MAX_RESIDENT_BLOCKS: u64 = 1024;

// What CUDA allows, on all of its devices of today: what runs here is to run there.
const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
const MAX_THREADS: u32 = 1024;
const MAX_SHARED_BYTES: u32 = 227 * 1024;

/// One launch, arguments included.
pub(super) struct Launch {
    kernel: HostKernel,
    module: Arc<HostModule>,
    config: LaunchConfig,
    args: KernelArgs,
}

impl Launch {
    /// # Safety
    /// See [`crate::Kernel::launch`]; the promise covers every run.
    pub(super) unsafe fn new(
        kernel: HostKernel,
        module: Arc<HostModule>,
        config: LaunchConfig,
        args: KernelArgs,
    ) -> Result<Self> {
        check(kernel.name, &config)?;
        Ok(Self { kernel, module, config, args })
    }

    /// Runs all blocks and returns when they are done: their threads start after, and end before, anything else that
    /// the calling thread does.
    pub(super) fn run(&self) -> Result<()> {
        let [x, y, z] = self.config.grid.map(u64::from);
        // At most 2^31 * 2^16 * 2^16: `check`.
        let blocks = x * y * z;
        let next = AtomicU64::new(0);
        let failure: Arc<Failure> = Arc::default();
        let run_blocks = || {
            let _entered = Entered::new(&failure);
            // Only the number matters: what the blocks work on was there before their threads.
            while failure.get().is_none()
                && let index = next.fetch_add(1, Ordering::Relaxed)
                && index < blocks
            {
                if let Err(error) = self.run_block(index) {
                    let _only_the_first_counts = failure.set(error);
                }
            }
        };
        // Blocks wait for each other: either all threads can be had, or none starts.
        let all_there = OnceLock::new();
        thread::scope(|scope| {
            for n in 1..blocks.min(MAX_RESIDENT_BLOCKS) {
                let started =
                    thread::Builder::new().name("mscclpp-host-block".to_owned()).spawn_scoped(scope, || {
                        if *all_there.wait() {
                            run_blocks();
                        }
                    });
                if let Err(e) = started {
                    let _ = all_there.set(false);
                    return Err(self.failed(format_args!("no thread for block {n} of {blocks}: {e}")));
                }
            }
            let _ = all_there.set(true);
            run_blocks();
            Ok(())
        })?;
        failure.get().cloned().map_or(Ok(()), Err)
    }

    fn run_block(&self, index: u64) -> Result<()> {
        let [x, y, _] = self.config.grid.map(u64::from);
        let index = [index % x, index / x % y, index / x / y].map(|i| i as u32);
        let block = HostBlock::new(self.config, index, &self.args, &self.module);
        // A twin that panics may leave the device memory it worked on half done, nothing else: nothing of this
        // library is seen by it but `block`, which ends here.
        let run = AssertUnwindSafe(|| {
            // SAFETY: the promise of `Launch::new`: these are the kernel's arguments, and what they point to is valid.
            unsafe { (self.kernel.run)(&block) }
        });
        catch_unwind(run).map_err(|panic| {
            self.failed(format_args!("block {index:?} panicked: {}", panic_message(&*panic)))
        })
    }

    fn failed(&self, why: std::fmt::Arguments<'_>) -> Error {
        Error::KernelFailed { kernel: self.kernel.name.to_owned(), message: why.to_string() }
    }
}

/// The first failure of a launch.
type Failure = OnceLock<Error>;

thread_local! {
    /// That of the launch whose block this thread runs.
    static LAUNCH: RefCell<Option<Arc<Failure>>> = const { RefCell::new(None) };
}

/// The calling thread runs blocks until this is dropped.
struct Entered;

impl Entered {
    fn new(failure: &Arc<Failure>) -> Self {
        LAUNCH.set(Some(Arc::clone(failure)));
        Self
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        LAUNCH.set(None);
    }
}

/// In a host twin, ends the block if another one of its launch has failed, as a trap ends a whole kernel of a GPU:
/// what this block waits for may never come.
pub(super) fn end_with_launch() {
    let failed = LAUNCH.with_borrow(|launch| launch.as_ref().is_some_and(|failure| failure.get().is_some()));
    if failed {
        // Not a panic that is worth a message: the first failure is what is reported.
        resume_unwind(Box::new("another block of the launch failed"));
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        _ => "with a value that is no text",
    }
}

fn check(kernel: &str, config: &LaunchConfig) -> Result<()> {
    let LaunchConfig { grid, block, shared_bytes } = *config;
    let refused = |why: String| Err(Error::InvalidArgument(format!("launch of {kernel}: {why}")));
    if (0..3).any(|i| !(1..=MAX_GRID[i]).contains(&grid[i])) {
        return refused(format!("a grid of {grid:?} blocks; each must be 1 to {MAX_GRID:?}"));
    }
    let threads = block.iter().fold(1, |n: u32, dim| n.saturating_mul(*dim));
    if (0..3).any(|i| !(1..=MAX_BLOCK[i]).contains(&block[i])) || threads > MAX_THREADS {
        return refused(format!(
            "blocks of {block:?} threads; each must be 1 to {MAX_BLOCK:?}, all {MAX_THREADS} at most"
        ));
    }
    if shared_bytes > MAX_SHARED_BYTES {
        return refused(format!("{shared_bytes} bytes of shared memory; there are {MAX_SHARED_BYTES}"));
    }
    Ok(())
}
