//! How ranks on several nodes set up collectives together.

use mscclpp::{Platform, Transport, TransportFlags};

use crate::{CollectivesBuilder, Error, Result, calls::Counters, group::Group};

use super::{Network, Nodes, NodesModel, Topology};

impl CollectivesBuilder {
    /// The transport between ranks on different nodes: Ethernet if not given. A rank may give an adapter, such as
    /// [`Transport::IB0`], and another rank another one; either all give adapters, or all Ethernet.
    /// [`between_nodes_by_nearest_adapter`](Self::between_nodes_by_nearest_adapter) gives each rank the nearest.
    ///
    /// Within a node, ranks reach each other's memory as ever. Between nodes, port channels move the data. The selector and
    /// [algorithms](Self::algorithm) of the program are asked for what is done within a node, or not at all; memory that is
    /// registered is not used, and there are neither [`check_calls`](Self::check_calls) nor
    /// [`all_reduce_rows`](crate::Collectives::all_reduce_rows). It takes as much [scratch](Self::scratch) again,
    /// of which three quarters are page-locked host memory over Ethernet.
    pub fn between_nodes(mut self, transport: Transport) -> Self {
        self.between_nodes = Some(transport);
        self
    }

    /// As [`between_nodes`](Self::between_nodes), by RDMA adapters: each rank's device has the one that is nearest to it, as
    /// [`Context::nearest_transport`](mscclpp::Context::nearest_transport) says. All ranks give this, or an adapter.
    pub fn between_nodes_by_nearest_adapter(mut self) -> Self {
        self.between_nodes = None;
        self
    }

    /// By how many connections two ranks on different nodes move their data, no more than there is room for. If not given, 4 over
    /// Ethernet between GPUs, else 1. Each has a TCP connection of its own, with its threads, or a queue pair. Several help
    /// where one does not fill the network. All ranks give the same.
    pub fn connections(mut self, connections: u32) -> Self {
        self.connections = Some(connections.max(1));
        self
    }

    /// The network between nodes, by which an `all_reduce` chooses how it goes: what the transport is taken for, if not given.
    /// Numbers of nodes and ranks in it are not looked at. All ranks give the same.
    pub fn nodes_model(mut self, model: NodesModel) -> Self {
        self.nodes_model = Some(model);
        self
    }

    /// The nodes of the ranks, if there are several and not all goes through port channels.
    pub(crate) fn topology(&self, group: &Group) -> Result<Option<Topology>> {
        if group.ranks.len() == 1 {
            return Ok(None);
        }
        let node = match &self.node {
            Some(node) => node.clone(),
            None => mscclpp::provider::host_id().map_err(mscclpp::Error::from)?,
        };
        let topology = Topology::of(group, &node)?;
        if topology.nodes() == 1 || self.ports.is_some() {
            group.check_size()?;
            return Ok(None);
        }
        topology.check()?;
        Ok(Some(topology))
    }

    /// Connects the ranks of this node, and then those of different ones.
    pub(crate) fn connect_nodes(
        &self,
        group: &Group,
        topology: Topology,
        scratch: u64,
        counters: &Counters,
    ) -> Result<Nodes> {
        if self.check_calls {
            return Err(Error::InvalidArgument(
                "check_calls(true) with ranks on several nodes; it compares calls of ranks on one".into(),
            ));
        }
        let locals = topology.locals();
        let local = match locals.len() {
            1 => None,
            _ => {
                let ranks = locals.iter().map(|r| group.ranks[*r]);
                let (node, algorithms) = (Some("one".into()), Vec::new());
                let builder = Self { node, algorithms, among_nodes: true, ..self.clone() };
                Some(builder.ranks(ranks).connect()?)
            }
        };
        let adapter = || self.comm.context().nearest_transport(TransportFlags::ALL_IB, &self.gpu);
        let transport = self.between_nodes.map_or_else(adapter, Ok).map_err(mscclpp::Error::from)?;
        let model = self.nodes_model.unwrap_or_else(|| NodesModel::of(transport));
        let model = NodesModel { nodes: topology.nodes() as u32, ranks: topology.fewest() as u32, ..model };
        model.predict(1)?;
        let usual =
            if transport == Transport::ETHERNET && self.gpu.platform() != Platform::Sim { 4 } else { 1 };
        let connections = self.connections.unwrap_or(usual);
        group.agree(&[
            ("nodes_model (latency)", model.latency.to_bits()),
            ("nodes_model (message)", model.message.to_bits()),
            ("nodes_model (bandwidth)", model.bandwidth.to_bits()),
            ("connections", connections.into()),
        ])?;
        let network = Network { transport, tag: self.tag, connections };
        tracing::info!(
            target: "mscclpp::conn", rank = group.ranks[group.rank], nodes = topology.nodes(), here = ?topology.locals(),
            "collectives of ranks on several nodes, over {transport:?}"
        );
        Nodes::connect(&self.comm, &self.gpu, group, (topology, local, model), network, scratch, counters)
    }
}
