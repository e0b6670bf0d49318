//! Semaphores and memory channels, for [`Stream::synchronize_or_abort`](mscclpp_gpu::Stream::synchronize_or_abort).

use mscclpp_gpu::{Abort, KernelWait};

use crate::{
    BaseMemoryChannel, DeviceToDeviceSemaphore, Error, HostToDeviceSemaphore, MemoryChannel, Result,
    Semaphore,
};

/// [`Semaphore::abort`], and the error of [`Semaphore::check`] if a wait ended because of it. A peer that has left after its
/// last signal is no failure.
impl Abort for Semaphore {
    type Error = Error;

    fn abort(&self, reason: &str) {
        Self::abort(self, reason);
    }

    fn check(&self) -> Result<()> {
        self.check_waits()
    }

    fn peers(&self) -> Vec<String> {
        vec![self.connection().label()]
    }

    fn waits(&self) -> Vec<KernelWait> {
        self.owner().waits()
    }
}

macro_rules! abort_by_semaphore {
    ($($what:ty),*) => { $(
        /// Aborts its semaphore, and so everything that shares the semaphore.
        impl Abort for $what {
            type Error = Error;

            fn abort(&self, reason: &str) {
                self.semaphore().abort(reason);
            }

            fn check(&self) -> Result<()> {
                self.semaphore().check_waits()
            }

            fn peers(&self) -> Vec<String> {
                self.semaphore().peers()
            }

            fn waits(&self) -> Vec<KernelWait> {
                self.semaphore().waits()
            }
        }
    )* };
}
abort_by_semaphore!(DeviceToDeviceSemaphore, HostToDeviceSemaphore, BaseMemoryChannel, MemoryChannel);
