use mscclpp_core::{Connection, Semaphore};
use mscclpp_proxy::{ProxyService, SemaphoreId};

use crate::{Communicator, FromConnection, Result};

/// What a proxy service does together with a communicator.
///
/// ```
/// use mscclpp::prelude::*;
///
/// /// A channel to `peer` between two buffers, of which it makes the same call.
/// fn channel(
///     comm: &Communicator,
///     service: &ProxyService,
///     endpoint: &EndpointConfig,
///     buffer: &DeviceBuffer,
///     peer: usize,
/// ) -> mscclpp::Result<PortChannel> {
///     let connection = comm.connect(endpoint.clone(), peer, 0)?.wait()?;
///     let semaphore = service.build_and_add_semaphore(comm, &connection)?;
///     let ours = comm.register_buffer(buffer, connection.transport())?;
///     comm.send_memory(&ours, peer, 0)?;
///     let theirs = comm.recv_memory(peer, 0)?.wait()?;
///     let (dst, src) = (service.add_memory(&theirs)?, service.add_memory(&ours)?);
///     Ok(service.port_channel(semaphore, dst, src)?)
/// }
/// ```
pub trait ProxyServiceExt {
    /// Builds a semaphore over `connection`, which `comm` made, with the same call of the rank at its other end, and adds
    /// it. Blocks as [`FromConnection::from_connection`] does.
    ///
    /// # Errors
    /// [`crate::Error::ForeignConnection`] for a connection of another communicator; errors of
    /// [`Communicator::build_semaphore`], [`crate::Pending::wait`] and [`ProxyService::add_semaphore`].
    fn build_and_add_semaphore(&self, comm: &Communicator, connection: &Connection) -> Result<SemaphoreId>;
}

impl ProxyServiceExt for ProxyService {
    fn build_and_add_semaphore(&self, comm: &Communicator, connection: &Connection) -> Result<SemaphoreId> {
        Ok(self.add_semaphore(&Semaphore::from_connection(comm, connection)?)?)
    }
}
