//! Puts by the library, over one connection.

use std::{cell::RefCell, time::Duration};

use mscclpp::{channels::SendQueue, errors::CoreError, prelude::*, provider::RouteId};

use super::OnAdapter;
use crate::{
    Result,
    data::{GUARD, Memory},
    host_memory::HostMemory,
    one_way::Transfer,
    ranks::Ranks,
    waiting::wait_for,
};

/// For all rounds of one time.
const LIMIT: Duration = Duration::from_secs(120);
/// So many puts are handed to a queue's transport together.
const TOGETHER: u32 = 16;

/// From rank 0 to rank 1.
pub(super) struct Puts<'a> {
    ranks: &'a Ranks,
    way: Way,
    memory: HostMemory,
}

/// What puts are given to.
enum Way {
    /// A connection, one by one.
    Connection { connection: Connection, mine: RegisteredMemory, peers: RegisteredMemory },
    /// A queue of your own, as a proxy has it.
    Queue { queue: RefCell<SendQueue>, route: RouteId },
}

impl<'a> Puts<'a> {
    /// By [`Connection::write`], of up to `largest` bytes.
    pub(super) fn by_connection(on: &'a OnAdapter, largest: u64) -> Result<Self> {
        Self::new(on, largest, |connection, mine, peers| Ok(Way::Connection { connection, mine, peers }))
    }

    /// By a [`SendQueue`], of up to `largest` bytes.
    pub(super) fn by_queue(on: &'a OnAdapter, largest: u64) -> Result<Self> {
        Self::new(on, largest, |connection, mine, peers| {
            let mut queue = connection.open_queue()?;
            let route = queue.route(&peers, &mine)?;
            Ok(Way::Queue { queue: RefCell::new(queue), route })
        })
    }

    fn new(
        on: &'a OnAdapter,
        largest: u64,
        way: impl FnOnce(Connection, RegisteredMemory, RegisteredMemory) -> Result<Way>,
    ) -> Result<Self> {
        let ranks = &on.ranks;
        let memory = HostMemory::new(largest + 2 * GUARD);
        let mine = memory.register(ranks, on.transport)?;
        let connection = ranks.comm.connect(on.endpoint(), ranks.other(), 0)?.wait()?;
        let peers = ranks.share(&mine)?;
        Ok(Self { ranks, way: way(connection, mine, peers)?, memory })
    }

    fn put(&self, bytes: u64, rounds: u32) -> Result<()> {
        match &self.way {
            Way::Connection { connection, mine, peers } => {
                let put_all = || {
                    for _ in 0..rounds {
                        connection.write(peers, GUARD, mine, 0, bytes)?;
                    }
                    connection.flush(LIMIT)
                };
                put_all().map_err(|error: CoreError| self.ranks.comm.explain(error))?;
            }
            Way::Queue { queue, route } => {
                let mut queue = queue.borrow_mut();
                for round in 1..=rounds {
                    queue.write(*route, GUARD, 0, bytes)?;
                    if round.is_multiple_of(TOGETHER) && queue.submit()? > 0 {
                        wait_for("room in the queue", || {
                            queue.progress()?;
                            Ok((queue.waiting() == 0).then_some(()))
                        })?;
                    }
                }
                let ticket = queue.request_flush()?;
                wait_for("the last put", || Ok((queue.progress()? >= ticket).then_some(())))?;
            }
        }
        Ok(())
    }
}

impl Transfer for Puts<'_> {
    fn memory(&self) -> &dyn Memory {
        &self.memory
    }

    fn carry(&self, bytes: u64, rounds: u32) -> Result<()> {
        // The receiver's side is its adapter's affair.
        if self.ranks.rank == 0 { self.put(bytes, rounds) } else { Ok(()) }
    }
}
