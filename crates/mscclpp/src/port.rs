use mscclpp_core::Connection;
use mscclpp_proxy::{ProxyService, SemaphoreId};

use crate::{Communicator, Result};

/// What a proxy service does together with a communicator.
pub trait ProxyServiceExt {
    /// Builds a semaphore over `connection`, which `comm` made, with the same call of the rank at its other end, and adds
    /// it. Blocks until that rank's part is there.
    ///
    /// # Errors
    /// [`crate::Error::ForeignConnection`] for a connection of another communicator; errors of
    /// [`Communicator::build_semaphore`], [`crate::Pending::wait`] and [`ProxyService::add_semaphore`].
    fn build_and_add_semaphore(&self, comm: &Communicator, connection: &Connection) -> Result<SemaphoreId>;
}

impl ProxyServiceExt for ProxyService {
    fn build_and_add_semaphore(&self, comm: &Communicator, connection: &Connection) -> Result<SemaphoreId> {
        let (peer, tag) = (comm.remote_rank_of(connection)?, comm.tag_of(connection)?);
        let semaphore = comm.build_semaphore(connection, peer, tag)?.wait()?;
        Ok(self.add_semaphore(&semaphore)?)
    }
}
