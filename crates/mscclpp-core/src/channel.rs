use crate::{BaseMemoryChannelHandle, DeviceToDeviceSemaphore, Result, Semaphore};

/// A channel that only synchronises two kernels; it moves no data.
///
/// Any number of channels may share a semaphore; they then share its tokens.
#[derive(Debug, Clone)]
pub struct BaseMemoryChannel {
    semaphore: DeviceToDeviceSemaphore,
}

impl BaseMemoryChannel {
    /// Over a semaphore.
    ///
    /// # Errors
    /// As [`DeviceToDeviceSemaphore::new`].
    pub fn new(semaphore: &Semaphore) -> Result<Self> {
        Ok(Self { semaphore: DeviceToDeviceSemaphore::new(semaphore)? })
    }

    /// The semaphore below, for [`Semaphore::check`] and [`Semaphore::abort`].
    #[must_use]
    pub fn semaphore(&self) -> &Semaphore {
        self.semaphore.semaphore()
    }

    /// What kernels need. Copy it to the device or pass it as an argument; `self` must outlive the kernels.
    #[must_use]
    pub fn device_handle(&self) -> BaseMemoryChannelHandle {
        BaseMemoryChannelHandle { semaphore: self.semaphore.device_handle() }
    }
}
