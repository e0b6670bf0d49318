//! Aborts a job when kernels' waits are given up, whatever layer asks for it.

use mscclpp_gpu::Abort;

use crate::{Communicator, Error, Result};

/// Gives up the whole job on all ranks, with [`Communicator::abort`], and reports the failure of the job. It does not
/// report that a single connection was closed under a wait: only the semaphore of that connection knows.
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
