//! A transport between the simulated devices of one process. All its memory is at hand, so it copies at once.

use std::{any::Any, sync::Arc};

use mscclpp::{
    DevicePtr, EndpointConfig, Gpu, Stream, Transport, TransportFlags,
    errors::CoreError,
    provider::{
        EndpointInfo, Link, LinkMonitor, LocalEndpoint, MemoryRegion, Operation, Queue, RegionInfo,
        Registration, RemoteRegion, RouteId, TransportProvider,
    },
};

type Result<T> = std::result::Result<T, CoreError>;

/// The provider.
pub struct Neighbour;

impl Neighbour {
    pub const TRANSPORT: Transport = Transport::custom(0).named("Neighbour");
}

struct End(Stream);

/// A region of this process, as its owner registers it and as its peer imports it.
struct Region(Arc<MemoryRegion>);

struct StreamLink(Stream);

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
            Some(end) if remote.is_in_this_process() => Ok(Arc::new(StreamLink(end.0.clone()))),
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

impl Link for StreamLink {
    fn open_queue(&self) -> Result<Box<dyn Queue>> {
        Ok(Box::new(StreamQueue { stream: self.0.clone(), routes: Vec::new(), asked: 0, reached: 0 }))
    }
}

/// All queues of an endpoint share its stream, so there is more order than was asked for. It takes as much as it is given.
struct StreamQueue {
    stream: Stream,
    /// By number: where the peer's memory is, and the region to write from.
    routes: Vec<Option<(DevicePtr, Option<Arc<MemoryRegion>>)>>,
    /// The last ticket that was asked for, and the last that was reached.
    asked: u64,
    reached: u64,
}

fn foreign() -> CoreError {
    CoreError::InvalidArgument("that is no memory of this transport".to_owned())
}

impl Queue for StreamQueue {
    fn prepare(
        &mut self,
        route: RouteId,
        dst: &Arc<dyn RemoteRegion>,
        src: Option<&Arc<dyn Registration>>,
    ) -> Result<()> {
        let region = |src: &Arc<dyn Registration>| {
            let any: &dyn Any = &**src;
            any.downcast_ref().map(|Region(region)| Arc::clone(region)).ok_or_else(foreign)
        };
        let prepared = (dst.ptr().ok_or_else(foreign)?, src.map(region).transpose()?);
        self.routes.resize_with(self.routes.len().max(route.index() + 1), || None);
        self.routes[route.index()] = Some(prepared);
        Ok(())
    }

    /// Both ends are of this process, and its devices are simulated: the memory stays until the stream is idle.
    fn release(&mut self, route: RouteId) {
        let _ = self.stream.synchronize();
        self.routes[route.index()] = None;
    }

    unsafe fn submit(&mut self, batch: &[Operation]) -> Result<usize> {
        let mut taken = 0;
        for operation in batch {
            // SAFETY: the caller's promise.
            match unsafe { self.start(*operation) } {
                Ok(()) => taken += 1,
                Err(error) if taken == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(taken)
    }

    /// When the stream is idle, everything is done.
    fn progress(&mut self) -> Result<u64> {
        if self.stream.query()? {
            self.reached = self.asked;
        }
        Ok(self.reached)
    }
}

impl StreamQueue {
    /// # Safety
    /// As [`Queue::submit`].
    unsafe fn start(&mut self, operation: Operation) -> Result<()> {
        let known = |route: RouteId| self.routes[route.index()].as_ref().ok_or_else(foreign);
        match operation {
            Operation::Write { route, dst_offset, src_offset, len } => {
                let (to, from) = known(route)?;
                let from = from.as_ref().ok_or_else(foreign)?.ptr();
                // SAFETY: both regions are kept, and the core has checked the ranges.
                unsafe { self.stream.copy(to.add(dst_offset), from.add(src_offset), len)? };
            }
            Operation::Update { route, offset, value, .. } => {
                // SAFETY: as above.
                unsafe { self.stream.write_u64(known(route)?.0.add(offset), value)? };
            }
            Operation::Flush { ticket } => self.asked = ticket,
            _ => return Err(foreign()),
        }
        Ok(())
    }
}
