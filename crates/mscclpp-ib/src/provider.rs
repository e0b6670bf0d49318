use std::{
    path::PathBuf,
    sync::{Arc, OnceLock, Weak},
};

use mscclpp_core::{
    EndpointConfig, EndpointInfo, Error as CoreError, IbMode, LinkMonitor, MemoryRegion, RegionInfo,
    Result as CoreResult, Transport, TransportFlags, host_id,
    provider::{Ends, Link, LocalEndpoint, Registration, RemoteRegion, TransportProvider},
};
use mscclpp_gpu::{Gpu, GpuDirect, Platform};
use mscclpp_net::{event_loop::get_or_start, links::Name};
use mscclpp_verbs_sys::Verbs;
use parking_lot::Mutex;

use crate::{
    adapter::{self, Adapter, Reliability},
    blob::EndpointBlob,
    error::{Error, Result},
    hub::Hub,
    link::IbLink,
    nearest::nearest,
    ordering::{self, Mapping, Promise},
    region::{LocalRegion, PeerRegion},
    settings::Env,
    side::{EndpointPair, GpuFlush, LinkState, Side},
};

/// The transports of this crate, in order.
pub(crate) const TRANSPORTS: [Transport; 8] = [
    Transport::IB0,
    Transport::IB1,
    Transport::IB2,
    Transport::IB3,
    Transport::IB4,
    Transport::IB5,
    Transport::IB6,
    Transport::IB7,
];

/// The provider of [`Transport::IB0`] to [`Transport::IB7`].
///
/// It loads the verbs library and looks for devices when it is first asked for one. Its thread and its listener end
/// when everything made through it is gone.
#[derive(Default)]
pub struct InfiniBand {
    pub(crate) verbs: Option<&'static Verbs>,
    pub(crate) relaxed_ordering: Option<bool>,
    pub(crate) mode: IbMode,
    pub(crate) gpus_like: Option<GpuDirect>,
    pub(crate) flush_gpus_by: Option<GpuFlush>,
    devices: OnceLock<Result<Devices, String>>,
    hub: Mutex<Weak<Hub>>,
}

/// The library and the devices, found at the first use.
pub(crate) struct Devices {
    pub(crate) verbs: &'static Verbs,
    pub(crate) env: Env,
    names: Vec<String>,
    places: Vec<Option<PathBuf>>,
}

impl InfiniBand {
    /// Makes a provider with the defaults of [`InfiniBandBuilder`](crate::InfiniBandBuilder).
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the names of the devices that are `IB0`, `IB1`, and so on. The first call loads the library.
    ///
    /// # Errors
    /// If there is no library or no device, or if a variable is malformed. The text says what is missing and what to
    /// do.
    pub fn device_names(&self) -> Result<Vec<String>, String> {
        self.devices().map(|devices| devices.names.clone()).map_err(ToOwned::to_owned)
    }

    /// Returns the transport of the device that is closest to `gpu`: the one that shares the longest path with it in
    /// the system's device tree, for example up to the same PCIe switch, or, if none shares a path, the one on the
    /// nearest NUMA node. If several are equally close, GPUs choose among them by their numbers, so two GPUs and two
    /// devices behind one switch get one each. The same holds if the system does not say where the GPU is, as for
    /// simulated devices. Returns `None` if there are no devices.
    #[must_use]
    pub fn nearest_ib(&self, gpu: &Gpu) -> Option<Transport> {
        let near = nearest(gpu, &self.devices().ok()?.places);
        let number = near.get(gpu.id() % near.len().max(1))?;
        TRANSPORTS.get(*number).copied()
    }

    fn devices(&self) -> Result<&Devices, &str> {
        let found =
            self.devices.get_or_init(|| self.find().map_err(|error| mscclpp_net::Report(&error).to_string()));
        found.as_ref().map_err(String::as_str)
    }

    fn find(&self) -> Result<Devices> {
        let env = Env::read()?;
        let verbs = match self.verbs {
            Some(verbs) => verbs,
            None => Verbs::load()?,
        };
        let all = adapter::list(verbs)?;
        let known = || match all.is_empty() {
            true => {
                "the verbs library knows of none (is the adapter's driver loaded, /dev/infiniband there?)"
                    .to_owned()
            }
            false => format!(
                "there are: {}",
                all.iter().map(|info| info.name.as_str()).collect::<Vec<_>>().join(", ")
            ),
        };
        let chosen = match &env.devices {
            Some(names) => names
                .iter()
                .map(|name| {
                    let missing = || Error::NoDevice {
                        wanted: format!("{name}, which MSCCLPP_HCA_DEVICES names"),
                        found: known(),
                    };
                    all.iter().find(|info| info.name == *name).cloned().ok_or_else(missing)
                })
                .collect::<Result<Vec<_>>>()?,
            None => {
                let mut active = all.clone();
                active.retain(|info| match Adapter::open(verbs, &info.name) {
                    Ok(adapter) => (1..=adapter.limits().ports).any(|port| adapter.is_active(port)),
                    Err(error) => {
                        let error = mscclpp_net::Report(&error).to_string();
                        tracing::warn!(target: "mscclpp::conn", device = info.name, error, "a device is left out");
                        false
                    }
                });
                active
            }
        };
        if chosen.is_empty() {
            let wanted = "with an active port".to_owned();
            return Err(Error::NoDevice { wanted, found: known() });
        }
        let chosen = &chosen[..chosen.len().min(TRANSPORTS.len())];
        tracing::debug!(target: "mscclpp::conn", devices = ?chosen, library = verbs.origin, "InfiniBand devices");
        Ok(Devices {
            verbs,
            env,
            names: chosen.iter().map(|info| info.name.clone()).collect(),
            places: chosen.iter().map(|info| info.place.clone()).collect(),
        })
    }

    /// Returns the name of the device that `transport` stands for.
    pub(crate) fn device(&self, transport: Transport) -> Result<(&Devices, &str)> {
        let no_device = |found: String| Error::NoDevice { wanted: transport.to_string(), found };
        let devices = self.devices().map_err(|reason| no_device(reason.to_owned()))?;
        let number = TRANSPORTS.iter().position(|known| *known == transport);
        let name = number.and_then(|number| devices.names.get(number));
        let name = name.ok_or_else(|| no_device(format!("there are: {}", devices.names.join(", "))))?;
        Ok((devices, name))
    }

    fn hub(&self, devices: &Devices) -> Result<Arc<Hub>> {
        let relaxes_data = self.relaxed_ordering.or(devices.env.relaxed_ordering).unwrap_or(true);
        get_or_start(&self.hub, || Hub::start(devices.verbs, relaxes_data))
    }

    /// Returns the hub, and the opened adapter that `transport` stands for.
    fn adapter(&self, transport: Transport) -> Result<(Arc<Hub>, Arc<Adapter>, &Env)> {
        let (devices, name) = self.device(transport)?;
        let hub = self.hub(devices)?;
        let adapter = hub.adapter(name)?;
        Ok((hub, adapter, &devices.env))
    }

    fn open(&self, config: &EndpointConfig, gpu: Option<&Gpu>) -> Result<IbEndpoint> {
        let (hub, adapter, env) = self.adapter(config.transport)?;
        let ib = &config.ib;
        if let Some(wanted) = ib.device_index
            && TRANSPORTS.get(wanted as usize) != Some(&config.transport)
        {
            return Err(Error::Incompatible(format!(
                "device_index is {wanted}, but {} is another device; memory is registered for a transport, so name the \
                 device by Transport::IB{wanted}",
                config.transport
            )));
        }
        let port = adapter.port(ib.port, ib.gid_index.or(env.gid_index))?;
        let default = Reliability::default();
        let reliability = Reliability {
            timeout: ib.timeout.or(env.timeout).unwrap_or(default.timeout),
            retry_count: ib.retry_count.or(env.retry_count).unwrap_or(default.retry_count),
            rnr_retry: ib.rnr_retry.or(env.rnr_retry).unwrap_or(default.rnr_retry),
            traffic_class: ib.traffic_class.or(env.traffic_class).unwrap_or(default.traffic_class),
            service_level: ib.service_level.or(env.service_level).unwrap_or(default.service_level),
            pkey_index: ib.pkey_index.or(env.pkey_index).unwrap_or(default.pkey_index),
        };
        for (what, value, most) in [
            ("timeout", reliability.timeout, 31),
            ("retry_count", reliability.retry_count, 7),
            ("rnr_retry", reliability.rnr_retry, 7),
            ("service_level", reliability.service_level, 15),
        ] {
            if value > most {
                return Err(Error::Incompatible(format!("IbConfig::{what} is {value}; it is 0 to {most}")));
            }
        }
        let mode = if ib.mode == IbMode::Default { self.mode(env) } else { ib.mode };
        let atomics = adapter.limits().atomics && mode != IbMode::HostNoAtomic;
        let promise = gpu.map(|gpu| self.promise(gpu, &adapter)).transpose()?.flatten();
        let side = Side {
            transport: config.transport,
            adapter,
            port,
            reliability,
            config: ib.clone(),
            max_waiting: config.max_write_queue_size,
            atomics,
            gpu: gpu.cloned().zip(promise),
            flush: self.flush_gpus_by.clone(),
        };
        let address = hub.open_endpoint(side.clone())?;
        let name = address.name;
        let blob = EndpointBlob {
            address,
            atomics: side.atomics,
            is_ethernet: side.port.is_ethernet,
            gid: side.port.gid.gid,
            device: side.adapter.name().to_owned(),
        };
        Ok(IbEndpoint { blob: blob.encode(), name, gpu: gpu.cloned(), side, hub })
    }

    /// Returns whether the host itself may read and write the region.
    fn is_host_memory(&self, region: &MemoryRegion) -> bool {
        region.gpu().is_none_or(|gpu| gpu.platform() == Platform::Sim && self.gpus_like.is_none())
    }

    /// Returns how signals travel if a configuration does not say.
    fn mode(&self, env: &Env) -> IbMode {
        if self.mode == IbMode::Default { env.mode.unwrap_or_default() } else { self.mode }
    }

    /// Returns what is promised of an adapter's writes to a GPU. A simulated device needs no promise, because its
    /// memory is the host's.
    fn promise(&self, gpu: &Gpu, adapter: &Adapter) -> Result<Option<Promise>> {
        let direct = match (gpu.platform(), self.gpus_like) {
            (Platform::Sim, None) => return Ok(None),
            (Platform::Sim, Some(like)) => like,
            _ => gpu.gpu_direct().map_err(|error| Error::Incompatible(format!("{gpu}: {error}")))?,
        };
        let mapping =
            if direct.dma_buf && adapter.maps_dmabufs() { Mapping::DmaBuf } else { Mapping::PeerMem };
        Ok(Some(Promise { direct, mapping }))
    }

    fn link(local: &IbEndpoint, remote: &EndpointInfo, monitor: LinkMonitor) -> Result<IbLink> {
        let peer = EndpointBlob::decode(&remote.blob)?;
        let side = &local.side;
        if peer.is_ethernet != side.port.is_ethernet {
            let layer = |is_ethernet| if is_ethernet { "Ethernet (RoCE)" } else { "InfiniBand" };
            return Err(Error::Incompatible(format!(
                "{} port {} is {}, the peer's {} is {}",
                side.adapter.name(),
                side.port.number,
                layer(side.port.is_ethernet),
                peer.device,
                layer(peer.is_ethernet)
            )));
        }
        let mode = ordering::mode(side.atomics, peer.atomics);
        let state = Arc::new(LinkState::new(side.clone(), mode, monitor));
        let same_host = host_id().is_ok_and(|host| host == remote.host);
        let link = local.hub.dial(&peer.address, same_host, local.name, state.clone())?;
        tracing::debug!(
            target: "mscclpp::conn", device = side.adapter.name(), peer = peer.device, from = %side.port.gid, to = %peer.gid,
            signals = ?mode, "InfiniBand link opened"
        );
        let endpoints = EndpointPair { ours: local.name, theirs: peer.address.name };
        Ok(IbLink::new(state, endpoints, link, local.hub.clone()))
    }
}

struct IbEndpoint {
    blob: Vec<u8>,
    name: Name,
    gpu: Option<Gpu>,
    side: Side,
    hub: Arc<Hub>,
}

impl LocalEndpoint for IbEndpoint {
    fn blob(&self) -> &[u8] {
        &self.blob
    }
}

impl Drop for IbEndpoint {
    fn drop(&mut self) {
        self.hub.close_endpoint(self.name);
    }
}

impl TransportProvider for InfiniBand {
    fn transports(&self) -> TransportFlags {
        let count = self.devices().map_or(0, |devices| devices.names.len());
        TRANSPORTS.iter().take(count).copied().collect()
    }

    fn nearest(&self, gpu: &Gpu) -> Option<Transport> {
        self.nearest_ib(gpu)
    }

    fn why_not(&self, transport: Transport) -> Option<String> {
        if !transport.is_ib() {
            return None;
        }
        Some(match self.devices() {
            Err(reason) => reason.to_owned(),
            Ok(devices) => format!("the InfiniBand devices here are: {}", devices.names.join(", ")),
        })
    }

    fn pairs_with(&self, local: Transport, remote: Transport) -> bool {
        local.is_ib() && remote.is_ib()
    }

    fn open_endpoint(
        &self,
        config: &EndpointConfig,
        gpu: Option<&Gpu>,
    ) -> CoreResult<Arc<dyn LocalEndpoint>> {
        Ok(Arc::new(self.open(config, gpu).map_err(|error| error.over(config.transport))?))
    }

    fn register(
        &self,
        transport: Transport,
        region: &Arc<MemoryRegion>,
    ) -> CoreResult<Arc<dyn Registration>> {
        let register = || {
            let (hub, adapter, _) = self.adapter(transport)?;
            LocalRegion::register(hub, adapter, region, self.is_host_memory(region))
        };
        Ok(Arc::new(register().map_err(|error| error.over(transport))?))
    }

    fn local_source(
        &self,
        transport: Transport,
        region: &Arc<MemoryRegion>,
    ) -> CoreResult<Option<Arc<dyn Registration>>> {
        let (_, adapter, _) = self.adapter(transport).map_err(|error| error.over(transport))?;
        Ok(Some(Arc::new(LocalRegion::for_local_use(adapter, region, self.is_host_memory(region)))))
    }

    fn import(&self, info: &RegionInfo<'_>, _gpu: Option<&Gpu>) -> CoreResult<Arc<dyn RemoteRegion>> {
        Ok(Arc::new(PeerRegion::import(info).map_err(|error| error.over(info.transport))?))
    }

    fn maps_memory(&self, _transport: Transport) -> bool {
        false
    }

    fn connect(&self, ends: Ends<'_>, monitor: LinkMonitor) -> CoreResult<Arc<dyn Link>> {
        let remote = ends.remote;
        let local: &IbEndpoint = ends.own().map_err(|foreign| Error::from(foreign).over(remote.transport))?;
        let transport = local.side.transport;
        match Self::link(local, remote, monitor) {
            Ok(link) => Ok(Arc::new(link)),
            Err(
                error
                @ (Error::Incompatible(_) | Error::Links(mscclpp_net::links::Error::Unreachable { .. })),
            ) => Err(CoreError::unreachable(local.gpu.as_ref(), remote, transport, error.to_string())),
            Err(error) => Err(error.over(transport)),
        }
    }
}
