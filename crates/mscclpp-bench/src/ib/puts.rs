//! Puts from rank 0's memory to rank 1's: by bare verbs, and by a send queue like that of a proxy.

use std::cell::RefCell;

use mscclpp::{channels::SendQueue, provider::RouteId};

use super::{OnAdapter, ping_pong::hand_over};
use crate::{
    bare_verbs::{QueuePair, Registered, Request},
    data::{GUARD, HostMemory, Memory},
    one_way::Transfer,
    prelude::*,
    waiting::wait_for,
};

/// Puts by bare verbs, with one work request for each message.
pub(super) struct BarePuts {
    qp: RefCell<QueuePair>,
    sends: bool,
    depth: u32,
    memory: HostMemory,
}

impl BarePuts {
    /// Connects the ranks for messages of up to `largest` bytes.
    pub(super) fn new(on: &OnAdapter, largest: u64) -> Result<Self> {
        let memory = HostMemory::new(largest + 2 * GUARD);
        let bytes = memory.bytes;
        // SAFETY: the memory consists of atomics and is never freed.
        let registered =
            unsafe { Registered::new(&on.bare, bytes.as_ptr().cast(), bytes.len() as u64, true)? };
        let depth = on.depth();
        let qp = QueuePair::connect(&on.bare, &on.ranks, depth, 0, registered)?;
        Ok(Self { qp: RefCell::new(qp), sends: on.ranks.rank == 0, depth, memory })
    }
}

impl Transfer for BarePuts {
    fn memory(&self) -> &dyn Memory {
        &self.memory
    }

    fn carry(&self, bytes: u64, rounds: u32) -> Result<()> {
        if !self.sends {
            return Ok(());
        }
        let mut qp = self.qp.borrow_mut();
        let put = Request::Write { from: 0, to: GUARD, len: u32::try_from(bytes)?, immediate: None };
        for round in 1..=rounds {
            if qp.under_way() * 2 >= self.depth {
                qp.reap()?;
            }
            if qp.under_way() == self.depth {
                wait_for("room in the send queue", || {
                    qp.reap()?;
                    Ok((qp.under_way() < self.depth).then_some(()))
                })?;
            }
            let is_told = round.is_multiple_of((self.depth / 4).max(1)) || round == rounds;
            qp.post([put], is_told)?;
        }
        wait_for("the last put", || {
            qp.reap()?;
            Ok((qp.under_way() == 0).then_some(()))
        })
    }
}

/// The number of puts that are submitted to the queue's transport together.
const TOGETHER: u32 = 16;

/// Puts by a queue of the library, from rank 0 to rank 1.
pub(super) struct QueuePuts {
    sends: bool,
    queue: RefCell<SendQueue>,
    route: RouteId,
    memory: HostMemory,
    // The peer can reach the memory as long as this is kept.
    _mine: RegisteredMemory,
}

impl QueuePuts {
    /// Connects the ranks for messages of up to `largest` bytes.
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
