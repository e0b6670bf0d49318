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

use std::{
    ffi::{CStr, c_char, c_void},
    sync::atomic::Ordering,
    thread,
    time::Duration,
};

use corosensei::{Coroutine, CoroutineResult, Yielder};

use super::{
    abi::{Range, Runtime, STACK_BYTES, Thread, WARP, Warp},
    ranges,
    stacks::{Stacks, ThreadStack},
};
use crate::LaunchConfig;

/// Branches in a thread's turn. Enough that copies are hardly slowed down, and about 10 us for a loop that waits.
const STEPS_PER_TURN: i64 = 4096;

/// One block of a launch.
pub(super) struct Work<'a> {
    pub(super) call: unsafe extern "C" fn(*const *mut c_void),
    /// A pointer to each argument. They are copied by each thread.
    pub(super) arguments: &'a [*mut c_void],
    pub(super) config: LaunchConfig,
    pub(super) index: [u32; 3],
    /// Memory of the module beside its variables, to be read or written: where it begins, and its size. The byte may be
    /// behind its end.
    pub(super) module_range: &'a dyn Fn(usize, bool) -> Option<(usize, u64)>,
    /// Whether the launch has failed elsewhere, so that there is nothing to wait for.
    pub(super) is_over: &'a dyn Fn() -> bool,
}

/// Why a thread gave up its turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// It has not ended and could go on, but waits for a change.
    Pause,
    /// It has had its turn.
    GiveWay,
    /// It waits at a barrier, or came last to one.
    Barrier,
    /// The kernel failed.
    Failed,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Ready,
    AtBlockBarrier,
    AtWarpBarrier { mask: u32 },
    Ended,
}

type Body = Coroutine<(), Turn, (), ThreadStack>;

/// A thread: where it is, and what it learned at a barrier.
struct Seat {
    state: State,
    body: Option<Body>,
    /// Which of the block's stacks it has.
    stack: usize,
    /// What it goes on with behind a barrier.
    answer: u64,
    /// What it brought to the block's barrier.
    value: bool,
    /// It has no turn before this round.
    from_round: u64,
}

pub(super) struct Block<'a> {
    work: &'a Work<'a>,
    stacks: Stacks,
    seats: Vec<Seat>,
    warps: Vec<Warp>,
    free_stacks: Vec<usize>,
    live: usize,
    at_barrier: usize,
    /// Of the turns.
    round: u64,
    failure: Option<String>,
}

/// What a thread's callbacks need, on the stack of its coroutine's first function.
struct Desk {
    block: *mut Block<'static>,
    yielder: *const Yielder<(), Turn>,
    number: usize,
}

/// Runs the block to its end.
///
/// # Errors
/// What failed, in words.
///
/// # Safety
/// The arguments are those of the kernel, and what they point to is valid.
pub(super) unsafe fn run(work: &Work<'_>) -> Result<(), String> {
    let threads = work.config.block.iter().product::<u32>() as usize;
    let stacks = Stacks::take(threads).map_err(|e| e.to_string())?;
    let mut block = Block {
        work,
        stacks,
        seats: (0..threads)
            .map(|_| Seat {
                state: State::Ready,
                body: None,
                stack: 0,
                answer: 0,
                value: false,
                from_round: 0,
            })
            .collect(),
        warps: vec![Warp { words: [[0; 2]; WARP] }; threads.div_ceil(WARP)],
        free_stacks: (0..threads).rev().collect(),
        live: threads,
        at_barrier: 0,
        round: 0,
        failure: None,
    };
    // SAFETY: the block lives, and is not used otherwise until this returns (invariant 1).
    let result = unsafe { run_threads(&raw mut block) };
    for seat in &mut block.seats {
        if let Some(body) = &mut seat.body {
            // SAFETY: invariant 2.
            unsafe { body.force_reset() };
        }
    }
    block.seats.clear();
    block.stacks.give_back();
    result
}

/// # Safety
/// `block` lives and nobody else uses it.
unsafe fn run_threads(block: *mut Block<'_>) -> Result<(), String> {
    let mut idle = Backoff::default();
    // SAFETY: the caller's promise, for each use of `block` here; no reference outlives its statement.
    unsafe {
        let (work, threads) = ((*block).work, (*block).seats.len());
        while (*block).live > 0 {
            if (work.is_over)() {
                return Ok(());
            }
            let (mut ran, mut moved, mut had_turn) = (false, false, false);
            for number in 0..threads {
                if !(*block).has_turn(number) {
                    continue;
                }
                ran = true;
                match take_turn(block, number)? {
                    Some(Turn::Pause) => {}
                    Some(Turn::GiveWay) => had_turn = true,
                    Some(Turn::Barrier) | None => moved = true,
                    Some(Turn::Failed) => return Err((*block).failure.take().unwrap_or_default()),
                }
            }
            if !ran {
                return Err((*block).stuck());
            }
            (*block).round += 1;
            if moved {
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
/// As `run_threads`.
unsafe fn take_turn(block: *mut Block<'_>, number: usize) -> Result<Option<Turn>, String> {
    // SAFETY: the caller's promise; the reference ends with the call.
    let (mut body, stack) = unsafe { (*block).sit_down(block.cast(), number)? };
    // No reference to the block is left: the coroutine's callbacks use it now (invariant 1).
    let result = body.resume(());
    // SAFETY: the coroutine is suspended or has ended.
    unsafe { (*block).stand_up(number, stack, body, result) }
}

impl Block<'_> {
    /// Whether the thread can go on, and is to in this round (invariant 3).
    fn has_turn(&self, number: usize) -> bool {
        let seat = &self.seats[number];
        seat.state == State::Ready && seat.from_round <= self.round
    }

    /// The thread's coroutine, with all the steps of a turn, and its stack.
    fn sit_down(&mut self, block: *mut Block<'static>, number: usize) -> Result<(Body, usize), String> {
        let seat = &mut self.seats[number];
        let (body, stack) = match seat.body.take() {
            Some(body) => (body, seat.stack),
            None => self.begin(block, number)?,
        };
        // SAFETY: the thread's own, on a stack that it has.
        unsafe { (*self.stacks.thread(stack)).steps_left = STEPS_PER_TURN };
        Ok((body, stack))
    }

    /// After a turn.
    fn stand_up(
        &mut self,
        number: usize,
        stack: usize,
        body: Body,
        result: CoroutineResult<Turn, ()>,
    ) -> Result<Option<Turn>, String> {
        if !self.stacks.is_sound(stack) {
            // What lay below has been overwritten. Nothing of this process can be trusted.
            eprintln!(
                "mscclpp: {} needs more than {STACK_BYTES} bytes of stack; the process ends",
                self.place(number)
            );
            std::process::abort();
        }
        match result {
            CoroutineResult::Yield(turn) => {
                let seat = &mut self.seats[number];
                (seat.body, seat.stack) = (Some(body), stack);
                Ok(Some(turn))
            }
            CoroutineResult::Return(()) => {
                self.seats[number].state = State::Ended;
                self.free_stacks.push(stack);
                self.live -= 1;
                // Those who wait at a barrier need not wait for this one any more.
                self.settle_block();
                self.settle_warp_after_end(number / WARP);
                Ok(None)
            }
        }
    }

    /// Gives a thread a stack and its first function.
    fn begin(&mut self, block: *mut Block<'static>, number: usize) -> Result<(Body, usize), String> {
        let stack = self.free_stacks.pop().ok_or("a block has more threads than stacks")?;
        let [x, y, _] = self.work.config.block.map(|n| n as usize);
        let lane = number % WARP;
        let thread = Thread {
            runtime: &raw const RUNTIME,
            warp: &raw mut self.warps[number / WARP],
            epoch: ranges::epoch().as_ptr(),
            steps_left: STEPS_PER_TURN,
            known: [Range::default(); 2],
            thread_index: [number % x, number / x % y, number / x / y].map(|i| i as u32),
            block_index: self.work.index,
            block_size: self.work.config.block,
            grid_size: self.work.config.grid,
            lane: lane as u32,
            threads_of_warp: (self.seats.len() - (number - lane)).min(WARP) as u32,
            desk: std::ptr::null(),
        };
        // SAFETY: the stack is free, so nobody else uses its memory, and it lives as long as the block.
        let (memory, at) = unsafe {
            self.stacks.thread(stack).write(thread);
            (self.stacks.prepare(stack), self.stacks.thread(stack))
        };
        let (call, arguments) = (self.work.call, self.work.arguments.as_ptr());
        let function = move |yielder: &Yielder<(), Turn>, ()| {
            let desk = Desk { block, yielder, number };
            // SAFETY: the thread's own memory, and the promise of `run`.
            unsafe {
                (*at).desk = (&raw const desk).cast();
                call(arguments);
            }
        };
        // SAFETY: what the function refers to, this block and its work, lives until the coroutine is dropped (`run`).
        let body = unsafe { Body::with_stack_unchecked(memory, function) };
        Ok((body, stack))
    }

    /// If all live threads are at the block's barrier, lets them go on.
    fn settle_block(&mut self) {
        if self.at_barrier == 0 || self.at_barrier < self.live {
            return;
        }
        let waiting = |seat: &&mut Seat| seat.state == State::AtBlockBarrier;
        let values = self.seats.iter_mut().filter(waiting).filter(|seat| seat.value).count() as u64;
        let answer = (self.at_barrier as u64) << 32 | values;
        for seat in self.seats.iter_mut().filter(waiting) {
            seat.state = State::Ready;
            seat.from_round = self.round + 1;
            seat.answer = answer;
        }
        self.at_barrier = 0;
    }

    /// Lets those threads of a warp go on that wait for those in `mask`, if these are all there.
    fn settle_warp(&mut self, warp: usize, mask: u32) {
        let end = self.seats.len().min((warp + 1) * WARP);
        let seats = &mut self.seats[warp * WARP..end];
        let lanes = |is: &dyn Fn(State) -> bool| {
            seats.iter().enumerate().fold(0, |all, (lane, seat)| all | u32::from(is(seat.state)) << lane)
        };
        let came = lanes(&|state| state == State::AtWarpBarrier { mask });
        if came != mask & lanes(&|state| state != State::Ended) {
            return;
        }
        for seat in seats.iter_mut().filter(|seat| seat.state == State::AtWarpBarrier { mask }) {
            seat.state = State::Ready;
            seat.from_round = self.round + 1;
            seat.answer = u64::from(came);
        }
    }

    fn settle_warp_after_end(&mut self, warp: usize) {
        for number in warp * WARP..self.seats.len().min((warp + 1) * WARP) {
            if let State::AtWarpBarrier { mask } = self.seats[number].state {
                self.settle_warp(warp, mask);
            }
        }
    }

    /// What to say when no thread can go on.
    fn stuck(&self) -> String {
        let count = |state: fn(&State) -> bool| self.seats.iter().filter(|seat| state(&seat.state)).count();
        let block = count(|state| *state == State::AtBlockBarrier);
        let warp = count(|state| matches!(state, State::AtWarpBarrier { .. }));
        let ended = count(|state| *state == State::Ended);
        format!(
            "block {:?}: no thread can go on: {block} wait at a barrier of the block (__syncthreads), {warp} at one of \
             their warp (__syncwarp, votes, shuffles), {ended} have ended",
            self.work.index
        )
    }

    fn place(&self, number: usize) -> String {
        let [x, y, _] = self.work.config.block.map(|n| n as usize);
        let thread = [number % x, number / x % y, number / x / y];
        format!("block {:?}, thread {thread:?}", self.work.index)
    }
}

/// How a block whose threads all wait leaves the core to others: it yields at first, then sleeps briefly.
#[derive(Default)]
struct Backoff {
    rounds: u32,
}

impl Backoff {
    const YIELDS: u32 = 128;
    const NAP: Duration = Duration::from_micros(20);

    fn wait(&mut self) {
        if self.rounds < Self::YIELDS {
            self.rounds += 1;
            thread::yield_now();
        } else {
            thread::sleep(Self::NAP);
        }
    }

    fn reset(&mut self) {
        self.rounds = 0;
    }
}

// ---- what kernels call

static RUNTIME: Runtime = Runtime { pause, give_way, block_barrier, warp_barrier, find_range, trap };

/// The desk of the thread that calls.
///
/// # Safety
/// Called by the running coroutine, with its own thread.
unsafe fn desk<'a>(thread: *mut Thread) -> &'a Desk {
    // SAFETY: set when the coroutine began, and alive as long as that (the caller's promise).
    unsafe { &*(*thread).desk.cast() }
}

/// Ends the turn of the thread that runs, whose desk this is, and returns at its next one.
fn suspend(desk: &Desk, turn: Turn) {
    // SAFETY: the yielder lives as long as the coroutine, which is running: nobody else has its desk.
    unsafe { (*desk.yielder).suspend(turn) };
}

unsafe extern "C" fn pause(thread: *mut Thread) {
    // SAFETY: called by the running coroutine.
    suspend(unsafe { desk(thread) }, Turn::Pause);
}

unsafe extern "C" fn give_way(thread: *mut Thread) {
    // SAFETY: called by the running coroutine.
    suspend(unsafe { desk(thread) }, Turn::GiveWay);
}

unsafe extern "C" fn block_barrier(thread: *mut Thread, value: u32) -> u64 {
    // SAFETY: called by the running coroutine.
    let desk = unsafe { desk(thread) };
    {
        // SAFETY: invariant 1; the reference ends before the coroutine is suspended.
        let block = unsafe { &mut *desk.block };
        block.seats[desk.number].state = State::AtBlockBarrier;
        block.seats[desk.number].value = value != 0;
        block.at_barrier += 1;
        block.settle_block();
    }
    suspend(desk, Turn::Barrier);
    // SAFETY: invariant 1.
    unsafe { (&(*desk.block).seats)[desk.number].answer }
}

unsafe extern "C" fn warp_barrier(thread: *mut Thread, mask: u32) -> u32 {
    // SAFETY: called by the running coroutine.
    let desk = unsafe { desk(thread) };
    {
        // SAFETY: as in `block_barrier`.
        let block = unsafe { &mut *desk.block };
        let mask = mask | 1 << (desk.number % WARP);
        block.seats[desk.number].state = State::AtWarpBarrier { mask };
        block.settle_warp(desk.number / WARP, mask);
    }
    suspend(desk, Turn::Barrier);
    // SAFETY: invariant 1.
    unsafe { (&(*desk.block).seats)[desk.number].answer as u32 }
}

unsafe extern "C" fn find_range(thread: *mut Thread, address: usize, bytes: u64, is_store: u32) {
    let kind = if is_store == 0 { "reading" } else { "writing" };
    // SAFETY: called by the running coroutine; invariant 1.
    let work = unsafe { (*desk(thread).block).work };
    let epoch = ranges::epoch().load(Ordering::Acquire);
    let stack = || {
        let own = thread as usize;
        (own..own + STACK_BYTES).contains(&address).then_some((own, STACK_BYTES as u64))
    };
    let found = ranges::at(address).or_else(stack).or_else(|| (work.module_range)(address, is_store != 0));
    let problem = match found {
        _ if !(address as u64).is_multiple_of(bytes) => {
            format!("{kind} {bytes} bytes at {address:#x}, which is no multiple of {bytes}")
        }
        Some((begin, size)) if (address - begin) as u64 + bytes <= size => {
            // SAFETY: the running thread's own.
            unsafe { (*thread).known[is_store as usize] = Range { begin, bytes: size, epoch } };
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
unsafe fn fail(thread: *mut Thread, problem: String) {
    // SAFETY: the caller's promise.
    let desk = unsafe { desk(thread) };
    {
        // SAFETY: as in `block_barrier`.
        let block = unsafe { &mut *desk.block };
        block.failure = Some(format!("{}: {problem}", block.place(desk.number)));
    }
    // Nothing is left to be dropped (invariant 2).
    drop(problem);
    loop {
        suspend(desk, Turn::Failed);
    }
}
