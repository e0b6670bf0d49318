//! Collectives of ranks on several nodes: within a node through each other's memory, and between nodes through port
//! channels. `docs/design/nodes.md` says why it is so.

use std::sync::atomic::AtomicBool;

use mscclpp::{Event, Semaphore, Stream, gpu::Owner};
use parking_lot::Mutex;

use crate::{
    Kind, ReduceOp, Result,
    choice::NodesModel,
    handle::{MAX_RANKS_OF_NODES, Message},
    one_node::OneNode,
    plan::{Exchange, Messages},
    rank::{Call, Engine, Lengths, RankState, can_fork},
};

use super::{
    channels::{Channels, Network, Use},
    failing,
    steps::{Across, Maker, Portion, Step},
    topology::Topology,
};

/// The engine of a rank whose peers are on several nodes.
pub(crate) struct Nodes {
    topology: Topology,
    local: Option<Local>,
    channels: Channels,
    model: NodesModel,
    /// Streams for parts of calls that run beside the rest: several only while some of them are in captures.
    beside: Mutex<Vec<Stream>>,
    /// Whether the other ranks were notified that this one's calls have failed.
    notified: AtomicBool,
}

/// The collectives of the ranks of this node, if there are several.
pub(crate) type Local = (RankState, OneNode);

/// The messages of a call, split into those within the node and the rest.
struct SplitMessages<'a> {
    local: Messages,
    /// For each rank on another node, the messages that it is sent and those that it sends.
    remote: Vec<(usize, &'a [Vec<Message>; 2])>,
}

impl Nodes {
    /// Connects the ranks of different nodes; those of this one have done so already. Blocks.
    pub(crate) fn connect(
        rank: &RankState,
        topology: Topology,
        local: Option<Local>,
        model: NodesModel,
        network: Network,
    ) -> Result<Self> {
        let of_node = failing::of_node(local.as_ref().map(|(_, engine)| engine));
        // If one gives up, it ends those behind it, within the node and between nodes.
        let epochs = local.as_ref().map_or(&rank.counters, |(local, _)| &local.counters).epochs();
        let kept = local.iter().map(|(_, local)| local.owner().clone()).chain(rank.owner()).collect();
        let channels = Channels::connect(rank, &topology, network, epochs, kept, of_node)?;
        Ok(Self {
            topology,
            local,
            channels,
            model,
            beside: Mutex::default(),
            notified: AtomicBool::new(false),
        })
    }

    fn maker(&self) -> Maker<'_> {
        let scratch = &self.channels.scratch;
        Maker {
            topology: &self.topology,
            model: self.model,
            scratch: scratch.ptr(),
            scratch_bytes: scratch.len(),
        }
    }

    /// # Safety
    /// The same as of [`Engine::exchange`].
    unsafe fn step(&self, rank: &RankState, step: &Step, call: &Call<'_>) -> Result<()> {
        // SAFETY: the caller's promise, for each of these.
        unsafe {
            match step {
                Step::Copy { to, from, bytes } => call.stream.copy(*to, *from, *bytes)?,
                Step::Local(plan) => {
                    if let Some((local, engine)) = &self.local {
                        engine.exchange_one(local, None, plan, call)?;
                    }
                }
                Step::Move { moves, raw } => {
                    let moves: Vec<_> = moves.iter().map(|it| (*it, Use::Collective)).collect();
                    self.channels.exchange(rank, &self.topology, &moves, *raw, call)?;
                }
                Step::Reduce(reduction) => self.channels.reduce(rank, &self.topology, reduction, call)?,
                Step::Portions(portions) => self.portions(rank, portions, call)?,
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

    /// Puts portions into the stream. The steps between nodes go into a stream beside, in the order of the portions,
    /// where one can be forked.
    ///
    /// # Safety
    /// The same as of [`Engine::exchange`].
    unsafe fn portions(&self, rank: &RankState, portions: &[Portion], call: &Call<'_>) -> Result<()> {
        let stream = call.stream;
        let side = if self.local.is_some() && portions.len() > 1 { self.side(stream)? } else { None };
        let beside = side.as_ref().unwrap_or(stream);
        let all = |steps: &[Step], stream: &Stream| {
            let call = Call { stream, ..*call };
            // SAFETY: the caller's promise.
            steps
                .iter()
                .filter(|step| step.is_some())
                .try_for_each(|step| unsafe { self.step(rank, step, &call) })
        };
        let one = std::slice::from_ref;
        // The order of the node's steps is the same in either case: other ranks may not be able to fork, or not need to.
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
                let done = side.is_some().then(|| rank.gpu.event(false)).transpose()?;
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

    /// # Safety
    /// The same as of [`Engine::move_messages`].
    unsafe fn send_rounds(
        &self,
        rank: &RankState,
        rounds: Vec<Vec<(Across, Use)>>,
        call: &Call<'_>,
    ) -> Result<()> {
        for round in rounds {
            // SAFETY: the caller's promise.
            unsafe { self.channels.exchange(rank, &self.topology, &round, None, call)? };
        }
        Ok(())
    }
}

impl Engine for Nodes {
    fn n_nodes(&self) -> usize {
        self.topology.nodes()
    }

    fn device_bytes(&self) -> u64 {
        let local = self
            .local
            .as_ref()
            .map_or(0, |(local, engine)| engine.device_bytes() + local.counters.buffer.len());
        local + self.channels.device_bytes()
    }

    fn suspendable_bytes(&self) -> u64 {
        self.local.as_ref().map_or(0, |(_, engine)| engine.suspendable_bytes())
    }

    /// The memory between nodes stays: adapters and the threads of port channels have it.
    unsafe fn suspend(&self, _rank: &RankState) -> Result<()> {
        // SAFETY: the caller's promise.
        self.local.as_ref().map_or(Ok(()), |(local, engine)| unsafe { engine.suspend(local) })
    }

    fn resume(&self, _rank: &RankState) -> Result<()> {
        self.local.as_ref().map_or(Ok(()), |(local, engine)| engine.resume(local))
    }

    fn owner(&self) -> &Owner {
        &self.channels.owner
    }

    fn semaphores(&self) -> Box<dyn Iterator<Item = &Semaphore> + '_> {
        // A failure between nodes has ended the waits within this one: it is the cause.
        let local = self.local.iter().flat_map(|(_, local)| local.semaphores());
        Box::new(self.channels.semaphores().chain(local))
    }

    fn check_waits(&self) -> Result<(), mscclpp::Error> {
        let within = || self.local.iter().try_for_each(|(_, local)| local.check_waits());
        self.channels.check_waits().and_then(|()| within()).inspect_err(|_| self.tell_failure())
    }

    fn other_length(&self, rank: &RankState) -> Result<Option<Lengths>> {
        let within = self.local.as_ref().map_or(Ok(None), |(local, engine)| engine.other_length(local))?;
        within.map_or_else(|| self.channels.other_length(rank, &self.topology), |lengths| Ok(Some(lengths)))
    }

    fn tell_failure(&self) {
        failing::tell_others(self, &self.notified);
    }

    fn barrier(&self) -> Kind<'static> {
        Kind::AllReduce(ReduceOp::Sum)
    }

    unsafe fn exchange(
        &self,
        rank: &RankState,
        exchanges: &[Exchange<'_, '_>],
        call: &Call<'_>,
    ) -> Result<()> {
        let barrier = rank.barrier(self.barrier());
        for (request, plan) in exchanges {
            let request = if request.kind == Kind::Barrier { &barrier } else { *request };
            for step in self.maker().steps(request, plan) {
                // SAFETY: the caller's promise.
                unsafe { self.step(rank, &step, call)? };
            }
        }
        Ok(())
    }

    /// Puts messages within the node and to others beside each other: a rank may wait for one of either kind only because another
    /// waits for one of the other kind.
    unsafe fn move_messages(&self, rank: &RankState, messages: &Messages, call: &Call<'_>) -> Result<()> {
        let messages = SplitMessages::new(&self.topology, messages);
        let batches = messages.local.batches(self.topology.index);
        let rounds = messages.rounds();
        let Some((local, engine)) = self.local.as_ref().filter(|_| !batches.is_empty()) else {
            // SAFETY: the caller's promise.
            return unsafe { self.send_rounds(rank, rounds, call) };
        };
        let side = if rounds.is_empty() { None } else { self.side(call.stream)? };
        let put = |beside: &Stream| {
            for batch in batches {
                // SAFETY: the caller's promise.
                unsafe { engine.move_batch(local, &batch, &Call { stream: beside, ..*call })? };
            }
            // SAFETY: the caller's promise.
            unsafe { self.send_rounds(rank, rounds, call) }
        };
        match &side {
            Some(side) => side.join(&[call.stream], || put(side)),
            None => put(call.stream),
        }
    }
}

impl<'a> SplitMessages<'a> {
    fn new(topology: &Topology, messages: &'a Messages) -> Self {
        let mut local = Messages::new(topology.locals().len());
        for (index, peer) in topology.locals().iter().enumerate() {
            for (receives, of) in messages.of(*peer).iter().enumerate() {
                of.iter().for_each(|message| local.add(index, receives == 1, *message));
            }
        }
        let remote = topology.remote().into_iter().map(|peer| (peer, messages.of(peer))).collect();
        Self { local, remote }
    }

    /// The launches for other nodes. The n-th messages of two ranks are in round n on both sides: in the launch for the half of
    /// the ranks that the peer is in.
    fn rounds(&self) -> Vec<Vec<(Across, Use)>> {
        let most = self.remote.iter().flat_map(|(_, of)| of.iter().map(Vec::len)).max().unwrap_or(0);
        // Two messages for each of so many peers fit into a launch. Who is in the lower part is so for all ranks.
        let parts = |n: usize| [0, 1].map(|part| (n, part * MAX_RANKS_OF_NODES / 2));
        let round = |(n, first): (usize, usize)| {
            let part = first..first + MAX_RANKS_OF_NODES / 2;
            let peers = self.remote.iter().copied().filter(|(peer, _)| part.contains(peer));
            let of = peers.flat_map(|(peer, [sent, received])| {
                let send = sent.get(n).map(|message| {
                    (Across::to(peer, message.memory, message.bytes), Use::Message { sent: true })
                });
                let recv = received.get(n).map(|message| {
                    (Across::from(peer, message.memory, message.bytes), Use::Message { sent: false })
                });
                [send, recv]
            });
            of.flatten().collect::<Vec<_>>()
        };
        (0..most).flat_map(parts).map(round).filter(|round| !round.is_empty()).collect()
    }
}
