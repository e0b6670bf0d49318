//! Device handles: plain structs that kernels get, laid out as in the CUDA headers, which have their methods.

mod memory_channel;
mod semaphore;

pub use memory_channel::MemoryChannelHandle;
pub use semaphore::{BaseMemoryChannelHandle, DeviceToDeviceSemaphoreHandle};
