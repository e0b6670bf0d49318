use mscclpp_core::{
    BaseMemoryChannel, Connection, DeviceToDeviceSemaphore, HostToDeviceSemaphore, HostToHostSemaphore,
    MemoryChannel, RegisteredMemory, Semaphore,
};

use crate::{Communicator, Result};

/// Makes an object over a connection in one call, together with its semaphore: a [`BaseMemoryChannel`], a
/// [`DeviceToDeviceSemaphore`], a [`HostToDeviceSemaphore`], a [`HostToHostSemaphore`], or the [`Semaphore`] itself. For
/// a [`MemoryChannel`] see [`MemoryChannelExt`], for a [`PortChannel`](crate::PortChannel)
/// [`ProxyServiceExt`](crate::ProxyServiceExt).
///
/// ```
/// use mscclpp::prelude::*;
///
/// /// A channel to `peer`, which makes the same call.
/// fn channel(comm: &Communicator, endpoint: EndpointConfig, peer: usize) -> mscclpp::Result<BaseMemoryChannel> {
///     let connection = comm.connect(endpoint, peer, 0)?.wait()?;
///     BaseMemoryChannel::from_connection(comm, &connection)
/// }
/// ```
pub trait FromConnection: Sized {
    /// Builds a semaphore over `connection` together with the rank at its other end, and makes the object of it. `comm` is the
    /// communicator that made the connection; the semaphore is exchanged with the same peer and tag.
    ///
    /// The rank at the other end must make a call of its own, for this or a different kind of object. Calls match in
    /// their order, as those of [`Communicator::build_semaphore`] do.
    ///
    /// Blocks as [`Pending::wait`](crate::Pending::wait) does: until that rank has made its call, without a limit of its own,
    /// or until a rank is lost, leaves, or aborts the job. So with several peers, all ranks make these calls in one order,
    /// such as by ascending peers, or they call [`Communicator::build_semaphore`] for all of them before they wait. Mapping
    /// the peer's token takes some seconds at most.
    ///
    /// # Errors
    /// [`Error::ForeignConnection`](crate::Error::ForeignConnection) for a connection of another communicator; errors of
    /// [`Communicator::build_semaphore`], of [`Pending::wait`](crate::Pending::wait), and of the object's own constructor.
    fn from_connection(comm: &Communicator, connection: &Connection) -> Result<Self>;
}

/// Makes a [`MemoryChannel`] over a connection in one call, together with its semaphore.
pub trait MemoryChannelExt: Sized {
    /// Makes a channel as [`FromConnection::from_connection`] does, between the memories of [`MemoryChannel::new`]: `dst`
    /// is the peer's, `src` and `packet_buffer` are of this side.
    ///
    /// # Errors
    /// The errors of [`FromConnection::from_connection`] and of [`MemoryChannel::new`]. The latter come after the
    /// exchange with the peer, so the peer's call may have worked.
    fn from_connection(
        comm: &Communicator,
        connection: &Connection,
        dst: &RegisteredMemory,
        src: &RegisteredMemory,
        packet_buffer: Option<&RegisteredMemory>,
    ) -> Result<Self>;
}

impl FromConnection for Semaphore {
    fn from_connection(comm: &Communicator, connection: &Connection) -> Result<Self> {
        comm.build_semaphore(connection)?.wait()
    }
}

macro_rules! from_connection {
    ($($kind:ident)*) => {
        $(
            impl FromConnection for $kind {
                fn from_connection(comm: &Communicator, connection: &Connection) -> Result<Self> {
                    Ok(Self::new(&Semaphore::from_connection(comm, connection)?)?)
                }
            }
        )*
    };
}

from_connection!(BaseMemoryChannel DeviceToDeviceSemaphore HostToDeviceSemaphore HostToHostSemaphore);

impl MemoryChannelExt for MemoryChannel {
    fn from_connection(
        comm: &Communicator,
        connection: &Connection,
        dst: &RegisteredMemory,
        src: &RegisteredMemory,
        packet_buffer: Option<&RegisteredMemory>,
    ) -> Result<Self> {
        Ok(Self::new(&Semaphore::from_connection(comm, connection)?, dst, src, packet_buffer)?)
    }
}
