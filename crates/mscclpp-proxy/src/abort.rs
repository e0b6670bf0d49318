//! Services and port channels, for [`Stream::synchronize_or_abort`](mscclpp_gpu::Stream::synchronize_or_abort).

use mscclpp_gpu::Abort;

use crate::{BasePortChannel, Error, PortChannel, ProxyService, Result};

/// [`ProxyService::abort`] and [`ProxyService::health`]: of all its channels.
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

/// Its semaphore's, and so that of everything that shares the semaphore. What the service failed with comes first.
impl Abort for BasePortChannel {
    type Error = Error;

    fn abort(&self, reason: &str) {
        self.semaphore().abort(reason);
    }

    fn check(&self) -> Result<()> {
        self.service().own_failure().map_or(Ok(()), Err)?;
        Ok(Abort::check(self.semaphore())?)
    }

    fn peers(&self) -> Vec<String> {
        self.semaphore().peers()
    }
}

/// As [`BasePortChannel`].
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
