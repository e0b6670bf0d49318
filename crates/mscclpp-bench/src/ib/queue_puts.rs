//! Puts by a queue of one's own, as a proxy has it.

use std::cell::RefCell;

use mscclpp::{channels::SendQueue, prelude::*, provider::RouteId};

use super::{OnAdapter, ping_pong::hand_over};
use crate::{
    Result,
    data::{GUARD, Memory},
    host_memory::HostMemory,
    one_way::Transfer,
    waiting::wait_for,
};

/// So many puts are handed to the queue's transport together.
const TOGETHER: u32 = 16;

/// From rank 0 to rank 1.
pub(super) struct QueuePuts {
    sends: bool,
    queue: RefCell<SendQueue>,
    route: RouteId,
    memory: HostMemory,
    // Reachable as long as this is kept.
    _mine: RegisteredMemory,
}

impl QueuePuts {
    /// Of up to `largest` bytes.
    pub(super) fn new(on: &OnAdapter, largest: u64) -> Result<Self> {
        let memory = HostMemory::new(largest + 2 * GUARD);
        let mine = memory.register(&on.ranks, on.transport)?;
        let mut queue = on.ranks.connect(on.endpoint())?.open_queue()?;
        let route = queue.route(&on.ranks.share(&mine)?, &mine)?;
        Ok(Self { sends: on.ranks.rank == 0, queue: RefCell::new(queue), route, memory, _mine: mine })
    }
}

impl Transfer for QueuePuts {
    fn memory(&self) -> &dyn Memory {
        &self.memory
    }

    fn carry(&self, bytes: u64, rounds: u32) -> Result<()> {
        if !self.sends {
            return Ok(());
        }
        let mut queue = self.queue.borrow_mut();
        for round in 1..=rounds {
            queue.write(self.route, GUARD, 0, bytes)?;
            if round.is_multiple_of(TOGETHER) {
                hand_over(&mut queue)?;
            }
        }
        let ticket = queue.request_flush()?;
        wait_for("the last put", || Ok((queue.progress()? >= ticket).then_some(())))
    }
}
