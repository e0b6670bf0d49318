use std::sync::Arc;

use mscclpp_gpu::DevicePtr;

use crate::{
    Connection, RegisteredMemory, Result,
    provider::{Registration, RemoteRegion},
};

/// A pair of memories, one of this process and one of the peer's, over one connection. It keeps both, and the mapping
/// of the peer's memory.
#[derive(Clone)]
pub struct Route {
    dst: Arc<dyn RemoteRegion>,
    src: Arc<dyn Registration>,
    dst_memory: RegisteredMemory,
    src_memory: RegisteredMemory,
    // Declared after the mapping, which must be dropped first.
    _connection: Connection,
}

impl Route {
    /// Makes a route from `src`, registered here, to the peer's `dst`. Maps `dst` the first time, which may block for
    /// some seconds.
    ///
    /// # Errors
    /// [`NotRegistered`](crate::Error::NotRegistered); [`InvalidArgument`](crate::Error::InvalidArgument) for a memory of
    /// the wrong process; errors of mapping; [`PeerLost`](crate::Error::PeerLost) and the like.
    pub fn new(connection: &Connection, dst: &RegisteredMemory, src: &RegisteredMemory) -> Result<Self> {
        connection.check()?;
        Ok(Self {
            src: connection.source(src)?,
            dst: connection.map("the destination", dst)?,
            dst_memory: dst.clone(),
            src_memory: src.clone(),
            _connection: connection.clone(),
        })
    }

    pub(crate) fn dst(&self) -> &Arc<dyn RemoteRegion> {
        &self.dst
    }

    pub(crate) fn src(&self) -> &Arc<dyn Registration> {
        &self.src
    }

    /// The address at which kernels of this side reach the destination, if the transport maps it.
    #[must_use]
    pub fn dst_ptr(&self) -> Option<DevicePtr> {
        self.dst.ptr()
    }

    /// The sizes in bytes of the destination and of the source.
    #[must_use]
    pub fn sizes(&self) -> [u64; 2] {
        [self.dst_memory.size(), self.src_memory.size()]
    }
}

mscclpp_os::debug_fields!(Route, |this| dst: this.dst_memory, src: this.src_memory, ..);
