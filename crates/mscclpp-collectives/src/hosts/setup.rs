//! How ranks on several hosts set up collectives together.

use mscclpp::{Platform, Transport, TransportFlags};

use crate::{CollectivesBuilder, Error, Result, calls::Counters, group::Group};

use super::{Hosts, HostsModel, Network, Topology};

impl CollectivesBuilder {
    /// The transport between ranks on different hosts: Ethernet if not given. A rank may give an adapter, such as
    /// [`Transport::IB0`], and another rank another one; either all give adapters, or all Ethernet.
    /// [`between_hosts_by_nearest_adapter`](Self::between_hosts_by_nearest_adapter) gives each rank the nearest.
    ///
    /// Within a host, ranks reach each other's memory as ever. Between hosts, port channels move the data. The selector and
    /// [algorithms](Self::algorithm) of the program are asked for what is done within a host, or not at all; memory that is
    /// registered is not used, and there are neither [`check_calls`](Self::check_calls) nor
    /// [`all_reduce_rows`](crate::Collectives::all_reduce_rows). It takes as much [scratch](Self::scratch) again,
    /// of which three quarters are page-locked host memory over Ethernet.
    pub fn between_hosts(mut self, transport: Transport) -> Self {
        self.between_hosts = Some(transport);
        self
    }

    /// As [`between_hosts`](Self::between_hosts), by RDMA adapters: each rank's device has the one that is nearest to it, as
    /// [`Context::nearest_transport`](mscclpp::Context::nearest_transport) says. All ranks give this, or an adapter.
    pub fn between_hosts_by_nearest_adapter(mut self) -> Self {
        self.between_hosts = None;
        self
    }

    /// By how many connections two ranks on different hosts move their data, no more than there is room for. If not given, 4 over
    /// Ethernet between GPUs, else 1. Each has a TCP connection of its own, with its threads, or a queue pair. Several help
    /// where one does not fill the network. All ranks give the same.
    pub fn connections(mut self, connections: u32) -> Self {
        self.connections = Some(connections.max(1));
        self
    }

    /// The network between hosts, by which an `all_reduce` chooses how it goes: what the transport is taken for, if not given.
    /// Numbers of hosts and ranks in it are not looked at. All ranks give the same.
    pub fn hosts_model(mut self, model: HostsModel) -> Self {
        self.hosts_model = Some(model);
        self
    }

    /// The hosts of the ranks, if there are several and not all goes through port channels.
    pub(crate) fn topology(&self, group: &Group) -> Result<Option<Topology>> {
        if group.ranks.len() == 1 {
            return Ok(None);
        }
        let host = match &self.host {
            Some(host) => host.clone(),
            None => mscclpp::provider::host_id().map_err(mscclpp::Error::from)?,
        };
        let topology = Topology::of(group, &host)?;
        if topology.hosts() == 1 || self.ports.is_some() {
            group.check_size()?;
            return Ok(None);
        }
        topology.check()?;
        Ok(Some(topology))
    }

    /// Connects the ranks of this host, and then those of different ones.
    pub(crate) fn connect_hosts(
        &self,
        group: &Group,
        topology: Topology,
        scratch: u64,
        counters: &Counters,
    ) -> Result<Hosts> {
        if self.check_calls {
            return Err(Error::InvalidArgument(
                "check_calls(true) with ranks on several hosts; it compares calls of ranks on one".into(),
            ));
        }
        let locals = topology.locals();
        let local = match locals.len() {
            1 => None,
            _ => {
                let ranks = locals.iter().map(|r| group.ranks[*r]);
                let (host, algorithms) = (Some("one".into()), Vec::new());
                let builder = Self { host, algorithms, among_hosts: true, ..self.clone() };
                Some(builder.ranks(ranks).connect()?)
            }
        };
        let adapter = || self.comm.context().nearest_transport(TransportFlags::ALL_IB, &self.gpu);
        let transport = self.between_hosts.map_or_else(adapter, Ok).map_err(mscclpp::Error::from)?;
        let model = self.hosts_model.unwrap_or_else(|| HostsModel::of(transport));
        let model = HostsModel { hosts: topology.hosts() as u32, ranks: topology.fewest() as u32, ..model };
        model.predict(1)?;
        let usual =
            if transport == Transport::ETHERNET && self.gpu.platform() != Platform::Sim { 4 } else { 1 };
        let connections = self.connections.unwrap_or(usual);
        group.agree(&[
            ("hosts_model (latency)", model.latency.to_bits()),
            ("hosts_model (message)", model.message.to_bits()),
            ("hosts_model (bandwidth)", model.bandwidth.to_bits()),
            ("connections", connections.into()),
        ])?;
        let network = Network { transport, tag: self.tag, connections };
        tracing::info!(
            target: "mscclpp::conn", rank = group.ranks[group.rank], hosts = topology.hosts(), here = ?topology.locals(),
            "collectives of ranks on several hosts, over {transport:?}"
        );
        Hosts::connect(&self.comm, &self.gpu, group, (topology, local, model), network, scratch, counters)
    }
}
