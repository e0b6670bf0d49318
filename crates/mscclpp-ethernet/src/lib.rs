//! The Ethernet transport: connections over TCP, between CPUs and GPUs of one node or many.
//!
//! ```no_run
//! use mscclpp_core::{Context, Device, EndpointConfig, Transport};
//! use mscclpp_ethernet::Ethernet;
//!
//! let context = Context::builder().provider(Ethernet::new()).build();
//! let here = context.create_endpoint(EndpointConfig::new(Transport::ETHERNET, Device::CPU))?;
//! # Ok::<(), mscclpp_core::Error>(())
//! ```
//!
//! # How data travels
//! Each queue of a connection has a TCP connection of its own, which carries data one way. At its receiving end, a
//! thread puts the data in place. For host memory, the system sends from and receives into the registered memory
//! itself; only data that arrives together with its header is copied once more. Device memory goes through chunks of
//! pinned host memory, so that the device copies one chunk while another is on the network. The queue's owner sends
//! small data in host memory itself; a thread of the queue sends everything else.
//!
//! # How order is kept
//! A TCP connection keeps the order of the frames, and one thread carries them out. An update of host memory is a store
//! with release order, made after the same thread has placed the data. An update of device memory is a stream value
//! write, after the copies on the same stream; copies on other streams are complete before it. A flush is answered when
//! everything before it is in place, on the device too.
//!
//! # How strangers are kept out
//! An endpoint, as it is sent to peers, holds a random key. Both ends of every TCP connection prove that they have this
//! key, and derive from it the key that seals the header of every frame. Every header names a region, an offset and a
//! length, which are checked against the regions registered here. Nothing is encrypted, and data has no keyed checksum;
//! see the book. Bits that were changed by accident are noticed by TCP's own checksum, which misses some, and by CRC-32
//! checksums if they are turned on: [`EthernetBuilder::checksums`], `MSCCLPP_ETHERNET_CHECKSUMS=1`.
//!
//! # How a dead peer is noticed
//! Beside its queues, a connection has a *link*: a TCP connection that is silent, and open as long as the peer's
//! endpoint. When the link ends, or the peer's node falls silent, the connection fails. One thread per provider watches
//! all links. Over the link, a receiving end also reports that it refused a message, that the network drops the
//! packets of a data connection alone, or that a data connection ended without a goodbye. A side that declares the peer
//! lost tells it so.

mod blob;
mod checksum;
mod claims;
mod env;
mod error;
mod frame;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod hub;
mod link;
mod link_state;
mod receiving;
mod region;
mod regions;
mod sending;
mod settings;
mod socket;
mod staging;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use mscclpp_core::{
    EndpointConfig, Error as CoreError, LinkMonitor, MemoryRegion, RegionInfo, Result, Transport,
    TransportFlags, host_id,
    provider::{Ends, Link, LocalEndpoint, Registration, RemoteRegion, TokenMemory, TransportProvider},
};
use mscclpp_gpu::Gpu;
use mscclpp_net::event_loop::get_or_start;
use mscclpp_net::links::{self, Address, Name};
use parking_lot::Mutex;

use blob::PROTOCOL;
pub use error::Error;
use hub::Hub;
use link::EthernetLink;
use link_state::LinkState;
pub use mscclpp_net::interface::Family;
use region::{LocalRegion, PeerRegion};
pub use settings::EthernetBuilder;
use settings::Settings;

/// The provider of [`Transport::ETHERNET`].
///
/// The provider opens nothing before it is first used. Its thread and its listener end when everything made through
/// it is dropped.
#[derive(Default)]
pub struct Ethernet {
    settings: Settings,
    hub: Mutex<std::sync::Weak<Hub>>,
}

impl Ethernet {
    /// A provider with the defaults of [`EthernetBuilder`].
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins a provider with chosen settings.
    pub fn builder() -> EthernetBuilder {
        EthernetBuilder::default()
    }

    fn hub(&self) -> Result<Arc<Hub>> {
        Ok(get_or_start(&self.hub, || Hub::start(&self.settings))?)
    }
}

impl EthernetBuilder {
    /// Makes the provider. Nothing is opened yet.
    #[must_use]
    pub fn build(self) -> Ethernet {
        Ethernet { settings: self.settings, hub: Mutex::default() }
    }
}

struct EthernetEndpoint {
    blob: Vec<u8>,
    name: Name,
    gpu: Option<Gpu>,
    max_waiting: Option<u32>,
    tokens: TokenMemory,
    hub: Arc<Hub>,
}

impl LocalEndpoint for EthernetEndpoint {
    fn blob(&self) -> &[u8] {
        &self.blob
    }
}

impl Drop for EthernetEndpoint {
    fn drop(&mut self) {
        self.hub.links.close_endpoint(self.name);
    }
}

impl TransportProvider for Ethernet {
    fn transports(&self) -> TransportFlags {
        Transport::ETHERNET.into()
    }

    fn open_endpoint(&self, config: &EndpointConfig, gpu: Option<&Gpu>) -> Result<Arc<dyn LocalEndpoint>> {
        let hub = self.hub()?;
        let address = hub.links.open_endpoint().map_err(Error::from)?;
        Ok(Arc::new(EthernetEndpoint {
            name: address.name,
            blob: address.encode(&PROTOCOL),
            gpu: gpu.cloned(),
            max_waiting: config.max_write_queue_size,
            tokens: if config.tokens_on_host { TokenMemory::PinnedHost } else { TokenMemory::Device },
            hub,
        }))
    }

    fn register(&self, _transport: Transport, region: &Arc<MemoryRegion>) -> Result<Arc<dyn Registration>> {
        Ok(Arc::new(LocalRegion::register(self.hub()?, region)))
    }

    fn local_source(
        &self,
        _transport: Transport,
        region: &Arc<MemoryRegion>,
    ) -> Result<Option<Arc<dyn Registration>>> {
        Ok(Some(Arc::new(LocalRegion::for_local_use(region))))
    }

    fn import(&self, info: &RegionInfo<'_>, _gpu: Option<&Gpu>) -> Result<Arc<dyn RemoteRegion>> {
        Ok(Arc::new(PeerRegion::import(info)?))
    }

    fn maps_memory(&self, _transport: Transport) -> bool {
        false
    }

    fn connect(&self, ends: Ends<'_>, monitor: LinkMonitor) -> Result<Arc<dyn Link>> {
        let local: &EthernetEndpoint = ends.own().map_err(Error::from)?;
        let remote = ends.remote;
        let peer = Address::decode(&PROTOCOL, &remote.blob).map_err(Error::from)?;
        let state = Arc::new(LinkState::new(monitor));
        let links = &local.hub.links;
        let link =
            links.dial(&peer, remote.host == host_id()?, local.name, state.clone()).map_err(|error| {
                match error {
                    links::Error::Unreachable { .. } => {
                        let reason = error.to_string();
                        CoreError::unreachable(local.gpu.as_ref(), remote, Transport::ETHERNET, reason)
                    }
                    error => Error::from(error).into(),
                }
            })?;
        let EthernetEndpoint { max_waiting, tokens, .. } = *local;
        Ok(Arc::new(EthernetLink { state, link, hub: local.hub.clone(), max_waiting, tokens }))
    }
}
