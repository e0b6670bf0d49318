use mscclpp_core::{Connection, RegisteredMemory, Semaphore};
use mscclpp_proxy::{PortChannel, ProxyService, SemaphoreId};

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
///     let ours = comm.register_buffer(buffer, connection.transport())?;
///     comm.send_memory(&ours, peer, 0)?;
///     let theirs = comm.recv_memory(peer, 0)?.wait()?;
///     service.build_port_channel(comm, &connection, &theirs, &ours)
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

    /// A port channel in one call: adds both memories, builds a semaphore over `connection` and adds it, as
    /// [`Self::build_and_add_semaphore`] does, and makes the channel. `dst` is the peer's, `src` of this side.
    ///
    /// The rank at the other end must make a call of its own that builds a semaphore, as this one does or another. Each
    /// call takes one of the service's 1024 semaphores and two of its 512 memories. For many channels of one memory, add
    /// that once and use [`ProxyService::port_channel`], or [`Mesh::port_channels`](crate::Mesh::port_channels).
    ///
    /// # Errors
    /// Those of [`ProxyService::add_memory`], before anything is sent; of [`Self::build_and_add_semaphore`]; and of
    /// [`ProxyService::port_channel`]. These last come after the exchange with the peer, whose call may have worked.
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
