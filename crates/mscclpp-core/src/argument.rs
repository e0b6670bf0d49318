//! Semaphores, channels and memories as arguments of kernels: a launch keeps them alive until it is complete.

use mscclpp_gpu::{DevicePtr, Error, KernelArgument, Owner, Result};

use crate::{
    BaseMemoryChannel, BaseMemoryChannelHandle, DeviceToDeviceSemaphore, DeviceToDeviceSemaphoreHandle,
    HostToDeviceSemaphore, HostToDeviceSemaphoreHandle, MemoryChannel, MemoryChannelHandle, RegisteredMemory,
};

/// Implements `KernelArgument` for types, of this crate and of those above it, whose kernels get their device handle.
#[doc(hidden)]
#[macro_export]
macro_rules! kernel_argument_by_handle {
    ($($what:ty => $handle:ty, $owner:expr;)*) => { $(
        /// The kernel gets the device handle.
        impl ::mscclpp_gpu::KernelArgument for &$what {
            type Param = $handle;

            fn param(&self) -> ::mscclpp_gpu::Result<Self::Param> {
                Ok(self.device_handle())
            }

            fn owner(&self) -> Option<::mscclpp_gpu::Owner> {
                Some($owner(self))
            }
        }
    )* };
}

kernel_argument_by_handle! {
    DeviceToDeviceSemaphore => DeviceToDeviceSemaphoreHandle, |this: &Self| this.semaphore().owner();
    HostToDeviceSemaphore => HostToDeviceSemaphoreHandle, |this: &Self| this.semaphore().owner();
    BaseMemoryChannel => BaseMemoryChannelHandle, |this: &Self| this.semaphore().owner();
    MemoryChannel => MemoryChannelHandle, |this: &Self| MemoryChannel::owner(this);
}

/// The kernel gets the address of the memory's first byte, [`RegisteredMemory::data`]. A memory of a peer that is not
/// mapped has no address: launches with it fail. If the memory was registered by its address
/// ([`Context::register_memory`](crate::Context::register_memory)), the launch keeps the registration alive, but not
/// the memory.
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
