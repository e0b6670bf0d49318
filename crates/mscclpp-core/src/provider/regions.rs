//! Memory that peers reach: at its owner, and at a peer.

use std::any::Any;

use mscclpp_gpu::DevicePtr;

use crate::{Error, Result};

/// A region that peers can reach, until this is dropped; or one that only queues of this side read
/// ([`TransportProvider::local_source`](super::TransportProvider::local_source)).
///
/// A provider whose own code writes to the region for peers has stopped doing so when the drop returns, since the owner may
/// free the memory then.
pub trait Registration: Send + Sync + Any {
    /// The bytes that the peer's provider needs to import the region, at most a few KiB; nothing for a local source.
    fn blob(&self) -> &[u8];

    /// Keeps nothing of the memory until [`Registration::resume`], so that its owner can give it back
    /// ([`RegisteredMemory::suspend`](crate::RegisteredMemory::suspend)); does nothing if it is suspended. The default
    /// refuses.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the provider has to keep the memory.
    fn suspend(&self) -> Result<()> {
        Err(cannot_suspend())
    }

    /// Shares the memory that is at the region's addresses now, under the same bytes; does nothing if it is not suspended.
    ///
    /// # Errors
    /// The same as [`TransportProvider::register`](super::TransportProvider::register).
    fn resume(&self) -> Result<()> {
        Ok(())
    }
}

fn cannot_suspend() -> Error {
    Error::InvalidArgument("the transport of a registered memory keeps it: it cannot be suspended".into())
}

/// A peer's region, usable here. It is unmapped when dropped.
pub trait RemoteRegion: Send + Sync + Any {
    /// The address at which device code of the importing GPU reaches the region itself, if the transport allows that.
    fn ptr(&self) -> Option<DevicePtr>;

    /// Whether device code may use atomic operations on the region too. Only called if [`RemoteRegion::ptr`] is
    /// `Some`.
    fn native_atomics(&self) -> bool {
        false
    }

    /// Whether the 128 bytes that the threads of a warp store at once arrive in the region as a whole, so that a
    /// reader that sees some of them sees all of them. Only called if [`RemoteRegion::ptr`] is `Some`.
    fn whole_lines(&self) -> bool {
        false
    }

    /// Unmaps the region, so that its owner can give the memory back, and keeps its address; does nothing if it is suspended.
    /// The default refuses.
    ///
    /// # Safety
    /// Nothing accesses the region from here until it is resumed.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the provider has to keep the memory.
    unsafe fn suspend(&self) -> Result<()> {
        Err(cannot_suspend())
    }

    /// Maps, at the same address, the memory that the owner of the region shares now; does nothing if it is not suspended.
    /// May block as [`TransportProvider::import`](super::TransportProvider::import) does.
    ///
    /// # Errors
    /// The same as [`TransportProvider::import`](super::TransportProvider::import).
    fn resume(&self) -> Result<()> {
        Ok(())
    }
}
