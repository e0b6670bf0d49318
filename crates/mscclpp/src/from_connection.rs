use mscclpp_core::{
    BaseMemoryChannel, Connection, DeviceToDeviceSemaphore, HostToDeviceSemaphore, HostToHostSemaphore,
    MemoryChannel, RegisteredMemory, Semaphore,
};

use crate::{Communicator, Result};

/// What is made of a [`Semaphore`], made of a connection in one call: a [`BaseMemoryChannel`], a
/// [`DeviceToDeviceSemaphore`], a [`HostToDeviceSemaphore`], a [`HostToHostSemaphore`], or the semaphore itself. For a
/// [`MemoryChannel`] see [`MemoryChannelExt`], for a [`PortChannel`](crate::PortChannel)
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
    /// Builds a semaphore over `connection` together with the rank at its other end, and makes this of it. `comm` made the
    /// connection, and the semaphore is exchanged with the peer and tag that it was made with.
    ///
    /// That rank must make a call of its own, for this or another kind of object. Calls match in their order, as those of
    /// [`Communicator::build_semaphore`] do, which this calls.
    ///
    /// Blocks as [`Pending::wait`](crate::Pending::wait) does: until that rank has made its call, with no other limit, or
    /// until a rank is lost, leaves, or aborts the job. So with several peers, all ranks are to make these calls in one
    /// order, by ascending peers, say, or to call [`Communicator::build_semaphore`] for all of them before they wait.
    /// Mapping the peer's token takes some seconds at most.
    ///
    /// # Errors
    /// [`crate::Error::ForeignConnection`] for a connection of another communicator; errors of
    /// [`Communicator::build_semaphore`], of [`Pending::wait`](crate::Pending::wait), and of the object's own constructor.
    fn from_connection(comm: &Communicator, connection: &Connection) -> Result<Self>;
}

/// A [`MemoryChannel`] of a connection, in one call.
pub trait MemoryChannelExt: Sized {
    /// As [`FromConnection::from_connection`], between the memories of [`MemoryChannel::new`]: `dst` is the peer's, `src` and
    /// `packet_buffer` are of this side.
    ///
    /// # Errors
    /// As there, and those of [`MemoryChannel::new`]. These come after the exchange with the peer, whose call may have
    /// worked.
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
