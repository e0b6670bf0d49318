//! A transport between the simulated devices of one process. All its memory is at hand, so it copies at once.

use std::{any::Any, sync::Arc};

use mscclpp::{
    DevicePtr, EndpointConfig, EndpointInfo, Gpu, LinkMonitor, MemoryRegion, RegionInfo, Stream, Transport,
    TransportFlags,
    errors::CoreError,
    provider::{Link, LocalEndpoint, Queue, Registration, RemoteRegion, TransportProvider},
};

type Result<T> = std::result::Result<T, CoreError>;

/// The provider.
pub struct Neighbour;

impl Neighbour {
    pub const TRANSPORT: Transport = Transport::custom(0);
}

struct End(Stream);

/// A region of this process, as its owner registers it and as its peer imports it.
struct Region(Arc<MemoryRegion>);

struct Lane(Stream);

fn unreachable(remote: impl ToString, reason: &str) -> CoreError {
    CoreError::Unreachable {
        local: "this process".to_owned(),
        remote: remote.to_string(),
        transport: Neighbour::TRANSPORT,
        reason: reason.to_owned(),
    }
}

impl TransportProvider for Neighbour {
    fn transports(&self) -> TransportFlags {
        Self::TRANSPORT.into()
    }

    fn open_endpoint(&self, _: &EndpointConfig, gpu: Option<&Gpu>) -> Result<Arc<dyn LocalEndpoint>> {
        let gpu = gpu.ok_or_else(|| unreachable("a CPU", "this transport is between devices"))?;
        Ok(Arc::new(End(gpu.stream()?)))
    }

    fn register(&self, _: Transport, region: &Arc<MemoryRegion>) -> Result<Arc<dyn Registration>> {
        Ok(Arc::new(Region(Arc::clone(region))))
    }

    fn import(&self, region: &RegionInfo<'_>, _: Option<&Gpu>) -> Result<Arc<dyn RemoteRegion>> {
        let local =
            region.local.clone().ok_or_else(|| unreachable(region.host, "it is in another process"))?;
        Ok(Arc::new(Region(local)))
    }

    fn connect(
        &self,
        local: &Arc<dyn LocalEndpoint>,
        remote: &EndpointInfo,
        _: LinkMonitor,
    ) -> Result<Arc<dyn Link>> {
        let end: &dyn Any = &**local;
        match end.downcast_ref::<End>() {
            Some(end) if remote.is_in_this_process() => Ok(Arc::new(Lane(end.0.clone()))),
            _ => Err(unreachable(remote, "it is in another process")),
        }
    }
}

impl LocalEndpoint for End {
    fn blob(&self) -> &[u8] {
        &[]
    }
}

impl Registration for Region {
    fn blob(&self) -> &[u8] {
        &[]
    }
}

impl RemoteRegion for Region {
    fn ptr(&self) -> Option<DevicePtr> {
        Some(self.0.ptr())
    }

    fn native_atomics(&self) -> bool {
        true
    }
}

impl Link for Lane {
    fn open_queue(&self) -> Result<Box<dyn Queue>> {
        Ok(Box::new(Lane(self.0.clone())))
    }
}

/// All queues of an endpoint share its stream, so there is more order than was asked for.
impl Queue for Lane {
    fn write(
        &mut self,
        dst: &Arc<dyn RemoteRegion>,
        dst_offset: u64,
        src: &Arc<dyn Registration>,
        src_offset: u64,
        len: u64,
    ) -> Result<()> {
        let src: &dyn Any = &**src;
        let (Some(to), Some(Region(from))) = (dst.ptr(), src.downcast_ref()) else {
            return Err(unreachable("the peer", "that is no memory of this transport"));
        };
        // SAFETY: both regions are of this process and alive, and the core has checked the ranges.
        unsafe { self.0.copy(to.add(dst_offset), from.ptr().add(src_offset), len)? };
        Ok(())
    }

    fn update(&mut self, dst: &Arc<dyn RemoteRegion>, dst_offset: u64, value: u64) -> Result<()> {
        let to = dst.ptr().ok_or_else(|| unreachable("the peer", "that is no memory of this transport"))?;
        // SAFETY: as in `write`.
        unsafe { self.0.write_u64(to.add(dst_offset), value)? };
        Ok(())
    }

    fn request_flush(&mut self) -> Result<u64> {
        // One ticket for all: when the stream is idle, everything is done.
        Ok(1)
    }

    fn progress(&mut self) -> Result<u64> {
        Ok(u64::from(self.0.query()?))
    }
}
