//! Runs one block: its threads are coroutines that take turns on the calling thread.
//!
//! # Invariants
//! 1. A block is accessed through one raw pointer, by [`take_turn`] and by the callbacks of the coroutine that it runs,
//!    all on one thread of the operating system. No reference into the block lives while a coroutine is resumed or
//!    suspended.
//! 2. Nothing on the stack of a kernel's thread needs dropping: device code has no destructors that matter, and the
//!    callbacks keep nothing while they are suspended. So a thread can be abandoned at any point.
//! 3. Threads take their turns in rounds, in the order of their numbers. Threads that a barrier releases go on in the
//!    next round, whichever came to it last; so they too go on in that order, each with all the branches of a turn. The
//!    device API relies on this where a warp of a GPU does something in one instruction.

mod barriers;
mod calls;
mod state;

use std::{thread, time::Duration};

use corosensei::Yielder;
use mscclpp_os::waiting::Backoff;

use super::{
    abi::{Range, Thread, WARP, Warp},
    races::RacesOfBlock,
    ranges,
    schedule::{Random, Schedule},
    stacks::Stacks,
    turns::Turns,
};
use calls::{CallContext, RUNTIME, fail};
pub(super) use state::Work;
use state::{Block, Body, ThreadState, Turn};

/// The branches in a thread's turn: enough that copies are hardly slowed down, and few for a loop that waits.
const STEPS_PER_TURN: i64 = 4096;

/// Runs the block to its end. If it has `turns`, it runs in these.
///
/// # Errors
/// The text of the failure.
///
/// # Safety
/// The arguments are those of the kernel, and what they point to is valid.
pub(super) unsafe fn run(work: &Work<'_>, mut turns: Option<Turns>) -> Result<(), String> {
    let threads = work.config.block.iter().product::<u32>() as usize;
    let stacks = Stacks::take(threads).map_err(|e| e.to_string())?;
    let mut random = work.schedule.clone();
    let of_races = random.as_mut().map(Random::split);
    let mut block = Block {
        work,
        stacks,
        threads: (0..threads).map(|_| ThreadState::default()).collect(),
        warps: vec![Warp { words: [[0; 2]; WARP] }; threads.div_ceil(WARP)],
        free_stacks: (0..threads).rev().collect(),
        live: threads,
        at_barrier: 0,
        round: 0,
        failure: None,
        // SAFETY: the block has not begun, so nobody uses its variables.
        races: work.races.map(|launch| unsafe {
            let shared = work.library.shared_variables(work.config.shared_bytes);
            Box::new(RacesOfBlock::new(launch, work.index, threads, shared, of_races))
        }),
        schedule: random.map(Schedule::new),
    };
    // SAFETY: the block lives, and is not used otherwise until this returns (invariant 1).
    let result = unsafe { run_threads(&raw mut block, turns.as_mut()) };
    if let Some(races) = &mut block.races {
        races.end();
    }
    for thread in &mut block.threads {
        if let Some(body) = &mut thread.body {
            // SAFETY: invariant 2.
            unsafe { body.force_reset() };
        }
    }
    block.threads.clear();
    block.stacks.give_back();
    result
}

/// # Safety
/// `block` lives and nobody else uses it.
unsafe fn run_threads(block: *mut Block<'_>, mut turns: Option<&mut Turns>) -> Result<(), String> {
    let mut idle = IDLE;
    // The rounds that are left of the block's turn, if it has turns.
    let mut rounds = 0;
    // SAFETY: the caller's promise, for each use of `block` here; no reference outlives its statement.
    unsafe {
        let (work, threads) = ((*block).work, (*block).threads.len());
        while (*block).live > 0 {
            if work.is_over() {
                return Ok(());
            }
            if let (Some(turns), Some(schedule), 0) = (&mut turns, &mut (*block).schedule, rounds) {
                rounds = schedule.rounds();
                if !turns.take(&|| work.is_over()) {
                    return Ok(());
                }
            }
            let (mut moved, mut had_turn) = (false, false);
            let round = (*block).schedule.as_mut().map(|schedule| schedule.round(threads));
            let numbers = round.as_ref().map_or(0..threads, |round| 0..round.len());
            // A warp that is left out of a round is not stuck.
            let mut can_run = round.is_some() && (0..threads).any(|number| (*block).has_turn(number));
            for at in numbers {
                let number = round.as_ref().map_or(at, |round| round[at]);
                if !(*block).has_turn(number) {
                    continue;
                }
                can_run = true;
                match take_turn(block, number)? {
                    Some(Turn::Pause) => {}
                    Some(Turn::GiveWay) => had_turn = true,
                    Some(Turn::Barrier) | None => moved = true,
                    Some(Turn::Failed) => return Err((*block).failure.take().unwrap_or_default()),
                }
            }
            if !can_run {
                return Err((*block).stuck());
            }
            (*block).round += 1;
            if let (Some(turns), Some(schedule)) = (&mut turns, &mut (*block).schedule) {
                let waits = !moved && !had_turn;
                schedule.was(waits);
                rounds = if waits { 0 } else { rounds - 1 };
                // The last work of the block is also done in its turn.
                if rounds == 0 && (*block).live > 0 {
                    turns.give(schedule.cost());
                }
            }
            if moved || round.is_some() {
                idle.reset();
            } else if had_turn {
                thread::yield_now();
            } else {
                idle.wait();
            }
        }
    }
    Ok(())
}

/// Runs one thread until it gives up its turn; `None` when it has ended.
///
/// # Safety
/// The same as for `run_threads`.
unsafe fn take_turn(block: *mut Block<'_>, number: usize) -> Result<Option<Turn>, String> {
    // SAFETY: the caller's promise; the reference ends with the call.
    let (mut body, stack) = unsafe { (*block).take_coroutine(block.cast(), number)? };
    // No reference to the block is left: the coroutine's callbacks use it now (invariant 1).
    let result = body.resume(());
    // SAFETY: the coroutine is suspended or has ended.
    Ok(unsafe { (*block).after_turn(number, stack, body, result) })
}

impl Block<'_> {
    /// Takes the thread's coroutine, with all the steps of a turn, and its stack.
    fn take_coroutine(&mut self, block: *mut Block<'static>, number: usize) -> Result<(Body, usize), String> {
        let thread = &mut self.threads[number];
        let (body, stack) = match thread.body.take() {
            Some(body) => (body, thread.stack),
            None => self.begin(block, number)?,
        };
        let is_whole = std::mem::take(&mut self.threads[number].is_behind_barrier);
        let schedule = self.schedule.as_mut().filter(|_| !is_whole);
        let steps = schedule.map_or(STEPS_PER_TURN, Schedule::steps);
        // SAFETY: the thread's own, on a stack that it has.
        unsafe { (*self.stacks.thread(stack)).steps_left = steps };
        Ok((body, stack))
    }

    /// Gives a thread a stack and its first function.
    fn begin(&mut self, block: *mut Block<'static>, number: usize) -> Result<(Body, usize), String> {
        let stack = self.free_stacks.pop().ok_or("a block has more threads than stacks")?;
        let lane = number % WARP;
        let thread = Thread {
            runtime: &raw const RUNTIME,
            warp: &raw mut self.warps[number / WARP],
            epoch: ranges::epoch().as_ptr(),
            steps_left: STEPS_PER_TURN,
            known: [[Range::default(); 2]; 2],
            thread_index: self.index(number),
            block_index: self.work.index,
            block_size: self.work.config.block,
            grid_size: self.work.config.grid,
            lane: lane as u32,
            threads_of_warp: (self.threads.len() - (number - lane)).min(WARP) as u32,
            access: 0,
            context: std::ptr::null(),
            races: self.races.as_mut().map_or(std::ptr::null_mut(), |races| (&raw mut **races).cast()),
            number,
            fail,
        };
        // SAFETY: the stack is free, so nobody else uses its memory, and it lives as long as the block.
        let (memory, at) = unsafe {
            self.stacks.thread(stack).write(thread);
            (self.stacks.prepare(stack), self.stacks.thread(stack))
        };
        let (call, arguments) = (self.work.call, self.work.arguments.as_ptr());
        let function = move |yielder: &Yielder<(), Turn>, ()| {
            let context = CallContext { block, yielder, number };
            // SAFETY: the thread's own memory, and the promise of `run`.
            unsafe {
                (*at).context = (&raw const context).cast();
                call(arguments);
            }
        };
        // SAFETY: what the function refers to, this block and its work, lives until the coroutine is dropped (`run`).
        let body = unsafe { Body::with_stack_unchecked(memory, function) };
        Ok((body, stack))
    }
}

/// The pauses of a block whose threads all wait, so that others can use the core.
const IDLE: Backoff = Backoff::new(0, 128, Duration::from_micros(20));
