//! How ranks on several hosts set up collectives together.

use crate::{CollectivesBuilder, Error, Result, group::Group};

use super::{Hosts, HostsModel, Topology};

impl CollectivesBuilder {
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
    pub(crate) fn connect_hosts(&self, group: &Group, topology: Topology, scratch: u64) -> Result<Hosts> {
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
                let builder = Self { host: Some("one".into()), algorithms: Vec::new(), ..self.clone() };
                Some(builder.ranks(ranks).connect()?)
            }
        };
        let model = self.hosts_model.unwrap_or_else(|| HostsModel::of(self.between_hosts));
        let model = HostsModel { hosts: topology.hosts() as u32, ranks: topology.fewest() as u32, ..model };
        model.predict(1)?;
        group.agree(&[
            ("hosts_model (latency)", model.latency.to_bits()),
            ("hosts_model (message)", model.message.to_bits()),
            ("hosts_model (bandwidth)", model.bandwidth.to_bits()),
        ])?;
        let network = (self.between_hosts, self.tag);
        tracing::info!(
            target: "mscclpp::conn", rank = group.ranks[group.rank], hosts = topology.hosts(), here = ?topology.locals(),
            "collectives of ranks on several hosts, over {:?}", self.between_hosts
        );
        Hosts::connect(&self.comm, &self.gpu, group, (topology, local, model), network, scratch)
    }
}
