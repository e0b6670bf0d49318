//! Giving up what kernels wait for, over all layers.

use mscclpp_gpu::Abort;

use crate::{Communicator, Error, Result};

/// [`Communicator::abort`], of the whole job on all ranks, and what the job failed with. That a single connection was closed
/// under a wait is known to its semaphore alone.
impl Abort for Communicator {
    type Error = Error;

    fn abort(&self, reason: &str) {
        Self::abort(self, reason);
    }

    fn check(&self) -> Result<()> {
        self.bootstrap().failure().map_or(Ok(()), |failure| Err(failure.into()))
    }

    fn peers(&self) -> Vec<String> {
        let mut peers: Vec<String> = Vec::new();
        for label in self.members().connections().iter().map(mscclpp_core::Connection::label) {
            if !peers.contains(&label) {
                peers.push(label);
            }
        }
        peers
    }
}
