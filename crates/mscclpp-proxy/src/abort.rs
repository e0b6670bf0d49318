//! Lets services and port channels be given to
//! [`Stream::synchronize_or_abort`](mscclpp_gpu::Stream::synchronize_or_abort).

use std::time::Instant;

use mscclpp_gpu::{Abort, KernelWait};

use crate::{BasePortChannel, Error, PortChannel, ProxyService, Result};

/// Aborts and checks all channels of the service, by [`ProxyService::abort`] and [`ProxyService::health`]. The check
/// also fails if kernels asked for something, or put or signalled by themselves, and the service was not started.
impl Abort for ProxyService {
    type Error = Error;

    fn abort(&self, reason: &str) {
        Self::abort(self, reason);
    }

    fn check(&self) -> Result<()> {
        self.health()?;
        self.state.check_is_served()
    }

    fn settle(&self, deadline: Instant) -> bool {
        self.state.settle(deadline)
    }

    fn peers(&self) -> Vec<String> {
        self.state.peers()
    }

    fn waits(&self) -> Vec<KernelWait> {
        self.state.waits(self.state.semaphores.iter().map(|entry| &entry.semaphore))
    }
}

/// Aborts and checks the channel's semaphore, and so everything that shares it. If the service has failed, its error
/// is reported first. If the service was not started, or was dropped before it carried out what kernels asked for,
/// that is an error, too.
impl Abort for BasePortChannel {
    type Error = Error;

    fn abort(&self, reason: &str) {
        self.semaphore().abort(reason);
    }

    fn check(&self) -> Result<()> {
        self.service().check_waits(self.semaphore())?;
        self.service().check_is_served()
    }

    fn settle(&self, deadline: Instant) -> bool {
        self.service().settle(deadline)
    }

    fn peers(&self) -> Vec<String> {
        self.service().idle_service().into_iter().chain(self.semaphore().peers()).collect()
    }

    fn waits(&self) -> Vec<KernelWait> {
        self.service().waits([self.semaphore()])
    }
}

mscclpp_gpu::abort_as_its_content! {
    /// Aborts and checks the channel as its [`BasePortChannel`] does.
    [] PortChannel, Error: |this| this.base();
}
