//! The state of a block that runs, and of its threads.

use std::{
    ffi::c_void,
    sync::{Arc, OnceLock},
};

use corosensei::{Coroutine, CoroutineResult};

use super::super::{
    abi::{STACK_BYTES, Warp},
    library::Library,
    races::{LaunchInOrder, RacesOfBlock},
    schedule::{Random, Schedule},
    stacks::{Stacks, ThreadStack},
};
use crate::LaunchConfig;

/// One block of a launch.
pub(in super::super) struct Work<'a> {
    pub(in super::super) call: unsafe extern "C" fn(*const *mut c_void),
    /// A pointer to each argument. They are copied by each thread.
    pub(in super::super) arguments: &'a [*mut c_void],
    pub(in super::super) config: LaunchConfig,
    pub(in super::super) index: [u32; 3],
    pub(in super::super) library: &'a Library,
    /// The launch in the race detector, if it is on.
    pub(in super::super) races: Option<&'a Arc<LaunchInOrder>>,
    /// The random numbers of the block's schedule, if a seed makes one.
    pub(in super::super) schedule: Option<Random>,
    /// The failure of the launch, also elsewhere: then the block need not wait any more.
    pub(in super::super) failure: &'a OnceLock<String>,
}

impl Work<'_> {
    pub(super) fn is_over(&self) -> bool {
        self.failure.get().is_some()
    }
}

/// The reason why a thread gave up its turn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// The thread could go on, but waits for a change.
    Pause,
    /// The thread's turn was over.
    GiveWay,
    /// The thread waits at a barrier, or came last to one.
    Barrier,
    /// The kernel failed.
    Failed,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Status {
    #[default]
    Ready,
    AtBlockBarrier {
        value: bool,
    },
    AtWarpBarrier {
        mask: u32,
    },
    Ended,
}

pub(super) type Body = Coroutine<(), Turn, (), ThreadStack>;

/// The state of a thread: its coroutine, and its answer from a barrier.
#[derive(Default)]
pub(super) struct ThreadState {
    pub(super) status: Status,
    pub(super) body: Option<Body>,
    /// The number of its stack in the block.
    pub(super) stack: usize,
    /// The result of the barrier that it comes from.
    pub(super) answer: u64,
    /// The first round in which it has a turn.
    pub(super) from_round: u64,
    /// Whether it comes from a barrier, so that its next turn is whole.
    pub(super) is_behind_barrier: bool,
}

pub(super) struct Block<'a> {
    pub(super) work: &'a Work<'a>,
    pub(super) stacks: Stacks,
    pub(super) threads: Vec<ThreadState>,
    pub(super) warps: Vec<Warp>,
    pub(super) free_stacks: Vec<usize>,
    pub(super) live: usize,
    pub(super) at_barrier: usize,
    /// The number of the round of turns.
    pub(super) round: u64,
    pub(super) failure: Option<String>,
    pub(super) races: Option<Box<RacesOfBlock>>,
    pub(super) schedule: Option<Schedule>,
}

impl Block<'_> {
    /// Whether the thread can go on, and has a turn in this round (invariant 3).
    pub(super) fn has_turn(&self, number: usize) -> bool {
        let thread = &self.threads[number];
        thread.status == Status::Ready && thread.from_round <= self.round
    }

    /// Updates the block after a turn of a thread.
    pub(super) fn after_turn(
        &mut self,
        number: usize,
        stack: usize,
        body: Body,
        result: CoroutineResult<Turn, ()>,
    ) -> Option<Turn> {
        if !self.stacks.is_sound(stack) {
            // The memory below the stack has been overwritten, so no memory of this process can be trusted.
            eprintln!(
                "mscclpp: {} needs more than {STACK_BYTES} bytes of stack; the process ends",
                self.place(number)
            );
            std::process::abort();
        }
        match result {
            CoroutineResult::Yield(turn) => {
                let thread = &mut self.threads[number];
                (thread.body, thread.stack) = (Some(body), stack);
                Some(turn)
            }
            CoroutineResult::Return(()) => {
                self.threads[number].status = Status::Ended;
                if let Some(races) = &mut self.races {
                    races.gives_way(number, true);
                }
                self.free_stacks.push(stack);
                self.live -= 1;
                self.settle_after_end(number);
                None
            }
        }
    }

    /// Returns the thread's index in the block.
    pub(super) fn index(&self, number: usize) -> [u32; 3] {
        let ([x, y, _], number) = (self.work.config.block, number as u32);
        [number % x, number / x % y, number / x / y]
    }

    pub(super) fn place(&self, number: usize) -> String {
        format!("block {:?}, thread {:?}", self.work.index, self.index(number))
    }
}
