//! [`Abort`] for semaphores and memory channels, as
//! [`Stream::synchronize_or_abort`](mscclpp_gpu::Stream::synchronize_or_abort) needs it.

use mscclpp_gpu::{Abort, KernelWait};

use crate::{
    BaseMemoryChannel, DeviceToDeviceSemaphore, Error, HostToDeviceSemaphore, MemoryChannel, Result,
    Semaphore,
};

/// Aborts as [`Semaphore::abort`] does. `check` returns the error of [`Semaphore::check`] only if a wait ended
/// because of it: a peer that has left after its last signal is no failure.
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

mscclpp_gpu::abort_as_its_content! {
    /// Aborts the semaphore it is made over, and so everything that shares the semaphore.
    [] DeviceToDeviceSemaphore, Error: |this| this.semaphore();
    /// Aborts the semaphore it is made over, and so everything that shares the semaphore.
    [] HostToDeviceSemaphore, Error: |this| this.semaphore();
    /// Aborts the semaphore it is made over, and so everything that shares the semaphore.
    [] BaseMemoryChannel, Error: |this| this.semaphore();
    /// Aborts the semaphore it is made over, and so everything that shares the semaphore.
    [] MemoryChannel, Error: |this| this.semaphore();
}
