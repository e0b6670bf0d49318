//! Host twins of the kernels in `cuda/kernels` that tests use.
//!
//! # Safety
//! Each has the preconditions of its kernel: the launch's arguments are those of the kernel, channels are live, and
//! buffers are as large as they are said to be.

pub(crate) mod blocks;
pub(crate) mod copies;
pub(crate) mod packets;
pub(crate) mod ports;
pub(crate) mod semaphores;

use std::sync::atomic::{AtomicU32, AtomicU64};

use mscclpp::{DevicePtr, host::HostBlock};

/// # Safety
/// `at` is a word of device memory, here and below.
unsafe fn word32<'a>(at: DevicePtr) -> &'a AtomicU32 {
    // SAFETY: the caller's promise.
    unsafe { AtomicU32::from_ptr(at.as_mut_ptr()) }
}

unsafe fn word64<'a>(at: DevicePtr, index: u64) -> &'a AtomicU64 {
    // SAFETY: the caller's promise.
    unsafe { AtomicU64::from_ptr(at.add(8 * index).as_mut_ptr()) }
}

/// The word at `index` in that round: splitmix64's finalizer, as in the kernels.
pub(crate) fn word_of(seed: u64, round: u64, index: u64) -> u64 {
    let x = seed.wrapping_add(round << 32).wrapping_add(index);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The threads of this block by their number in the grid, and how many the grid has.
fn in_grid(block: &HostBlock<'_>) -> (impl Iterator<Item = u32> + Clone + use<>, u32) {
    let (of_block, blocks) = (block.block_dim()[0], block.grid_dim()[0]);
    let first = block.block_idx()[0] * of_block;
    (first..first + of_block, of_block * blocks)
}
