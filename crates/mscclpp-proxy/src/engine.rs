//! What a proxy service does with triggers, on its thread.
//!
//! # Invariants
//! 1. The operations of a connection go to its one queue in the order of their positions.
//! 2. The completed position of a connection is raised to `p + 1` only when everything that its triggers up to `p` asked
//!    for is complete at the peer: by the transport, in the queue's order, or here, when the ticket of a flush asked for
//!    behind them is reached.
//! 3. Nothing blocks, takes a lock that others hold for long, or allocates, once each semaphore and pair of memories has
//!    been used.

use std::{collections::VecDeque, sync::Arc, sync::atomic::Ordering};

use mscclpp_core::{Route, SendQueue, Signaller};
use mscclpp_gpu::PinnedBuffer;

use crate::{
    Error, MemoryId, Progress, ProxyHandler, ProxyHandlerResult, ProxyTrigger, Result, TriggerKind,
    lane::Completed,
    service::Inner,
    trigger::{MAX_MEMORIES, MAX_SEMAPHORES},
};

/// How many completions of a connection are waited for one by one; those beyond are told together.
const MAX_AWAITED: usize = 256;

pub(crate) struct Engine {
    // Declared in the order of closing: queues end what is under way, signallers give themselves back, so that whoever
    // has them next stores no count before an earlier one has landed, then the memory may go.
    /// By connection.
    ways: Vec<Option<Way>>,
    /// By semaphore.
    ports: Box<[Option<Port>]>,
    /// The ways that wait for completions.
    awaiting: Vec<usize>,
    inner: Arc<Inner>,
}

/// A semaphore: its connection, and what signals it.
struct Port {
    way: usize,
    signaller: Signaller,
}

/// A connection.
struct Way {
    queue: SendQueue,
    routes: Routes,
    completed: Completed,
    /// Tickets and the positions that are complete with them, both growing.
    awaited: VecDeque<(u64, u64)>,
    /// The ticket that a stop waits for.
    last: Option<u64>,
}

impl Engine {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        let ports = (0..MAX_SEMAPHORES).map(|_| None).collect();
        Self { ports, ways: Vec::new(), awaiting: Vec::new(), inner }
    }

    fn carry_out(&mut self, trigger: ProxyTrigger, position: u64) -> Result<()> {
        let id = trigger.semaphore() as usize;
        if self.ports[id].is_none() {
            self.open_port(id)?;
        }
        let Self { ports, ways, awaiting, inner } = self;
        let Some(Port { way: number, signaller }) = &mut ports[id] else { return Ok(()) };
        let Some(way) = &mut ways[*number] else { return Ok(()) };
        let kind = trigger.kind();
        if kind.is_empty() {
            return Err(Error::InvalidArgument("it asks for nothing".to_owned()));
        }
        if kind.has(TriggerKind::DATA) {
            let route = way.routes.find(trigger, || {
                let memory = |id| inner.memories.find("memory", id);
                Ok(way.queue.route(memory(trigger.dst_memory())?, memory(trigger.src_memory())?)?)
            })?;
            way.queue.write(route, trigger.dst_offset(), trigger.src_offset(), trigger.size())?;
        }
        // Before anybody can know that it is done: who does finds it counted.
        if let Some(lane) = inner.lanes.get(*number as u32) {
            lane.counts.note(trigger, position);
        }
        let signaller = kind.has(TriggerKind::FLAG).then_some(signaller);
        if signaller.is_some() || kind.has(TriggerKind::SYNC) {
            // `progress` leaves only those out that have nothing to wait for.
            let is_listed = way.is_waiting();
            way.signal_and_tell(signaller, position + 1)?;
            if !is_listed && way.is_waiting() {
                awaiting.push(*number);
            }
        }
        Ok(())
    }

    /// At the first trigger of a semaphore: takes over what was prepared when it was added.
    #[cold]
    fn open_port(&mut self, id: usize) -> Result<()> {
        let entry = self.inner.semaphores.find("semaphore", id as u32)?;
        let lane = self.inner.lanes.find("connection", entry.lane)?;
        let number = entry.lane as usize;
        if self.ways.len() <= number {
            self.ways.resize_with(number + 1, || None);
        }
        if self.ways[number].is_none() {
            let taken = || Error::InvalidArgument("the connection's queue is in use already".to_owned());
            self.ways[number] = Some(Way {
                queue: lane.queue.lock().take().ok_or_else(taken)?,
                routes: Routes::new(),
                completed: lane.completed.clone(),
                awaited: VecDeque::with_capacity(MAX_AWAITED),
                last: None,
            });
            self.awaiting.reserve(self.ways.len());
        }
        let taken = || Error::InvalidArgument("the semaphore's signals are counted already".to_owned());
        let signaller = entry.signaller.lock().take().ok_or_else(taken)?;
        self.ports[id] = Some(Port { way: number, signaller });
        Ok(())
    }

    fn named(&self, error: Error, trigger: ProxyTrigger, position: u64) -> Error {
        let entry = self.inner.semaphores.get(trigger.semaphore());
        let peer = entry.map(|entry| entry.semaphore.connection().label());
        Error::Trigger { position, trigger, peer, source: Arc::new(error) }
    }
}

impl ProxyHandler for Engine {
    fn handle(&mut self, trigger: ProxyTrigger, position: u64) -> Result<ProxyHandlerResult> {
        match self.carry_out(trigger, position) {
            Ok(()) => Ok(ProxyHandlerResult::Continue),
            Err(error) => Err(self.named(error, trigger, position)),
        }
    }

    fn progress(&mut self) -> Result<Progress> {
        let ways = &mut self.ways;
        let mut result = Ok(());
        self.awaiting.retain(|number| {
            let Some(way) = &mut ways[*number] else { return false };
            if let Err(error) = way.progress() {
                result = Err(error);
            }
            way.is_waiting()
        });
        result?;
        Ok(if self.awaiting.is_empty() { Progress::Idle } else { Progress::Busy })
    }

    /// Also where completions are told without the thread, and behind puts that nothing was asked for behind.
    fn finish(&mut self) -> Result<()> {
        for (number, way) in self.ways.iter_mut().enumerate() {
            let Some(way) = way else { continue };
            let is_listed = way.is_waiting();
            way.last = match way.queue.request_flush() {
                Ok(ticket) => Some(ticket),
                // Nobody is left who could miss what is incomplete; what kernels wait for is still in `awaited`.
                Err(mscclpp_core::Error::PeerClosed { .. }) => None,
                Err(error) => return Err(error.into()),
            };
            if !is_listed && way.is_waiting() {
                self.awaiting.push(number);
            }
        }
        Ok(())
    }

    fn check(&mut self) -> Result<()> {
        for lane in self.inner.lanes.iter() {
            match lane.connection.check() {
                // A peer that has nothing more to do may go first.
                Ok(()) | Err(mscclpp_core::Error::PeerClosed { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn failed(&mut self, error: &Error) {
        self.inner.abort_semaphores(error);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.ways.clear();
        self.ports.fill_with(|| None);
        self.inner.words_may_go();
    }
}

impl Way {
    /// Signals, if there is a signaller, and has kernels told when that and all before it is complete.
    fn signal_and_tell(&mut self, signaller: Option<&mut Signaller>, end: u64) -> Result<()> {
        if let Completed::ByTransport(word) = self.completed {
            match signaller {
                // SAFETY: the word is in the service's memory for its connections, which `Engine::drop` keeps until
                // the stores are done.
                Some(signaller) => unsafe { self.queue.signal_and_store(signaller, word, end)? },
                // SAFETY: as above.
                None => unsafe { self.queue.store_when_complete(word, end)? },
            }
            return Ok(());
        }
        if let Some(signaller) = signaller {
            self.queue.signal(signaller)?;
        }
        let ticket = self.queue.request_flush()?;
        if self.awaited.len() == MAX_AWAITED {
            // With the last one; both only grow, so nothing is told too early.
            self.awaited.pop_back();
        }
        self.awaited.push_back((ticket, end));
        Ok(())
    }

    fn is_waiting(&self) -> bool {
        !self.awaited.is_empty() || self.last.is_some()
    }

    /// Tells kernels what has become complete.
    fn progress(&mut self) -> Result<()> {
        let reached = match self.queue.progress() {
            // As in `finish`.
            Err(mscclpp_core::Error::PeerClosed { .. }) if self.awaited.is_empty() => {
                self.last = None;
                return Ok(());
            }
            reached => reached?,
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
}

/// Whoever acquires the value finds everything complete: the queue said so before.
fn store(word: &PinnedBuffer, end: u64) -> Result<()> {
    word.word64(0)?.store(end, Ordering::Release);
    Ok(())
}

/// The routes of a connection, by destination and source.
struct Routes {
    rows: Box<[Option<Row>]>,
}

type Row = Box<[Option<Route>]>;

impl Routes {
    fn new() -> Self {
        Self { rows: (0..MAX_MEMORIES).map(|_| None).collect() }
    }

    fn find(&mut self, trigger: ProxyTrigger, make: impl FnOnce() -> Result<Route>) -> Result<&Route> {
        let at = |id: MemoryId| id as usize;
        let row = self.rows[at(trigger.dst_memory())]
            .get_or_insert_with(|| (0..MAX_MEMORIES).map(|_| None).collect());
        match &mut row[at(trigger.src_memory())] {
            Some(route) => Ok(route),
            none => Ok(none.insert(make()?)),
        }
    }
}
