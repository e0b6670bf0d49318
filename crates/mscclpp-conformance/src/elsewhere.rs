//! A second transport beside the one under test: its endpoints open, its memories register, and no peer can be
//! reached.

use std::sync::Arc;

use mscclpp_core::{
    EndpointConfig, Error, LinkMonitor, MemoryRegion, RegionInfo, Result, Transport, TransportFlags,
    provider::{Ends, Link, LocalEndpoint, Registration, RemoteRegion, TransportProvider},
};
use mscclpp_gpu::Gpu;

pub(crate) struct Elsewhere(Transport);

impl Elsewhere {
    pub(crate) fn beside(transport: Transport) -> Self {
        match transport == Transport::custom(15) {
            true => Self(Transport::custom(14)),
            false => Self(Transport::custom(15)),
        }
    }

    pub(crate) fn transport(&self) -> Transport {
        self.0
    }

    fn unreachable<T>(&self, remote: &dyn ToString) -> Result<T> {
        Err(Error::Unreachable {
            local: "here".to_owned(),
            remote: remote.to_string(),
            transport: self.0,
            reason: "this transport reaches nobody".to_owned(),
        })
    }
}

struct Nothing;

impl LocalEndpoint for Nothing {
    fn blob(&self) -> &[u8] {
        b"elsewhere"
    }
}

impl Registration for Nothing {
    fn blob(&self) -> &[u8] {
        b"elsewhere"
    }
}

impl TransportProvider for Elsewhere {
    fn transports(&self) -> TransportFlags {
        self.0.into()
    }

    fn open_endpoint(&self, _: &EndpointConfig, _: Option<&Gpu>) -> Result<Arc<dyn LocalEndpoint>> {
        Ok(Arc::new(Nothing))
    }

    fn register(&self, _: Transport, _: &Arc<MemoryRegion>) -> Result<Arc<dyn Registration>> {
        Ok(Arc::new(Nothing))
    }

    fn import(&self, region: &RegionInfo, _: Option<&Gpu>) -> Result<Arc<dyn RemoteRegion>> {
        self.unreachable(&region.id)
    }

    fn connect(&self, ends: Ends<'_>, _: LinkMonitor) -> Result<Arc<dyn Link>> {
        self.unreachable(ends.remote)
    }
}
