//! The functions that kernels call. Each call comes from the coroutine that runs.

use std::{
    ffi::{CStr, c_char},
    sync::atomic::Ordering,
};

use corosensei::Yielder;

use super::{
    super::{
        abi::{Range, Runtime, STACK_BYTES, Thread},
        races::CALLS,
        ranges,
    },
    state::{Block, Turn},
};

/// The state that a thread's callbacks need, on the stack of its coroutine's first function.
pub(super) struct CallContext {
    pub(super) block: *mut Block<'static>,
    pub(super) yielder: *const Yielder<(), Turn>,
    pub(super) number: usize,
}

pub(super) static RUNTIME: Runtime =
    Runtime { pause, give_way, block_barrier, warp_barrier, find_range, trap, races: &CALLS };

/// Returns the context of the calling thread.
///
/// # Safety
/// Called by the running coroutine, with its own thread.
unsafe fn context<'a>(thread: *mut Thread) -> &'a CallContext {
    // SAFETY: set when the coroutine began, and alive as long as that (the caller's promise).
    unsafe { &*(*thread).context.cast() }
}

/// Ends the turn of the thread that runs, whose context this is, and returns at its next one.
fn suspend(context: &CallContext, turn: Turn) {
    // SAFETY: the yielder lives as long as the coroutine, which is running: nobody else has its context.
    unsafe { (*context.yielder).suspend(turn) };
}

unsafe extern "C" fn pause(thread: *mut Thread) {
    // SAFETY: called by the running coroutine.
    unsafe { give_up(thread, Turn::Pause) };
}

unsafe extern "C" fn give_way(thread: *mut Thread) {
    // SAFETY: called by the running coroutine.
    unsafe { give_up(thread, Turn::GiveWay) };
}

/// Ends the thread's turn, though it could go on.
///
/// # Safety
/// Called by the running coroutine, with its own thread.
unsafe fn give_up(thread: *mut Thread, turn: Turn) {
    // SAFETY: the caller's promise.
    let context = unsafe { context(thread) };
    {
        // SAFETY: invariant 1; the reference ends before the coroutine is suspended.
        let block = unsafe { &mut *context.block };
        if let Some(races) = &mut block.races {
            races.gives_way(context.number, false);
        }
    }
    suspend(context, turn);
}

unsafe extern "C" fn block_barrier(thread: *mut Thread, value: u32) -> u64 {
    // SAFETY: called by the running coroutine.
    unsafe { barrier(thread, |block, number| block.wait_for_block(number, value != 0)) }
}

unsafe extern "C" fn warp_barrier(thread: *mut Thread, mask: u32) -> u32 {
    // SAFETY: called by the running coroutine.
    unsafe { barrier(thread, |block, number| block.wait_for_warp(number, mask)) as u32 }
}

/// Makes the thread wait at a barrier, to which `come` brings it, and returns its answer.
///
/// # Safety
/// Called by the running coroutine, with its own thread.
unsafe fn barrier(thread: *mut Thread, come: impl FnOnce(&mut Block<'_>, usize)) -> u64 {
    // SAFETY: the caller's promise.
    let context = unsafe { context(thread) };
    // SAFETY: invariant 1; the reference ends before the coroutine is suspended.
    come(unsafe { &mut *context.block }, context.number);
    suspend(context, Turn::Barrier);
    // SAFETY: invariant 1.
    unsafe { (&(*context.block).threads)[context.number].answer }
}

unsafe extern "C" fn find_range(thread: *mut Thread, address: usize, bytes: u64, is_store: u32) {
    let kind = if is_store == 0 { "reading" } else { "writing" };
    // SAFETY: called by the running coroutine; invariant 1.
    let work = unsafe { (*context(thread).block).work };
    let epoch = ranges::epoch().load(Ordering::Acquire);
    let stack = || {
        let own = thread as usize;
        (own..own + STACK_BYTES).contains(&address).then_some((own, STACK_BYTES as u64))
    };
    let of_module = || work.library.range(address, is_store != 0, work.config.shared_bytes);
    let found = ranges::at(address).or_else(stack).or_else(of_module);
    let problem = match found {
        _ if !(address as u64).is_multiple_of(bytes) => {
            format!("{kind} {bytes} bytes at {address:#x}, which is no multiple of {bytes}")
        }
        Some((begin, size)) if (address - begin) as u64 + bytes <= size => {
            // SAFETY: the running thread's own.
            let known = unsafe { &mut (*thread).known[is_store as usize] };
            *known = [Range { begin, bytes: size, epoch }, known[0]];
            return;
        }
        Some((begin, size)) => format!(
            "{kind} {bytes} bytes at {address:#x}, offset {} of the memory at {begin:#x}, which has {size} bytes",
            address - begin
        ),
        None => format!(
            "{kind} {bytes} bytes at {address:#x}, which is not memory of a device{}",
            ranges::around(address)
        ),
    };
    // SAFETY: called by the running coroutine.
    unsafe { fail(thread, problem) };
}

unsafe extern "C" fn trap(thread: *mut Thread, message: *const c_char) {
    // SAFETY: kernels pass a literal.
    let message = unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned();
    // SAFETY: called by the running coroutine.
    unsafe { fail(thread, message) };
}

/// Fails the kernel in the name of the running thread, which has no further turn.
///
/// # Safety
/// Called by the running coroutine, with its own thread.
pub(super) unsafe fn fail(thread: *mut Thread, problem: String) {
    // SAFETY: the caller's promise.
    let context = unsafe { context(thread) };
    {
        // SAFETY: the same as in `barrier`.
        let block = unsafe { &mut *context.block };
        block.failure = Some(format!("{}: {problem}", block.place(context.number)));
    }
    // No value is left to be dropped (invariant 2).
    drop(problem);
    loop {
        suspend(context, Turn::Failed);
    }
}
