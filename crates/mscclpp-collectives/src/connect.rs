//! Ranks meet, learn who is on which node, and connect.

use std::sync::Arc;

use mscclpp::{Platform, Transport, TransportFlags, engine::Group};

use crate::{
    Collectives, CollectivesBuilder, Result,
    choice::NodesModel,
    env,
    nodes::{Network, Nodes, Topology},
    one_node::OneNode,
    rank::{Engine, Publisher, RankState, Watch, check_size, devices, meet, purpose, sharing, unreached},
};

impl CollectivesBuilder {
    /// Sets them up, together with the other ranks, which make the same call. Blocks until all are there.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for ranks that do not exist or are named twice, without this
    /// one among them, or more than [`MAX_RANKS`](crate::MAX_RANKS) on one node or
    /// [`MAX_RANKS_OF_NODES`](crate::MAX_RANKS_OF_NODES) on several; for no blocks or too little scratch, and a malformed
    /// `MSCCLPP_CHECK_CALLS` or `MSCCLPP_GRAPH_REGISTER`. [`Error::Below`](crate::Error::Below) if ranks ask for different
    /// things, or run different builds of this library ([`Differ`](mscclpp::Error::Differ)), if devices do not reach each
    /// other's memory and Ethernet is not to be had either, or a rank is lost meanwhile. If a rank cannot load its kernels or
    /// allocate its scratch, all ranks of its node fail. If it fails otherwise, the others wait for it until it leaves or aborts.
    pub fn connect(mut self) -> Result<Collectives> {
        let checks = self.options.check_calls.map_or_else(env::check_calls, Ok)?;
        self.options.check_calls = Some(checks);
        let group = meet(&self.comm, self.ranks.clone(), self.tag)?;
        let Some(topology) = self.topology(&group)? else {
            let (rank, engine) = self.connect_one_node(group, false)?;
            tracing::info!(
                target: "mscclpp::conn", rank = rank.group.ranks()[rank.rank()], ranks = rank.n_ranks(), nodes = 1,
                "collectives through the memory of the ranks' devices; this rank has {}", self.gpu
            );
            return Collectives::of(rank, engine);
        };
        let on_node = Some(topology.locals().len());
        let rank = RankState::new(&self.comm, &self.gpu, group, self.options.clone(), on_node)?;
        // The steps of a call within a node are none of the program's calls.
        self.options.check_calls = Some(false);
        let engine = self.connect_nodes(&rank, topology)?;
        Collectives::of(rank, engine)
    }

    /// Connects ranks that reach each other's memory. `among_nodes`: they are those of one of several nodes.
    fn connect_one_node(&self, group: Group, among_nodes: bool) -> Result<(RankState, OneNode)> {
        check_size(&group)?;
        let rank = RankState::new(&self.comm, &self.gpu, group, self.options.clone(), None)?;
        let engine = OneNode::connect(&rank, among_nodes)?;
        Ok((rank, engine))
    }

    /// The nodes of the ranks, if there are several.
    fn topology(&self, group: &Group) -> Result<Option<Topology>> {
        if group.ranks().len() == 1 {
            return Ok(None);
        }
        let node = match &self.options.node {
            Some(node) => node.clone(),
            None => mscclpp::provider::host_id().map_err(mscclpp::Error::from)?,
        };
        let topology = Topology::of(group, &node)?;
        let devices = devices(group, &self.gpu)?;
        let unreached = unreached(group, &self.gpu, &devices, topology.locals())?;
        let seen = self.gpu.platform().device_count()?;
        let sharing = sharing(group.ranks(), &devices, topology.locals(), seen);
        if sharing.first() == Some(&group.ranks()[group.rank()]) {
            // Shown unless the log is told otherwise, as all of WAIT.
            tracing::warn!(
                target: "mscclpp::wait",
                "ranks {sharing:?} share devices, while this node has devices without a rank: their kernels wait for each other's \
                 room on them. Usually each rank takes the device of its number on the node"
            );
        }
        let transport = self.options.between_nodes;
        let has_transport = transport.is_none_or(|transport| self.comm.context().serves(transport));
        let said = group.all_say([unreached.is_some(), has_transport])?;
        // Without a transport between nodes, connecting within the node says what is the matter.
        let topology = match said.iter().all(|[_, has_transport]| *has_transport) {
            true => topology.apart(|rank| said[rank][0]),
            false => topology,
        };
        if let Some(unreached) = unreached.filter(|_| topology.locals().len() == 1) {
            tracing::warn!(
                target: "mscclpp::conn", rank = group.ranks()[group.rank()], unreached = group.ranks()[unreached],
                "devices do not reach each other's memory: collectives go between nodes of one rank each, which is slower"
            );
        }
        if topology.nodes() == 1 {
            return Ok(None);
        }
        topology.check()?;
        Ok(Some(topology))
    }

    /// Connects the ranks of this node, and then those of different ones.
    fn connect_nodes(&self, rank: &RankState, topology: Topology) -> Result<Nodes> {
        let (group, options) = (&rank.group, &rank.options);
        let locals = topology.locals();
        let local = match locals.len() {
            1 => None,
            _ => {
                let ranks = locals.iter().map(|r| group.ranks()[*r]).collect();
                let of_node = meet(&self.comm, Some(ranks), self.tag)?;
                Some(self.connect_one_node(of_node, true)?)
            }
        };
        let adapter = || self.comm.context().nearest_transport(TransportFlags::ALL_IB, &self.gpu);
        let transport = options.between_nodes.map_or_else(adapter, Ok).map_err(mscclpp::Error::from)?;
        let model = options.nodes_model.unwrap_or_else(|| NodesModel::of(transport));
        let model = NodesModel { nodes: topology.nodes() as u32, ranks: topology.fewest() as u32, ..model };
        model.predict(1)?;
        let usual =
            if transport == Transport::ETHERNET && self.gpu.platform() != Platform::Sim { 4 } else { 1 };
        let connections = options.connections.unwrap_or(usual);
        group.agree(&[
            ("nodes_model (latency)", model.latency.to_bits()),
            ("nodes_model (message)", model.message.to_bits()),
            ("nodes_model (bandwidth)", model.bandwidth.to_bits()),
            ("connections", connections.into()),
        ])?;
        let network = Network { transport, tag: self.tag, connections };
        tracing::info!(
            target: "mscclpp::conn", rank = group.ranks()[group.rank()], ranks = group.ranks().len(), nodes = topology.nodes(),
            here = ?topology.locals(), "collectives over {transport:?} between nodes; this rank has {}", self.gpu
        );
        Nodes::connect(rank, topology, local, model, network)
    }
}

impl Collectives {
    fn of(rank: RankState, engine: impl Engine + 'static) -> Result<Self> {
        let semaphores = engine.semaphores().cloned().collect();
        let watch = Watch::new(&rank.group, rank.options.checks(), &rank.order, semaphores)?;
        let (rank, engine): (_, Arc<dyn Engine>) = (Arc::new(rank), Arc::new(engine));
        let is_reached = engine.maps_memory() && rank.n_ranks() > 1;
        let publisher = is_reached.then(|| Publisher::new(&rank, &engine)).transpose()?;
        Ok(Self { publisher: publisher.map(Arc::new), rank, engine, watch: Arc::new(watch) })
    }

    /// Groups of these ranks: those that give the same `color` become one, in the order of their `key`, ranks with
    /// the same key in their present order. A rank without a color gets none. Every rank makes this call; it blocks
    /// until all do. A group has the same options, but for its ranks.
    ///
    /// # Errors
    /// The same as of [`CollectivesBuilder::connect`].
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Self>> {
        let (rank, group) = (&*self.rank, &self.rank.group);
        let own = [color.map_or(0, |color| 1 + u64::from(color)), u64::from(key.cast_unsigned())];
        let (all, tag) = {
            let mut splits = rank.splits.lock();
            let of_part = group.telling(purpose::PART, *splits);
            *splits += 1;
            (group.telling(purpose::SPLIT, 0).all_gather(own)?, of_part.tag())
        };
        let keys = all.iter().enumerate().map(|(r, [_, key])| Ok(group.u32_of(r, *key)?.cast_signed()));
        let keys = keys.collect::<Result<Vec<i32>>>()?;
        if color.is_none() {
            return Ok(None);
        }
        let mut members: Vec<usize> = (0..all.len()).filter(|r| all[*r][0] == own[0]).collect();
        members.sort_by_key(|r| keys[*r]);
        let builder = CollectivesBuilder::new(&rank.comm, &rank.gpu, rank.options.clone());
        builder.ranks(members.iter().map(|r| group.ranks()[*r])).tag(tag).connect().map(Some)
    }
}

#[cfg(all(test, feature = "cuda-ipc"))]
mod tests {
    use mscclpp::{Communicator, Context, ContextExt, LocalBootstrap};

    use super::*;

    #[test]
    fn a_group_asks_for_what_all_asked_for() {
        let bootstrap = LocalBootstrap::group(1).remove(0);
        let comm = Communicator::with_context(Arc::new(bootstrap), Context::on(Platform::Sim));
        let gpu = comm.context().gpu(0).unwrap();
        let asked = |collectives: &Collectives| {
            let options = &collectives.rank.options;
            (options.max_blocks, options.calls_at_once, options.overlap, collectives.rank.scratch_bytes)
        };
        let usual = Collectives::new(&comm, &gpu).unwrap();
        let builder = Collectives::builder(&comm, &gpu).max_blocks(3).calls_at_once(5).scratch(1 << 20);
        let other = builder.overlap(true).connect().unwrap();
        for (all, expected) in [(usual, (None, 2, false, 16 << 20)), (other, (Some(3), 5, true, 1 << 20))] {
            let group = all.split(Some(0), 0).unwrap().expect("a group");
            assert_eq!([asked(&all), asked(&group)], [expected; 2]);
        }
    }
}
