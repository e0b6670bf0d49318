//! Semaphores, channels and memories as arguments of kernels: a launch keeps them alive until it is complete.

use mscclpp_gpu::{DevicePtr, Error, KernelArgument, Owner, Result};

use crate::{
    BaseMemoryChannel, BaseMemoryChannelHandle, DeviceToDeviceSemaphore, DeviceToDeviceSemaphoreHandle,
    HostToDeviceSemaphore, HostToDeviceSemaphoreHandle, MemoryChannel, MemoryChannelHandle, RegisteredMemory,
};

/// The kernel gets its device handle.
impl KernelArgument for &DeviceToDeviceSemaphore {
    type Param = DeviceToDeviceSemaphoreHandle;

    fn param(&self) -> Result<Self::Param> {
        Ok(self.device_handle())
    }

    fn owner(&self) -> Option<Owner> {
        Some(self.semaphore().owner())
    }
}

/// The kernel gets its device handle.
impl KernelArgument for &HostToDeviceSemaphore {
    type Param = HostToDeviceSemaphoreHandle;

    fn param(&self) -> Result<Self::Param> {
        Ok(self.device_handle())
    }

    fn owner(&self) -> Option<Owner> {
        Some(self.semaphore().owner())
    }
}

/// The kernel gets its device handle.
impl KernelArgument for &BaseMemoryChannel {
    type Param = BaseMemoryChannelHandle;

    fn param(&self) -> Result<Self::Param> {
        Ok(self.device_handle())
    }

    fn owner(&self) -> Option<Owner> {
        Some(self.semaphore().owner())
    }
}

/// The kernel gets its device handle.
impl KernelArgument for &MemoryChannel {
    type Param = MemoryChannelHandle;

    fn param(&self) -> Result<Self::Param> {
        Ok(self.device_handle())
    }

    fn owner(&self) -> Option<Owner> {
        Some(MemoryChannel::owner(self).clone())
    }
}

/// The kernel gets the address of its first byte, [`RegisteredMemory::data`]. A memory of a peer that is not mapped has
/// none: launches with it fail. What was registered by its address
/// ([`Context::register_memory`](crate::Context::register_memory)) is not kept alive, only its registration is.
impl KernelArgument for &RegisteredMemory {
    type Param = DevicePtr;

    fn param(&self) -> Result<DevicePtr> {
        self.data().ok_or_else(|| {
            Error::InvalidArgument(format!(
                "a registered memory of {} bytes cannot be the argument of a kernel: it is a peer's and not mapped here; \
                 map it with Context::map_memory, or use it through a channel",
                self.size()
            ))
        })
    }

    fn owner(&self) -> Option<Owner> {
        Some(RegisteredMemory::owner(self))
    }
}
