//! The structs that compiled kernels and this library share: those of `cuda/sim/mscclpp_sim/runtime.hpp`, field by field.

use std::ffi::{c_char, c_void};

/// Size and alignment of a thread's stack, with its [`Thread`] at the lower end.
pub(super) const STACK_BYTES: usize = 128 << 10;

/// The number of threads in a warp.
pub(super) const WARP: usize = 32;

/// The functions of the library for kernels.
#[repr(C)]
pub(super) struct Runtime {
    pub(super) pause: unsafe extern "C" fn(*mut Thread),
    pub(super) give_way: unsafe extern "C" fn(*mut Thread),
    pub(super) block_barrier: unsafe extern "C" fn(*mut Thread, u32) -> u64,
    pub(super) warp_barrier: unsafe extern "C" fn(*mut Thread, u32) -> u32,
    pub(super) find_range: unsafe extern "C" fn(*mut Thread, usize, u64, u32),
    pub(super) trap: unsafe extern "C" fn(*mut Thread, *const c_char),
    pub(super) races: &'static Races,
}

/// The functions of the library for kernels that are compiled for the race detector.
#[repr(C)]
pub(super) struct Races {
    pub(super) access: unsafe extern "C" fn(*mut Thread, usize, usize, u64, u32),
    pub(super) atomic: unsafe extern "C" fn(*mut Thread, usize, usize, *const Atomic) -> u64,
    pub(super) fence: unsafe extern "C" fn(*mut Thread, u32),
    pub(super) enter: unsafe extern "C" fn(*mut Thread, usize),
    pub(super) leave: unsafe extern "C" fn(*mut Thread),
    pub(super) bulk: unsafe extern "C" fn(*mut Thread, usize, *const BulkCopy),
}

/// An atomic access.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Atomic {
    pub(super) operation: u32,
    pub(super) bytes: u32,
    pub(super) how: u32,
    pub(super) value: u64,
    pub(super) expected: u64,
}

/// A call of a bulk copy.
#[repr(C)]
pub(super) struct BulkCopy {
    pub(super) what: u32,
    pub(super) bytes: u64,
    pub(super) dst: usize,
    pub(super) src: usize,
    pub(super) barrier: usize,
}

/// The memory that contains an access.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Range {
    pub(super) begin: usize,
    pub(super) bytes: u64,
    pub(super) epoch: u64,
}

/// The values that the threads of a warp exchange, 16 bytes each.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Warp {
    pub(super) words: [[u64; 2]; WARP],
}

/// A thread of a kernel, as the kernel sees it, and after that the fields that only the library uses.
#[repr(C)]
pub(super) struct Thread {
    pub(super) runtime: *const Runtime,
    pub(super) warp: *mut Warp,
    pub(super) epoch: *const u64,
    pub(super) steps_left: i64,
    /// The last memories of loads and of stores, the latest one first.
    pub(super) known: [[Range; 2]; 2],
    pub(super) thread_index: [u32; 3],
    pub(super) block_index: [u32; 3],
    pub(super) block_size: [u32; 3],
    pub(super) grid_size: [u32; 3],
    pub(super) lane: u32,
    pub(super) threads_of_warp: u32,
    pub(super) access: u32,
    /// The thread's `CallContext` in `block/calls.rs`.
    pub(super) context: *const c_void,
    /// The race detector's state of the block (`races/block.rs`), if it is on, and the thread's number there.
    pub(super) races: *mut c_void,
    pub(super) number: usize,
    /// Fails the kernel in the name of this thread, which runs, and does not return.
    pub(super) fail: unsafe fn(*mut Self, String),
}

/// A kernel of a compiled library.
#[repr(C)]
pub(super) struct Kernel {
    pub(super) name: *const c_char,
    pub(super) call: unsafe extern "C" fn(*const *mut c_void),
    pub(super) parameters: u64,
    pub(super) parameter_bytes: *const u64,
    pub(super) parameter_alignments: *const u64,
}
