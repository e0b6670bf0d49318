//! A queue of operations to a peer: the sending end of a queue pair.
//!
//! # Invariants
//! 1. Requests are numbered as they are posted, and complete in that order. At most as many are under way as the
//!    completion queue has entries, so it never overflows, not even when everything fails at once.
//! 2. An operation that was taken is posted, or the rest of it waits in the plan. An operation that was not taken has
//!    left no trace, neither in the plan nor in the state from which the peer's numbers are counted.
//! 3. A request that needs a receive is posted only if the peer has one: the peer reports how many it has posted
//!    again.
//! 4. The memory that a request reads is kept alive until the request has completed.

mod opening;
mod plan;
mod request;

use std::{
    collections::VecDeque,
    io,
    mem::ManuallyDrop,
    net::TcpStream,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use mscclpp_core::{
    Result as CoreResult,
    provider::{Memories, Operation, Queue, RouteId, Routes},
};

use mscclpp_net::links;

use crate::{
    adapter::{Completion, Cq, QueuePair},
    error::{Error, Result},
    hub::{Command, Hub},
    region::{LocalRegion, PeerRegion, SourceRegion},
    side::LinkState,
    status::Status,
};
use plan::{Origin, Plan, Route};
use request::Chain;

/// The longest time that a flushed request waits for its cause to be reported by an event of the adapter or the end
/// of the link.
const CAUSE_LIMIT: Duration = Duration::from_millis(500);

/// The queue as the core uses it. Requests that are under way when it is dropped are left to the hub's thread.
pub(crate) struct SendQueue {
    /// The sender, which is moved out when this is dropped.
    sender: ManuallyDrop<Box<Sender>>,
    hub: Arc<Hub>,
}

/// The sending end of a queue pair.
pub(crate) struct Sender {
    // Fields are dropped in this order: the queue pair before its completion queue, both before the memory that they
    // read.
    qp: QueuePair,
    cq: Cq,
    chain: Chain,
    plan: Plan,
    routes: Routes<Route>,
    /// The memory that requests along the routes read.
    sources: Routes<Arc<SourceRegion>>,
    /// The memory that requests of released routes read, each with the number of the last such request.
    released: VecDeque<(u64, Arc<SourceRegion>)>,
    link: Arc<LinkState>,
    remote: String,
    /// The number of requests that were posted; the next field is how many have completed.
    posted: u64,
    completed: u64,
    capacity: u32,
    /// The first request that was flushed, and the time at which that was seen.
    flushed: Option<(Completion, Instant)>,
    /// The number of receives that the peer has. `awaits_receives` is the time since which nothing could be posted
    /// because there were none.
    receives: u32,
    awaits_receives: Option<Instant>,
    reached: u64,
    /// The names of the requests under way, for messages.
    names: Box<[&'static str]>,
    /// The TCP connection, which ends when the peer's end of the queue does.
    stream: TcpStream,
}

impl SendQueue {
    /// Makes both ends of a queue. Blocks for at most about 20 seconds.
    pub(crate) fn open(state: &Arc<LinkState>, link: &links::Link, hub: &Arc<Hub>) -> Result<Self> {
        Ok(Self { sender: ManuallyDrop::new(Box::new(Sender::open(state, link)?)), hub: hub.clone() })
    }

    /// Runs `body` on the sender of a live connection. If it fails, the connection fails.
    fn attempt<T>(&mut self, body: impl FnOnce(&mut Sender) -> Result<T>) -> CoreResult<T> {
        let sender = &mut self.sender;
        sender.link.check()?;
        body(sender).map_err(|error| sender.failed(error))
    }
}

impl Sender {
    fn under_way(&self) -> usize {
        (self.posted - self.completed) as usize
    }

    fn is_idle(&self) -> bool {
        self.under_way() == 0 && self.plan.items.is_empty()
    }

    /// Posts the planned items, as far as there is room. Returns how many were posted.
    fn post(&mut self) -> Result<usize> {
        let mut posted = 0;
        while !self.plan.items.is_empty() && self.under_way() < self.capacity as usize {
            let room = self.capacity as usize - self.under_way();
            let items = self.plan.items.iter().take(room.min(self.chain.longest())).copied();
            let (first, len) = self.chain.make(items, self.posted);
            // SAFETY: the chain was just made. Sources are kept by `sources` and `released`, places and words by the
            // chain, until their requests have completed and the queue pair is gone.
            let refused = unsafe { self.qp.post_send(first) };
            let taken = refused.map_or(len, |(bad, _)| self.chain.before(bad).min(len));
            for item in self.plan.items.drain(..taken) {
                self.names[self.posted as usize % self.names.len()] = item.request.name();
                self.posted += 1;
            }
            posted += taken;
            match refused {
                None => {}
                // The adapter's own queue is full for now.
                Some((_, libc::ENOMEM)) if self.under_way() > 0 => break,
                Some((_, errno)) => {
                    let device = self.qp.adapter().name().to_owned();
                    let call = format!("ibv_post_send towards {}", self.remote);
                    return Err(Error::Verbs {
                        device,
                        call,
                        hint: "",
                        source: io::Error::from_raw_os_error(errno),
                    });
                }
            }
        }
        Ok(posted)
    }

    /// Handles the requests that have completed.
    fn reap(&mut self) -> Result<()> {
        if self.under_way() == 0 {
            return Ok(());
        }
        let mut failed = None;
        for completion in self.cq.poll()? {
            match Status(completion.status) {
                // Earlier requests, which asked for no completion, have completed too.
                Status::SUCCESS => self.completed = self.completed.max(completion.id + 1),
                Status::FLUSHED => {
                    self.flushed.get_or_insert((completion, Instant::now()));
                }
                _ => {
                    failed = Some(completion);
                    break;
                }
            }
        }
        let flushed = self.flushed.filter(|(_, since)| since.elapsed() >= CAUSE_LIMIT);
        if let Some(completion) = failed.or(flushed.map(|(completion, _)| completion)) {
            return Err(self.explain(&completion));
        }
        while self.released.front().is_some_and(|(until, _)| *until <= self.completed) {
            self.released.pop_front();
        }
        Ok(())
    }

    fn explain(&self, completion: &Completion) -> Error {
        let (status, remedy) = Status(completion.status).explain();
        Error::Completion {
            opcode: self.names[completion.id as usize % self.names.len()],
            status,
            vendor: completion.vendor,
            local: format!(
                "{} port {}, GID {}, queue pair {}",
                self.qp.adapter().name(),
                self.link.side.port.number,
                self.link.side.port.gid.gid,
                self.qp.number()
            ),
            remote: format!("{} ({})", self.link.peer(), self.remote),
            remedy,
        }
    }

    /// Fails the connection with this error. If it has failed before, returns that earlier error, because later ones
    /// do not show the cause.
    fn failed(&self, error: Error) -> mscclpp_core::Error {
        self.link.fail(error);
        self.link.check().err().unwrap_or_else(|| self.link.closed())
    }

    fn submit(&mut self, batch: &[Operation]) -> Result<usize> {
        if self.under_way() * 2 >= self.capacity as usize {
            self.reap()?;
        }
        self.post()?;
        if !self.plan.items.is_empty() {
            return Ok(0);
        }
        let room = self.capacity as usize - self.under_way();
        // Acquire: this pairs with no store of this process, because the peer's adapter writes the count. A hostile peer
        // may write any number.
        let messages = self.chain.credit().load(Ordering::Acquire).saturating_add(self.receives.into());
        self.plan.add(batch, &self.routes, self.posted, room, messages, self.under_way() == 0);
        match self.post() {
            Ok(posted) => {
                let taken = self.plan.taken(posted);
                self.await_receives(taken == 0 && !batch.is_empty() && self.under_way() == 0)?;
                Ok(taken)
            }
            Err(error) => {
                self.plan.taken(0);
                Err(error)
            }
        }
    }

    /// Checks now and then that the peer's end is still there while requests wait for its receives. Only the peer can
    /// say that it has receives again, and with nothing under way no request would fail if its end were gone.
    fn await_receives(&mut self, awaits: bool) -> Result<()> {
        if !awaits {
            self.awaits_receives = None;
            return Ok(());
        }
        if self.awaits_receives.get_or_insert_with(Instant::now).elapsed() < CAUSE_LIMIT {
            return Ok(());
        }
        self.awaits_receives = None;
        match self.peer_has_closed() {
            true => {
                Err(Error::Refused { reason: "its end of the queue is closed; its log says why".to_owned() })
            }
            false => Ok(()),
        }
    }

    fn progress(&mut self) -> Result<u64> {
        self.reap()?;
        self.post()?;
        while let Some((ticket, until)) = self.plan.tickets.front().copied()
            && until <= self.completed
        {
            self.reached = ticket;
            self.plan.tickets.pop_front();
        }
        Ok(self.reached)
    }

    /// Continues the requests under way. Returns true while something is left that can still be done.
    fn drain(&mut self) -> bool {
        self.link.check().is_ok() && self.progress().is_ok() && !self.is_idle() && !self.peer_has_closed()
    }

    /// Returns whether the peer's end of the queue is gone. The link reports that too, as long as somebody holds it.
    fn peer_has_closed(&self) -> bool {
        match self.stream.peek(&mut [0]) {
            Ok(_) => true,
            Err(error) => !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
        }
    }

    fn prepare(&mut self, route: RouteId, memories: Memories<'_>) -> Result<()> {
        let (&PeerRegion(to), src) = memories.own::<PeerRegion, LocalRegion>()?;
        let from = match src {
            Some(local) => {
                if !Arc::ptr_eq(local.adapter(), &self.link.side.adapter) {
                    return Err(Error::Incompatible(format!(
                        "the source is registered with {}, the connection uses {}; register it for the connection's transport",
                        local.adapter().name(),
                        self.link.side.adapter.name()
                    )));
                }
                Some(local.source()?)
            }
            None if !to.address.is_multiple_of(8) => {
                return Err(Error::Incompatible(
                    "the peer's memory does not begin at a multiple of 8 bytes, so its words cannot be updated".to_owned(),
                ));
            }
            None => None,
        };
        self.release(route);
        let origin = from.as_ref().map(|source| Origin {
            address: source.address,
            key: source.key(),
            is_host_memory: source.is_host_memory,
        });
        self.routes.insert(route, Route { to, from: origin });
        if let Some(from) = from {
            self.sources.insert(route, from);
        }
        Ok(())
    }

    fn release(&mut self, route: RouteId) {
        self.routes.remove(route);
        if let Some(source) = self.sources.remove(route) {
            let until = self.posted + self.plan.items.len() as u64;
            if until > self.completed {
                self.released.push_back((until, source));
            }
        }
    }
}

impl Queue for SendQueue {
    fn prepare(&mut self, route: RouteId, memories: Memories<'_>) -> CoreResult<()> {
        let prepared = self.sender.prepare(route, memories);
        prepared.map_err(|error| error.over(self.sender.link.side.transport))
    }

    fn release(&mut self, route: RouteId) {
        self.sender.release(route);
    }

    unsafe fn submit(&mut self, batch: &[Operation]) -> CoreResult<usize> {
        self.attempt(|sender| sender.submit(batch))
    }

    fn progress(&mut self) -> CoreResult<u64> {
        self.attempt(Sender::progress)
    }
}

impl Drop for SendQueue {
    /// Leaves the requests under way to the hub's thread, which finishes them.
    fn drop(&mut self) {
        // SAFETY: nothing uses it any more.
        let mut sender = unsafe { ManuallyDrop::take(&mut self.sender) };
        if !sender.is_idle() && sender.link.check().is_ok() {
            // The last request is made to complete visibly, because without a flush nothing else shows that it is
            // done.
            sender.plan.ask_for_completion();
            self.hub.send(Command::Drain(Box::new(move || sender.drain())));
        }
    }
}
