//! The CUDA IPC transport: peers on one node reach each other's device memory directly, over NVLink or PCIe.
//!
//! ```no_run
//! use mscclpp_core::{Context, Device, EndpointConfig, Transport};
//! use mscclpp_cuda_ipc::CudaIpc;
//!
//! let context = Context::builder().provider(CudaIpc::new()).build();
//! let here = context.create_endpoint(EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(0)))?;
//! # Ok::<(), mscclpp_core::Error>(())
//! ```
//!
//! On simulated devices the same code shares memfd mappings between processes. On AMD GPUs (feature `hip`) it shares
//! memory through HIP's IPC handles, and relies on HIP's promise that a stream value write comes after the stream's
//! earlier work. This has not been run on an AMD GPU yet.
//!
//! # Features
//! | feature | effect |
//! | --- | --- |
//! | `cuda-12040` or `cuda-13000` | memory of NVIDIA GPUs, with that version of the driver's symbols; at most one in a build |
//! | `hip` | memory of AMD GPUs |
//!
//! No feature is on by default. Without them only simulated devices share memory.
//!
//! # How memory is shared
//! Registering a region exports the allocation around it. Plain allocations are exported as a legacy IPC handle,
//! virtual-memory allocations as a file descriptor, or as a fabric handle if they allow no file descriptor. File
//! descriptors and legacy handles are tested between processes; importing fabric handles has not been run yet. The
//! bytes that are sent to peers hold no handle. They hold the name of a Unix socket of the owner, and a random token.
//! A peer that uses the region for the first time shows the token at that socket and gets the handle; a file
//! descriptor is passed with `SCM_RIGHTS`. The sockets have random names in the abstract namespace, and both ends
//! compare user ids. No ptrace rights and no common file system are needed, and process ids need not differ. Regions
//! of the process itself are recognised and used in place.
//!
//! # How order is kept
//! Each queue has its own stream, which works in order. An update ([`mscclpp_core::provider::Operation::Update`]) is a
//! stream value write with its default memory barrier: a reader that sees the value also sees the data of all earlier
//! copies.
//!
//! # How a dead peer is seen
//! Connecting opens a Unix connection to the peer's process. It stays open as long as the peer's endpoint, and the
//! kernel closes it when that process dies, for whatever reason. One thread per provider watches all these connections
//! and serves handles.

mod env;
mod error;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod hub;
mod link;
mod message;
mod region;
mod socket;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use mscclpp_core::{
    DeviceType, EndpointConfig, EndpointInfo, Error as CoreError, LinkMonitor, MemoryRegion, RegionInfo,
    Result, Transport, TransportFlags, host_id,
    provider::{Ends, Link, LocalEndpoint, Registration, RemoteRegion, TransportProvider},
};
use mscclpp_gpu::Gpu;
use mscclpp_net::event_loop::get_or_start;
use parking_lot::Mutex;

pub use error::Error;
use hub::Hub;
use link::IpcLink;
use message::{EndpointBlob, Name, Request, Token};
use region::{Exports, Imports, IpcRegion, IpcRegistration};

/// The provider of [`Transport::CUDA_IPC`].
///
/// The provider opens nothing before it is first used. Its thread and socket end when everything made through it is dropped.
#[derive(Default)]
pub struct CudaIpc {
    hub: Mutex<std::sync::Weak<Hub>>,
    exports: Exports,
    imports: Imports,
}

impl CudaIpc {
    /// Makes a provider that has not opened anything yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

struct IpcEndpoint {
    blob: Vec<u8>,
    token: Token,
    name: Name,
    gpu: Option<Gpu>,
    use_default_stream: bool,
    max_waiting: u64,
    hub: Arc<Hub>,
}

impl LocalEndpoint for IpcEndpoint {
    fn blob(&self) -> &[u8] {
        &self.blob
    }
}

impl Drop for IpcEndpoint {
    fn drop(&mut self) {
        self.hub.close_endpoint(self.token);
    }
}

impl TransportProvider for CudaIpc {
    fn transports(&self) -> TransportFlags {
        Transport::CUDA_IPC.into()
    }

    fn open_endpoint(&self, config: &EndpointConfig, gpu: Option<&Gpu>) -> Result<Arc<dyn LocalEndpoint>> {
        let use_default_stream = env::use_default_stream()?;
        let hub = get_or_start(&self.hub, Hub::start)?;
        let blob = hub.open_endpoint()?;
        let (token, name, blob) = (blob.token, blob.name, blob.encode());
        let max_waiting =
            config.max_write_queue_size.map_or(link::MAX_WAITING, |n| link::MAX_WAITING.min(n.into()));
        Ok(Arc::new(IpcEndpoint {
            blob,
            token,
            name,
            gpu: gpu.cloned(),
            use_default_stream,
            max_waiting,
            hub,
        }))
    }

    fn register(&self, _transport: Transport, region: &Arc<MemoryRegion>) -> Result<Arc<dyn Registration>> {
        let gpu = device_of(region)?;
        Ok(Arc::new(self.exports.register(&get_or_start(&self.hub, Hub::start)?, gpu, region)?))
    }

    fn local_source(
        &self,
        _transport: Transport,
        region: &Arc<MemoryRegion>,
    ) -> Result<Option<Arc<dyn Registration>>> {
        device_of(region)?;
        Ok(Some(Arc::new(IpcRegistration::local(region))))
    }

    fn import(&self, info: &RegionInfo<'_>, gpu: Option<&Gpu>) -> Result<Arc<dyn RemoteRegion>> {
        let unreachable =
            |reason: &str| CoreError::unreachable(gpu, "a peer's memory", Transport::CUDA_IPC, reason);
        let Some(gpu) = gpu else {
            return Err(unreachable("a CPU endpoint cannot map device memory; use one on a GPU"));
        };
        if info.platform != gpu.platform() {
            let platforms = format!("it is on platform {}, this side on {}", info.platform, gpu.platform());
            return Err(unreachable(&platforms));
        }
        if let Some(region) = &info.local {
            let Some(owner) = region.gpu() else {
                return Err(unreachable("it is host memory"));
            };
            return Ok(Arc::new(IpcRegion::local(region.clone(), owner, gpu)?));
        }
        let ours = host_id()?;
        if info.host != ours {
            return Err(unreachable(&different_hosts(info.host, &ours)));
        }
        Ok(Arc::new(IpcRegion::fetch(&self.imports, info, gpu)?))
    }

    fn connect(&self, ends: Ends<'_>, monitor: LinkMonitor) -> Result<Arc<dyn Link>> {
        let local: &IpcEndpoint = ends.own().map_err(Error::from)?;
        let remote = ends.remote;
        let gpu = reachable_from(local, remote)?;
        // A peer in this same process is watched like any other: it can close its endpoint, too.
        let peer = EndpointBlob::decode(&remote.blob)?;
        let (socket, ..) = socket::ask(&peer.address, Request::Link { token: peer.token, from: local.name })?;
        let watch = local.hub.watch(socket, monitor.clone());
        Ok(Arc::new(IpcLink {
            gpu,
            use_default_stream: local.use_default_stream,
            max_waiting: local.max_waiting,
            monitor,
            hub: local.hub.clone(),
            watch,
            ends: (local.token, peer.name),
        }))
    }
}

fn device_of(region: &MemoryRegion) -> Result<&Gpu> {
    region.gpu().ok_or_else(|| {
        CoreError::InvalidArgument(format!(
            "the memory at {:?} is no device memory; CudaIpc shares and copies nothing else",
            region.ptr()
        ))
    })
}

/// Checks that the two ends can reach each other. Returns the device whose stream copies.
fn reachable_from(local: &IpcEndpoint, remote: &EndpointInfo) -> Result<Gpu> {
    let unreachable =
        |reason: &str| CoreError::unreachable(local.gpu.as_ref(), remote, Transport::CUDA_IPC, reason);
    let peer_is_cpu = remote.device.kind == DeviceType::Cpu;
    let Some(gpu) = &local.gpu else {
        return Err(unreachable(if peer_is_cpu {
            "both endpoints are on CPUs, and CudaIpc connects GPUs; use Ethernet or IB"
        } else {
            "this endpoint is on a CPU, and CudaIpc copies from GPU to GPU; use Ethernet or IB"
        }));
    };
    if peer_is_cpu {
        return Err(unreachable(
            "the peer's endpoint is on a CPU, and CudaIpc copies from GPU to GPU; use Ethernet or IB",
        ));
    }
    let ours = host_id()?;
    if remote.host != ours {
        return Err(unreachable(&different_hosts(&remote.host, &ours)));
    }
    // If this process does not see the peer's device (one visible GPU per rank), it cannot ask about access; mapping
    // the device's memory will fail if there is none.
    if gpu.peer_access_by_uuid(&remote.device_uuid)?.is_some_and(|access| !access.reachable) {
        let why = gpu.platform().why_no_peer_access();
        return Err(unreachable(&format!("{why}; connect these devices over Ethernet or IB")));
    }
    Ok(gpu.clone())
}

fn different_hosts(theirs: &str, ours: &str) -> String {
    format!(
        "it is on node [{theirs}], this side on [{ours}]; between nodes use Ethernet or IB (containers of one node \
         need one network namespace)"
    )
}
