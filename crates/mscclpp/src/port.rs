use mscclpp_core::{Connection, RegisteredMemory, Semaphore};
use mscclpp_proxy::{PortChannel, ProxyService, SemaphoreId};

use crate::{Communicator, FromConnection, Result};

/// The calls of a proxy service that need a communicator.
///
/// ```
/// use mscclpp::prelude::*;
///
/// /// A channel from this rank's buffer to that of `peer`, which makes the same call.
/// fn channel(
///     comm: &Communicator,
///     service: &ProxyService,
///     endpoint: &EndpointConfig,
///     buffer: &DeviceBuffer,
///     peer: usize,
/// ) -> mscclpp::Result<PortChannel> {
///     let connection = comm.connect(endpoint.clone(), peer, 0)?.wait()?;
///     let ours = comm.register_buffer(buffer, connection.transport())?;
///     comm.send_memory(&ours, peer, 0)?;
///     let theirs = comm.recv_memory(peer, 0)?.wait()?;
///     service.build_port_channel(comm, &connection, &theirs, &ours)
/// }
/// ```
pub trait ProxyServiceExt {
    /// Builds a semaphore over `connection`, which `comm` made, and adds it to the service. The rank at the other end
    /// makes a call that builds a semaphore, too. Blocks as [`FromConnection::from_connection`] does.
    ///
    /// # Errors
    /// [`Error::ForeignConnection`](crate::Error::ForeignConnection) for a connection of another communicator; errors of
    /// [`Communicator::build_semaphore`], [`Pending::wait`](crate::Pending::wait) and [`ProxyService::add_semaphore`].
    fn build_and_add_semaphore(&self, comm: &Communicator, connection: &Connection) -> Result<SemaphoreId>;

    /// Makes a port channel in one call: adds both memories, builds and adds a semaphore as
    /// [`Self::build_and_add_semaphore`] does, and makes the channel. `dst` is the peer's memory, `src` this side's.
    ///
    /// The rank at the other end makes a call that builds a semaphore, too: this one or a different one. Each call takes one of
    /// the service's 1024 semaphores and two of its 512 memories. For many channels with one memory, add that once and use
    /// [`ProxyService::port_channel`], or [`Mesh::port_channels`](crate::Mesh::port_channels).
    ///
    /// # Errors
    /// The errors of [`ProxyService::add_memory`], before anything is sent; of [`Self::build_and_add_semaphore`]; and of
    /// [`ProxyService::port_channel`]. The last come after the exchange with the peer, so the peer's call may have
    /// worked.
    fn build_port_channel(
        &self,
        comm: &Communicator,
        connection: &Connection,
        dst: &RegisteredMemory,
        src: &RegisteredMemory,
    ) -> Result<PortChannel>;
}

impl ProxyServiceExt for ProxyService {
    fn build_and_add_semaphore(&self, comm: &Communicator, connection: &Connection) -> Result<SemaphoreId> {
        Ok(self.add_semaphore(&Semaphore::from_connection(comm, connection)?)?)
    }

    fn build_port_channel(
        &self,
        comm: &Communicator,
        connection: &Connection,
        dst: &RegisteredMemory,
        src: &RegisteredMemory,
    ) -> Result<PortChannel> {
        let (dst, src) = (self.add_memory(dst)?, self.add_memory(src)?);
        let semaphore = self.build_and_add_semaphore(comm, connection)?;
        Ok(self.port_channel(semaphore, dst, src)?)
    }
}
