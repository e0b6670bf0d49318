//! Collectives of ranks on several nodes: within a node through each other's memory, and between nodes through port
//! channels. `docs/design/nodes.md` says why it is so.

mod cost;
mod failing;
mod links;
mod moving;
mod patterns;
mod reducing;
mod setup;
mod steps;
mod topology;

use std::sync::atomic::AtomicBool;

use mscclpp::{Communicator, DeviceBuffer, DevicePtr, Event, Gpu, Semaphore, Stream, Transport, gpu::Owner};

use parking_lot::Mutex;

use crate::{
    Collectives, DataType, Kind, ReduceOp, Request, Result,
    calls::{CollectivesState, Counters, Engine},
    group::Group,
    handle::{MAX_RANKS_OF_NODES, Message},
    messages::Messages,
    order::can_fork,
    plan::{Planned, plan},
};

pub use cost::{NodesModel, NodesPrediction, Pattern};
use links::{Links, Network, Use};
use steps::{Across, Maker, Portion, Step};
use topology::Topology;

/// What a rank has whose peers are on several nodes.
pub(crate) struct Nodes {
    topology: Topology,
    /// The collectives of this node's ranks, if there are several.
    local: Option<Collectives>,
    links: Links,
    model: NodesModel,
    /// For parts of calls that run beside the rest: several only while some of them are in captures.
    beside: Mutex<Vec<Stream>>,
    /// Whether the other ranks were told that this one's calls have failed.
    notified: AtomicBool,
}

impl Collectives {
    /// On how many nodes they are: 1 also where all goes [by ports](crate::CollectivesBuilder::by_ports).
    #[must_use]
    pub fn n_nodes(&self) -> usize {
        match &self.inner.engine {
            Engine::Nodes(nodes) => nodes.count(),
            Engine::Memory(_) | Engine::Ports(_) => 1,
        }
    }
}

/// The messages of a call: to and from each rank, in the order in which they were given.
struct AllMessages {
    local: Messages,
    /// Of each rank, what it is sent and what it sends.
    remote: Vec<[Vec<Message>; 2]>,
}

impl Nodes {
    /// Connects the ranks of different nodes; those of this one have done so already.
    pub(crate) fn connect(
        comm: &Communicator,
        gpu: &Gpu,
        group: &Group,
        (topology, local, model): (Topology, Option<Collectives>, NodesModel),
        network: Network,
        budget: u64,
        counters: &Counters,
    ) -> Result<Self> {
        let of_node = failing::of_node(local.as_ref());
        let mut links = Links::connect(comm, gpu, group, &topology, network, budget, of_node)?;
        // One that gives up ends those behind it, within the node and between nodes.
        links.call.epochs = local.as_ref().map_or(counters, |local| &local.inner.counters).epochs();
        Ok(Self { topology, local, links, model, beside: Mutex::default(), notified: AtomicBool::new(false) })
    }

    pub(crate) fn count(&self) -> usize {
        self.topology.nodes()
    }

    pub(crate) fn model(&self) -> NodesModel {
        self.model
    }

    pub(crate) fn transport(&self) -> Transport {
        self.links.network.transport
    }

    pub(crate) fn connections(&self) -> u32 {
        self.links.network.connections
    }

    pub(crate) fn device_bytes(&self) -> u64 {
        self.local.as_ref().map_or(0, Collectives::device_bytes) + self.links.device_bytes()
    }

    /// What launches keep.
    pub(crate) fn owners(&self) -> Vec<Owner> {
        self.local.iter().map(|local| local.inner.owner.clone()).chain([self.links.owner()]).collect()
    }

    pub(crate) fn semaphores(&self) -> impl Iterator<Item = &Semaphore> {
        // What failed between nodes has ended the waits within this one: it is the cause.
        self.links.semaphores().chain(self.local.iter().flat_map(|local| local.inner.semaphores()))
    }

    /// That the waits of complete calls got what they waited for.
    pub(crate) fn check_waits_alone(&self) -> Result<(), mscclpp::Error> {
        self.links.check_waits()?;
        self.local.iter().try_for_each(|local| local.inner.check_waits())
    }

    /// Puts collectives into a stream: see [`Collectives::enqueue`].
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn submit(
        &self,
        inner: &CollectivesState,
        requests: &[Request<'_>],
        stream: &Stream,
        buffers: &[&DeviceBuffer],
    ) -> Result<()> {
        let (rank, ranks) = (inner.group.rank, inner.group.ranks.len());
        let mut messages = AllMessages::new(&self.topology, ranks);
        let mut steps = Vec::new();
        for request in requests {
            let request = if request.kind == Kind::Barrier { barrier(inner) } else { *request };
            match plan::<MAX_RANKS_OF_NODES>(&request, rank, ranks)? {
                Planned::Nothing => {}
                Planned::Exchange(plan) => steps.extend(self.maker().steps(&request, &plan)),
                Planned::Message { receives, peer, memory, bytes } => {
                    messages.add(&self.topology, peer, receives, Message { memory, bytes });
                }
            }
        }
        let own = messages.local.own(self.topology.index)?;

        let mut order = inner.order.lock();
        order.before(stream)?;
        // SAFETY: the caller's promise.
        let put = unsafe { self.put(inner, &steps, &own, &messages, stream, buffers) };
        // What is in the stream comes before calls in others, also if something behind it failed.
        order.after(stream)?;
        put
    }

    /// Puts what was planned into the stream.
    ///
    /// # Safety
    /// As for [`Self::submit`].
    unsafe fn put(
        &self,
        inner: &CollectivesState,
        steps: &[Step],
        own: &[(Message, Message)],
        messages: &AllMessages,
        stream: &Stream,
        buffers: &[&DeviceBuffer],
    ) -> Result<()> {
        for step in steps {
            // SAFETY: the caller's promise.
            unsafe { self.step(inner, step, stream, buffers)? };
        }
        for (from, to) in own {
            // SAFETY: the caller's promise.
            unsafe { stream.copy(to.memory, from.memory, from.bytes)? };
        }
        // SAFETY: the caller's promise.
        unsafe { self.move_messages(inner, messages, stream, buffers) }
    }

    /// That a request can be right.
    pub(crate) fn check(&self, inner: &CollectivesState, request: &Request<'_>) -> Result<()> {
        let request = if request.kind == Kind::Barrier { barrier(inner) } else { *request };
        plan::<MAX_RANKS_OF_NODES>(&request, inner.group.rank, inner.group.ranks.len()).map(drop)
    }

    fn maker(&self) -> Maker<'_> {
        let scratch = &self.links.scratch;
        Maker {
            topology: &self.topology,
            model: self.model,
            scratch: scratch.ptr(),
            scratch_bytes: scratch.len(),
        }
    }

    /// # Safety
    /// As for [`Nodes::submit`].
    unsafe fn step(
        &self,
        inner: &CollectivesState,
        step: &Step,
        stream: &Stream,
        buffers: &[&DeviceBuffer],
    ) -> Result<()> {
        // SAFETY: the caller's promise, for each of these.
        unsafe {
            match step {
                Step::Copy { to, from, bytes } => stream.copy(*to, *from, *bytes)?,
                Step::Local(plan) => {
                    if let Some(local) = &self.local {
                        local.inner.exchange(None, plan, stream, buffers)?;
                    }
                }
                Step::Move { moves, raw } => {
                    let moves: Vec<_> = moves.iter().map(|it| (*it, Use::Collective)).collect();
                    self.links.exchange(inner, &self.topology, &moves, *raw, stream, buffers)?;
                }
                Step::Reduce(reduction) => {
                    self.links.reduce(inner, &self.topology, reduction, stream, buffers)?;
                }
                Step::Portions(portions) => self.portions(inner, portions, stream, buffers)?,
            }
        }
        Ok(())
    }

    /// A stream into which a part of a call in `stream` may go, to run beside the rest. None where there can be none.
    fn side(&self, stream: &Stream) -> Result<Option<Stream>> {
        let mut sides = self.beside.lock();
        for side in &*sides {
            if can_fork(stream, side)? {
                return Ok(Some(side.clone()));
            }
        }
        // Simulated devices capture one stream alone.
        let side = stream.gpu().stream()?;
        if !can_fork(stream, &side)? {
            return Ok(None);
        }
        sides.push(side.clone());
        Ok(Some(side))
    }

    /// What is between nodes goes into a stream beside, in the order of the portions, as far as it can be beside.
    ///
    /// # Safety
    /// As for [`Nodes::submit`].
    unsafe fn portions(
        &self,
        inner: &CollectivesState,
        portions: &[Portion],
        stream: &Stream,
        buffers: &[&DeviceBuffer],
    ) -> Result<()> {
        let side = if self.local.is_some() && portions.len() > 1 { self.side(stream)? } else { None };
        let beside = side.as_ref().unwrap_or(stream);
        let all = |steps: &[Step], stream: &Stream| {
            // SAFETY: the caller's promise.
            steps
                .iter()
                .filter(|step| step.is_some())
                .try_for_each(|step| unsafe { self.step(inner, step, stream, buffers) })
        };
        let one = std::slice::from_ref;
        // The order of the node's steps is the same in either case: other ranks may not be able to, or not need to.
        let mut last: Option<(Option<Event>, &Portion)> = None;
        let finish = |last: Option<(Option<Event>, &Portion)>| {
            let Some((done, portion)) = last else { return Ok(()) };
            done.iter().try_for_each(|done| stream.wait_event(done))?;
            all(one(&portion.after), stream)
        };
        let mut put = || {
            for portion in portions {
                all(one(&portion.before), stream)?;
                side.iter().try_for_each(|side| side.wait_stream(stream))?;
                all(&portion.between, beside)?;
                let done = side.is_some().then(|| inner.gpu.event(false)).transpose()?;
                done.iter().try_for_each(|done| beside.record(done))?;
                finish(last.replace((done, portion)))?;
            }
            finish(last.take())
        };
        match &side {
            Some(side) => side.join(&[stream], put),
            None => put(),
        }
    }

    /// Messages within the node and to others at the same time: a rank may wait for one of either kind only because another
    /// waits for one of the other kind.
    ///
    /// # Safety
    /// As for [`Nodes::submit`].
    unsafe fn move_messages(
        &self,
        inner: &CollectivesState,
        messages: &AllMessages,
        stream: &Stream,
        buffers: &[&DeviceBuffer],
    ) -> Result<()> {
        let batches = messages.local.batches(self.topology.index);
        let rounds = messages.rounds();
        let Some(local) = self.local.as_ref().filter(|_| !batches.is_empty()) else {
            // SAFETY: the caller's promise.
            return unsafe { self.send_rounds(inner, rounds, stream, buffers) };
        };
        let side = if rounds.is_empty() { None } else { self.side(stream)? };
        let put = |beside: &Stream| {
            for batch in batches {
                // SAFETY: the caller's promise.
                unsafe { local.inner.move_messages(batch, beside, buffers)? };
            }
            // SAFETY: the caller's promise.
            unsafe { self.send_rounds(inner, rounds, stream, buffers) }
        };
        match &side {
            Some(side) => side.join(&[stream], || put(side)),
            None => put(stream),
        }
    }

    /// # Safety
    /// As for [`Nodes::submit`].
    unsafe fn send_rounds(
        &self,
        inner: &CollectivesState,
        rounds: Vec<Vec<(Across, Use)>>,
        stream: &Stream,
        buffers: &[&DeviceBuffer],
    ) -> Result<()> {
        for round in rounds {
            // SAFETY: the caller's promise.
            unsafe { self.links.exchange(inner, &self.topology, &round, None, stream, buffers)? };
        }
        Ok(())
    }
}

/// A word of each, reduced.
fn barrier(inner: &CollectivesState) -> Request<'static> {
    let words = inner.counters.barrier();
    Request {
        kind: Kind::AllReduce(ReduceOp::Sum),
        send: words,
        recv: words.add(8),
        count: 1,
        data_type: DataType::U64,
    }
}

impl AllMessages {
    fn new(topology: &Topology, ranks: usize) -> Self {
        let remote = (0..ranks).map(|_| [Vec::new(), Vec::new()]).collect();
        Self { local: Messages::new(topology.locals().len()), remote }
    }

    fn add(&mut self, topology: &Topology, peer: usize, receives: bool, message: Message) {
        if topology.node_of(peer) == topology.node {
            self.local.add(topology.index_of(peer), receives, message);
        } else if message.bytes > 0 {
            self.remote[peer][usize::from(receives)].push(message);
        }
    }

    /// The launches for other nodes: the n-th message of two ranks in each direction is in the same on both sides.
    fn rounds(&self) -> Vec<Vec<(Across, Use)>> {
        let most = self.remote.iter().flatten().map(Vec::len).max().unwrap_or(0);
        // Two messages for each of so many peers fit into a launch. Who is in the lower part is so for all ranks.
        let parts = |n: usize| [0, 1].map(|part| (n, part * MAX_RANKS_OF_NODES / 2));
        let round = |(n, first): (usize, usize)| {
            let peers = self.remote.iter().enumerate().skip(first).take(MAX_RANKS_OF_NODES / 2);
            let of = peers.flat_map(|(peer, [sent, received])| {
                let none = Across {
                    peer,
                    send: DevicePtr::NULL,
                    recv: DevicePtr::NULL,
                    send_bytes: 0,
                    recv_bytes: 0,
                };
                let send = sent.get(n).map(|message| {
                    let across = Across { send: message.memory, send_bytes: message.bytes, ..none };
                    (across, Use::Message { sent: true })
                });
                let recv = received.get(n).map(|message| {
                    let across = Across { recv: message.memory, recv_bytes: message.bytes, ..none };
                    (across, Use::Message { sent: false })
                });
                [send, recv]
            });
            of.flatten().collect::<Vec<_>>()
        };
        (0..most).flat_map(parts).map(round).filter(|round| !round.is_empty()).collect()
    }
}
