//! Port channels and FIFOs as kernel arguments: a launch keeps them alive until it is complete.
//!
//! A channel keeps alive what its handle points to, but not the [`ProxyService`](crate::ProxyService). If the service
//! is dropped, the pushes and flushes of kernels that still run end.

use mscclpp_gpu::{KernelArgument, Owner, Result};

use crate::{
    BasePortChannel, BasePortChannelHandle, Fifo, FifoHandle, FifoShared, PortChannel, PortChannelHandle,
};

/// The kernel gets its device handle.
impl KernelArgument for &BasePortChannel {
    type Param = BasePortChannelHandle;

    fn param(&self) -> Result<Self::Param> {
        Ok(self.device_handle())
    }

    fn owner(&self) -> Option<Owner> {
        Some(BasePortChannel::owner(self).clone())
    }
}

/// The kernel gets its device handle.
impl KernelArgument for &PortChannel {
    type Param = PortChannelHandle;

    fn param(&self) -> Result<Self::Param> {
        Ok(self.device_handle())
    }

    fn owner(&self) -> Option<Owner> {
        Some(PortChannel::owner(self).clone())
    }
}

/// The kernel gets its device handle.
impl KernelArgument for &FifoShared {
    type Param = FifoHandle;

    fn param(&self) -> Result<Self::Param> {
        Ok(self.device_handle())
    }

    fn owner(&self) -> Option<Owner> {
        Some(FifoShared::owner(self))
    }
}

/// The kernel gets its device handle.
impl KernelArgument for &Fifo {
    type Param = FifoHandle;

    fn param(&self) -> Result<Self::Param> {
        Ok(self.device_handle())
    }

    fn owner(&self) -> Option<Owner> {
        Some(FifoShared::owner(self))
    }
}
