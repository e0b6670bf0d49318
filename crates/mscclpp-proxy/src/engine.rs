//! The handler of a proxy service, which carries out triggers.
//!
//! # Invariants
//! 1. The operations of a connection are given to its one queue in the order of their positions.
//! 2. The completed position of a connection is raised to `p + 1` only when everything that its triggers up to `p`
//!    asked for is complete at the peer. Either the transport raises it, in the queue's order, or this code does, when
//!    it reaches the ticket of a flush that was asked for after those triggers.
//! 3. Nothing here blocks, takes a lock that others hold for long, or allocates, once each semaphore and each pair of
//!    memories has been used, and the number of waiting operations has reached its maximum.
//! 4. A connection that has something to hand over, or that waits for a completion, is in `active` exactly once. So
//!    `progress` finds all work.
//! 5. A trigger is taken whole or not at all: its queue has room for all its operations before the first one is added.

use std::{collections::VecDeque, sync::Arc, sync::atomic::Ordering};

use mscclpp_core::{Report, SendQueue, SignallerId, provider::RouteId};
use mscclpp_gpu::PinnedBuffer;

use crate::{
    Error, FifoPosition, MemoryId, Progress, ProxyHandler, ProxyHandlerResult, ProxyTrigger, Result,
    TriggerKind,
    connection::{Completed, ServiceConnection},
    state::{EntrySignaller, ServiceState},
    trigger::{MAX_MEMORIES, MAX_SEMAPHORES},
};

/// The most completions of a connection that are reported to kernels one by one; those beyond are reported together.
const MAX_AWAITED: usize = 256;
/// The most operations of a trigger: a write, an update, and a report of their completion. One place more is kept for
/// the flush of a stop.
const OPERATIONS: usize = 3 + 1;

/// The type of [`ProxyServiceBuilder::on_failure`](crate::ProxyServiceBuilder::on_failure)'s function.
pub(crate) type OnFailure = dyn Fn(&Error) + Send + Sync;

pub(crate) struct Engine {
    // Dropped before `state`: queues end what is under way, then the memory that completions are stored in may be
    // freed.
    /// The queues of connections, by the connections' numbers.
    connections: Vec<Option<ConnectionQueue>>,
    /// The semaphores that were used, by their numbers.
    semaphores: Box<[Option<OpenSemaphore>]>,
    /// The numbers of the connections with work left; see invariant 4.
    active: Vec<usize>,
    state: Arc<ServiceState>,
    on_failure: Option<Box<OnFailure>>,
}

/// A semaphore that was used: its connection, and the signaller that was attached there.
#[derive(Clone, Copy)]
struct OpenSemaphore {
    connection: usize,
    signaller: SignallerId,
}

/// A connection that was used.
struct ConnectionQueue {
    queue: SendQueue,
    routes: Routes,
    completed: Completed,
    /// Whether kernels can act directly, and so look whether something is pending, without a flush.
    is_looked_at: bool,
    /// The first and the last of the triggers whose operations may not all have been taken by the transport.
    unsent: Option<(FifoPosition, Last)>,
    /// Tickets, and the positions that are complete when they are reached; both grow.
    awaited: VecDeque<(u64, FifoPosition)>,
    /// The ticket that a stop waits for.
    last: Option<u64>,
    /// Whether the connection is in `active`; see invariant 4.
    is_active: bool,
    /// How many operations waited when the shared count was last written.
    waiting: usize,
}

/// The last trigger that was taken, and its position.
#[derive(Clone, Copy)]
struct Last {
    position: FifoPosition,
    trigger: ProxyTrigger,
}

impl Engine {
    pub(crate) fn new(state: Arc<ServiceState>, on_failure: Option<Box<OnFailure>>) -> Self {
        let semaphores = (0..MAX_SEMAPHORES).map(|_| None).collect();
        Self { semaphores, connections: Vec::new(), active: Vec::new(), state, on_failure }
    }

    fn take(&mut self, trigger: ProxyTrigger, position: FifoPosition) -> Result<ProxyHandlerResult> {
        let id = trigger.semaphore().raw() as usize;
        let OpenSemaphore { connection: number, signaller } = match self.semaphores[id] {
            Some(open) => open,
            None => self.open_semaphore(id)?,
        };
        let Self { connections, active, state, .. } = self;
        let Some(connection) = &mut connections[number] else { return Ok(ProxyHandlerResult::Continue) };
        let kind = trigger.kind();
        if kind.is_empty() {
            return Err(Error::InvalidArgument("it asks for nothing".to_owned()));
        }
        // The connection is in `active`: the operations that wait keep it there.
        if !connection.queue.has_room_for(OPERATIONS) {
            return Ok(ProxyHandlerResult::Retry);
        }
        let ConnectionQueue { queue, routes, .. } = connection;
        if kind.has(TriggerKind::DATA) {
            let route = routes.find(trigger, || {
                let memory = |id: MemoryId| state.memories.find("memory", id.raw());
                Ok(queue.route(memory(trigger.dst_memory())?, memory(trigger.src_memory())?)?)
            })?;
            queue.write(route, trigger.dst_offset(), trigger.src_offset(), trigger.size())?;
        }
        // A completion is asked for after a signal only if kernels may act directly: no other kernel reads the completed
        // position before it flushes.
        let signals = kind.has(TriggerKind::FLAG);
        let asks = kind.has(TriggerKind::SYNC) || (signals && connection.is_looked_at);
        // The trigger is counted before it is given to the queue, so a thread that learns that it is complete finds it
        // in the counts.
        if let Some(shared) = state.connections.get(number as u32) {
            shared.counts.note(trigger, position, asks);
        }
        if signals {
            queue.signal(signaller)?;
        }
        if asks {
            connection.report_completion(position + 1)?;
        }
        connection.note_unsent(Last { position, trigger });
        if !connection.is_active {
            connection.is_active = true;
            active.push(number);
        }
        Ok(ProxyHandlerResult::Continue)
    }

    /// Takes over, at the first trigger of a semaphore, what was prepared when the semaphore was added.
    #[cold]
    fn open_semaphore(&mut self, id: usize) -> Result<OpenSemaphore> {
        let entry = self.state.semaphores.find("semaphore", id as u32)?;
        let signaller = match &entry.signaller {
            EntrySignaller::Own(signaller) => signaller,
            EntrySignaller::Of(first) => {
                let first = *first as usize;
                let open = self.semaphores[first].map_or_else(|| self.open_semaphore(first), Ok)?;
                self.semaphores[id] = Some(open);
                return Ok(open);
            }
        };
        let number = entry.connection as usize;
        if self.connections.len() <= number {
            self.connections.resize_with(number + 1, || None);
        }
        let connection = match &mut self.connections[number] {
            Some(connection) => connection,
            none => {
                let shared = self.state.connections.find("connection", entry.connection)?;
                none.insert(ConnectionQueue::open(shared)?)
            }
        };
        self.active.reserve(number + 1);
        let taken = || Error::InvalidArgument("the semaphore's signals are counted already".to_owned());
        let signaller = signaller.lock().take().ok_or_else(taken)?;
        let open = OpenSemaphore { connection: number, signaller: connection.queue.attach(signaller)? };
        self.semaphores[id] = Some(open);
        Ok(open)
    }

    fn named(&self, error: Error, trigger: ProxyTrigger, position: FifoPosition) -> Error {
        let entry = self.state.semaphores.get(trigger.semaphore().raw());
        let peer = entry.map(|entry| entry.semaphore.connection().label());
        Error::Trigger { position, trigger, peer, source: Arc::new(error) }
    }
}

impl ProxyHandler for Engine {
    fn handle(&mut self, trigger: ProxyTrigger, position: FifoPosition) -> Result<ProxyHandlerResult> {
        self.take(trigger, position).map_err(|error| self.named(error, trigger, position))
    }

    /// Hands over the operations of triggers taken since the last call, each connection's in one batch.
    fn progress(&mut self) -> Result<Progress> {
        let Self { connections, active, state, .. } = self;
        let mut result = Ok(());
        active.retain(|number| {
            let Some(connection) = &mut connections[*number] else { return false };
            let unsent = connection.unsent.as_ref().map(|(_, last)| last.position);
            if let Err(error) = connection.progress() {
                result = Err(connection.named(error));
            }
            let handed_over = unsent.filter(|_| connection.unsent.is_none());
            if (handed_over.is_some() || connection.waiting != connection.queue.waiting())
                && let Some(shared) = state.connections.get(*number as u32)
            {
                connection.waiting = connection.queue.waiting();
                shared.counts.waiting.store(connection.waiting as u64, Ordering::Relaxed);
                if let Some(last) = handed_over {
                    shared.counts.handed_over.store((last + 1).raw(), Ordering::Relaxed);
                }
            }
            connection.is_active = connection.is_waiting();
            connection.is_active
        });
        result?;
        Ok(if active.is_empty() { Progress::Idle } else { Progress::Busy })
    }

    /// Asks every queue for a flush, also if the transport itself stores completions, and for puts that neither a
    /// signal nor a flush follows.
    fn finish(&mut self) -> Result<()> {
        for (number, connection) in self.connections.iter_mut().enumerate() {
            let Some(connection) = connection else { continue };
            connection.last = match connection.queue.add_flush() {
                Ok(ticket) => Some(ticket),
                // Nobody is left who could miss incomplete operations; completions that kernels wait for are still in
                // `awaited`.
                Err(mscclpp_core::Error::PeerClosed { .. }) => None,
                Err(error) => return Err(error.into()),
            };
            if !connection.is_active && connection.is_waiting() {
                connection.is_active = true;
                self.active.push(number);
            }
        }
        Ok(())
    }

    fn check(&mut self) -> Result<()> {
        for shared in self.state.connections.iter() {
            match shared.connection.check() {
                // A peer that has nothing more to do may close its side first.
                Ok(()) | Err(mscclpp_core::Error::PeerClosed { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut unasked = self.connections.iter_mut().flatten().filter(|connection| !connection.is_looked_at);
        unasked.try_for_each(ConnectionQueue::check)
    }

    fn failed(&mut self, error: &Error) {
        self.state.tell_peers(error);
        self.state.abort_semaphores(error);
        if let Some(call) = &self.on_failure {
            call(error);
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some(error) = self.state.own_failure() {
            // Operations that were set aside are not sent any more: nobody here waits for them, and their sources may
            // have changed. Signals among them were counted, so the connections cannot go on.
            for (shared, open) in self.state.connections.iter().zip(&self.connections) {
                if open.as_ref().is_some_and(|open| open.queue.waiting() > 0) {
                    let reason = format!("proxy: {}", Report(&error));
                    shared.connection.tell_failure(&reason);
                    shared.connection.fail(mscclpp_core::Error::Aborted { reason });
                }
            }
        }
        self.connections.clear();
        self.state.words_may_go();
    }
}

impl ConnectionQueue {
    fn open(shared: &ServiceConnection) -> Result<Self> {
        let taken = || Error::InvalidArgument("the connection's queue is in use already".to_owned());
        Ok(Self {
            queue: shared.queue.lock().take().ok_or_else(taken)?,
            routes: Routes::new(),
            completed: shared.completed.clone(),
            is_looked_at: shared.connection.maps_memory(),
            unsent: None,
            awaited: VecDeque::with_capacity(MAX_AWAITED),
            last: None,
            is_active: false,
            waiting: 0,
        })
    }

    /// Asks for a report to kernels when everything given so far is complete.
    fn report_completion(&mut self, end: FifoPosition) -> Result<()> {
        if let Completed::ByTransport(word) = self.completed {
            // SAFETY: the word is in the service's memory for its connections, which `Engine::drop` keeps until the stores
            // are done.
            unsafe { self.queue.store_when_complete(word, end.raw())? };
            return Ok(());
        }
        let ticket = self.queue.add_flush()?;
        if self.awaited.len() == MAX_AWAITED {
            // The new completion takes the place of the last one; both numbers only grow, so nothing is reported too
            // early.
            self.awaited.pop_back();
        }
        self.awaited.push_back((ticket, end));
        Ok(())
    }

    fn note_unsent(&mut self, last: Last) {
        let first = self.unsent.map_or(last.position, |(first, _)| first);
        self.unsent = Some((first, last));
    }

    fn is_waiting(&self) -> bool {
        self.unsent.is_some() || !self.awaited.is_empty() || self.last.is_some()
    }

    /// Hands over operations as there is room for them, and reports to kernels what has become complete.
    fn progress(&mut self) -> Result<()> {
        if self.queue.submit().map_or_else(|error| self.unless_closed(error), |left| Ok(left == 0))? {
            self.unsent = None;
        }
        // Nothing else is left to do if the transport stores completions by itself.
        if !self.is_waiting() {
            return Ok(());
        }
        let reached = match self.queue.progress() {
            Ok(reached) => reached,
            Err(error) => return self.unless_closed(error).map(drop),
        };
        if self.last.is_some_and(|ticket| ticket <= reached) {
            self.last = None;
        }
        let Completed::ByProxy(word) = &self.completed else { return Ok(()) };
        let mut completed = None;
        while let Some((ticket, end)) = self.awaited.front()
            && *ticket <= reached
        {
            completed = Some(*end);
            self.awaited.pop_front();
        }
        completed.map_or(Ok(()), |end| store(word, end))
    }

    /// Checks whether operations that were handed over have failed, even if nobody has asked whether they are
    /// complete.
    fn check(&mut self) -> Result<()> {
        let progress = self.queue.progress();
        progress
            .map_or_else(|error| self.unless_closed(error).map(drop), |_| Ok(()))
            .map_err(|error| self.named(error))
    }

    /// Returns `false` instead of a failure for a peer that has closed its side, if only a stop waits for the
    /// connection, as in `finish`.
    fn unless_closed(&mut self, error: mscclpp_core::Error) -> Result<bool> {
        match error {
            mscclpp_core::Error::PeerClosed { .. } if self.awaited.is_empty() && self.unsent.is_none() => {
                self.last = None;
                Ok(false)
            }
            error => Err(error.into()),
        }
    }

    /// Returns the error of handing over the operations of the unsent triggers.
    fn named(&self, error: Error) -> Error {
        let (peer, source) = (self.queue.connection().label(), Arc::new(error));
        match self.unsent {
            Some((first, Last { position, trigger })) if first == position => {
                Error::Trigger { position, trigger, peer: Some(peer), source }
            }
            Some((first, Last { position: last, .. })) => Error::Triggers { first, last, peer, source },
            None => Arc::unwrap_or_clone(source),
        }
    }
}

/// Stores the completed position. A thread that acquires the value finds everything complete, because the queue
/// reported that before.
fn store(word: &PinnedBuffer, end: FifoPosition) -> Result<()> {
    word.word(0)?.store(end.raw(), Ordering::Release);
    Ok(())
}

/// The routes of a connection, by destination and source.
struct Routes {
    rows: Box<[Option<Row>]>,
}

type Row = Box<[Option<RouteId>]>;

impl Routes {
    fn new() -> Self {
        Self { rows: (0..MAX_MEMORIES).map(|_| None).collect() }
    }

    fn find(&mut self, trigger: ProxyTrigger, make: impl FnOnce() -> Result<RouteId>) -> Result<RouteId> {
        let at = |id: MemoryId| id.raw() as usize;
        let row = self.rows[at(trigger.dst_memory())]
            .get_or_insert_with(|| (0..MAX_MEMORIES).map(|_| None).collect());
        match &mut row[at(trigger.src_memory())] {
            Some(route) => Ok(*route),
            none => Ok(*none.insert(make()?)),
        }
    }
}
