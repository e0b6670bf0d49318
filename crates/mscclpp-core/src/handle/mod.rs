//! Device handles: plain structs that kernels get, laid out as in the CUDA headers, with host twins of their methods.

mod element;
mod memory_channel;
mod semaphore;

pub use element::Element;
pub use memory_channel::MemoryChannelHandle;
pub use semaphore::{BaseMemoryChannelHandle, DeviceToDeviceSemaphoreHandle};
