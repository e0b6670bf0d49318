use crate::{Error, Platform, Result};

/// The shape of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchConfig {
    /// The number of blocks in x, y and z.
    pub grid: [u32; 3],
    /// The number of threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
}

impl LaunchConfig {
    /// Makes a launch of `blocks` blocks of `threads` threads each, in one dimension.
    #[must_use]
    pub const fn linear(blocks: u32, threads: u32) -> Self {
        Self { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 0 }
    }

    /// Checks that devices of the platform can run it. A device may allow a kernel less.
    pub(crate) fn check(&self, kernel: &str, platform: Platform) -> Result<()> {
        let Self { grid, block, .. } = self;
        let most = if platform == Platform::Hip { [MAX_THREADS; 3] } else { MAX_BLOCK };
        let refused = |why: String| Err(Error::invalid(format!("launch of {kernel}: {why}")));
        if (0..3).any(|i| !(1..=MAX_GRID[i]).contains(&grid[i])) {
            return refused(format!("a grid of {grid:?} blocks; each must be 1 to {MAX_GRID:?}"));
        }
        let threads = block.iter().fold(1, |n: u32, dim| n.saturating_mul(*dim));
        if (0..3).any(|i| !(1..=most[i]).contains(&block[i])) || threads > MAX_THREADS {
            return refused(format!(
                "blocks of {block:?} threads; each must be 1 to {most:?}, all {MAX_THREADS} at most"
            ));
        }
        Ok(())
    }
}

// CUDA's limits, the same on all of its devices. AMD GPUs allow more threads in z.
const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
const MAX_THREADS: u32 = 1024;

/// A parameter of a kernel: its place among all of them, laid out as the members of a struct, and its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelParameter {
    /// The bytes from the start of the first parameter.
    pub offset: u64,
    /// The size in bytes.
    pub size: u64,
}
