//! Port channels for kernels: a semaphore and, for one of the two kinds, two memories.

use std::sync::Arc;

use mscclpp_core::{HostToDeviceSemaphoreHandle, Route, Semaphore};
use mscclpp_gpu::{DevicePtr, Gpu, KernelObject, KernelWait, Owner};

use crate::{
    BasePortChannelHandle, Error, MemoryId, PortChannelHandle, Result, SemaphoreId, state::ServiceState,
};

/// A channel that signals and that copies between any memories of its [`ProxyService`](crate::ProxyService). Cheap to clone.
#[derive(Clone)]
pub struct BasePortChannel {
    parts: Arc<Parts>,
    handle: BasePortChannelHandle,
}

/// A channel between one memory of this side and one of the peer's. Cheap to clone.
#[derive(Clone)]
pub struct PortChannel {
    base: BasePortChannel,
    handle: PortChannelHandle,
}

/// The parts of a channel, which launches keep alive, whoever drops the channel.
struct Parts {
    semaphore: Semaphore,
    /// The service, which keeps the memory that the handle points to.
    service: Arc<ServiceState>,
    /// The route of a [`PortChannel`], which keeps the two memories.
    route: Option<Route>,
}

impl KernelObject for Parts {
    fn peers(&self) -> Vec<String> {
        self.service.idle_service().into_iter().chain([self.semaphore.connection().label()]).collect()
    }

    fn waits(&self) -> Vec<KernelWait> {
        self.service.waits([&self.semaphore])
    }

    fn may_have_failed(&self) -> bool {
        self.service.may_have_failed(&self.semaphore)
    }

    fn check(&self) -> mscclpp_gpu::Result<()> {
        self.service.check_waits(&self.semaphore).map_err(Error::of_a_wait)
    }
}

impl BasePortChannel {
    pub(crate) fn new(service: &Arc<ServiceState>, id: SemaphoreId, route: Option<Route>) -> Result<Self> {
        let entry = service.semaphores.find("semaphore", id.raw())?;
        let connection = service.connections.find("connection", entry.connection)?;
        let direct_token = HostToDeviceSemaphoreHandle::direct_token(&entry.semaphore);
        let parts =
            [connection.last_pushed, connection.completed.ptr(), direct_token.unwrap_or(DevicePtr::NULL)];
        let port = service.port(id, parts)?;
        let [last_pushed, completed, direct_token] = parts.map(DevicePtr::as_mut_ptr);
        let handle = BasePortChannelHandle {
            semaphore: HostToDeviceSemaphoreHandle { port: port.as_mut_ptr(), ..entry.handle },
            fifo: service.fifo.device_handle(),
            last_pushed,
            completed,
            direct_token,
            semaphore_id: id,
            reserved: 0,
        };
        let parts = Parts { semaphore: entry.semaphore.clone(), service: service.clone(), route };
        Ok(Self { parts: Arc::new(parts), handle })
    }

    /// The channel's semaphore, for [`Semaphore::check`] and [`Semaphore::abort`].
    #[must_use]
    pub fn semaphore(&self) -> &Semaphore {
        &self.parts.semaphore
    }

    pub(crate) fn service(&self) -> &ServiceState {
        &self.parts.service
    }

    pub(crate) fn owner(&self) -> Owner {
        self.parts.clone()
    }

    /// The handle for kernels, as plain data. `self` must live until the kernels that use it are complete. As an
    /// argument of a launch, give `&self` instead ([`KernelArgs::with`](mscclpp_gpu::KernelArgs::with)), which the
    /// launch keeps alive.
    #[must_use]
    pub fn device_handle(&self) -> BasePortChannelHandle {
        self.handle
    }
}

impl PortChannel {
    pub(crate) fn new(
        service: &Arc<ServiceState>,
        id: SemaphoreId,
        dst: MemoryId,
        src: MemoryId,
    ) -> Result<Self> {
        let memory = |id: MemoryId| service.memories.find("memory", id.raw());
        let semaphore = &service.semaphores.find("semaphore", id.raw())?.semaphore;
        let route = Route::new(semaphore.connection(), memory(dst)?, memory(src)?)?;
        let [dst_size, src_size] = route.sizes();
        // The service's device is the connection's, as `add_semaphore` has checked. Its kernels need not reach the
        // memory of another device, or of the host; the proxy reaches it.
        let uuid = |gpu: &Gpu| gpu.properties().uuid;
        let is_near = memory(src)?.gpu().is_some_and(|owner| uuid(owner) == uuid(&service.gpu));
        let near = |bytes| if is_near { bytes } else { 0 };
        let dst_ptr = route.dst_ptr().filter(|_| is_near);
        let src_ptr = memory(src)?.data().filter(|_| is_near);
        let base = BasePortChannel::new(service, id, Some(route))?;
        let handle = PortChannelHandle {
            base: base.handle,
            dst,
            src,
            dst_ptr: dst_ptr.unwrap_or(DevicePtr::NULL).as_mut_ptr(),
            src_ptr: src_ptr.unwrap_or(DevicePtr::NULL).as_mut_ptr(),
            dst_size,
            src_size,
            direct_put_max: near(service.direct_put_max),
            bulk_put_max: near(service.bulk_put_max),
        };
        Ok(Self { base, handle })
    }

    /// The channel's semaphore, for [`Semaphore::check`] and [`Semaphore::abort`].
    #[must_use]
    pub fn semaphore(&self) -> &Semaphore {
        self.base.semaphore()
    }

    pub(crate) fn owner(&self) -> Owner {
        self.base.owner()
    }

    /// The same channel without its memories.
    #[must_use]
    pub fn base(&self) -> &BasePortChannel {
        &self.base
    }

    /// The handle for kernels, as plain data. `self` must live until the kernels that use it are complete. As an
    /// argument of a launch, give `&self` instead ([`KernelArgs::with`](mscclpp_gpu::KernelArgs::with)), which the
    /// launch keeps alive.
    #[must_use]
    pub fn device_handle(&self) -> PortChannelHandle {
        self.handle
    }
}

mscclpp_os::debug_fields!(BasePortChannel, |this| semaphore: this.semaphore(), ..);

mscclpp_os::debug_fields!(PortChannel, |this| semaphore: this.semaphore(), route: this.base.parts.route, ..);
