//! Lets services and port channels be given to
//! [`Stream::synchronize_or_abort`](mscclpp_gpu::Stream::synchronize_or_abort).

use mscclpp_gpu::Abort;

use crate::{BasePortChannel, Error, PortChannel, ProxyService, Result};

/// Aborts and checks all channels of the service, by [`ProxyService::abort`] and [`ProxyService::health`].
impl Abort for ProxyService {
    type Error = Error;

    fn abort(&self, reason: &str) {
        Self::abort(self, reason);
    }

    fn check(&self) -> Result<()> {
        self.health()
    }

    fn peers(&self) -> Vec<String> {
        self.state.peers()
    }
}

/// Aborts and checks the channel's semaphore, and so everything that shares it. If the service has failed, its error is
/// reported first. If it was dropped before it carried out what kernels asked for, that is an error, too.
impl Abort for BasePortChannel {
    type Error = Error;

    fn abort(&self, reason: &str) {
        self.semaphore().abort(reason);
    }

    fn check(&self) -> Result<()> {
        self.service().own_failure().map_or(Ok(()), Err)?;
        Abort::check(self.semaphore())?;
        self.service().lost_triggers().map_or(Ok(()), Err)
    }

    fn peers(&self) -> Vec<String> {
        self.service().idle_service().into_iter().chain(self.semaphore().peers()).collect()
    }
}

/// Works as for [`BasePortChannel`].
impl Abort for PortChannel {
    type Error = Error;

    fn abort(&self, reason: &str) {
        self.base().abort(reason);
    }

    fn check(&self) -> Result<()> {
        self.base().check()
    }

    fn peers(&self) -> Vec<String> {
        self.base().peers()
    }
}
