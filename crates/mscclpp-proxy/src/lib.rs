//! Port channels: a host thread, the *proxy*, that moves data for GPU threads, and the FIFO between them.
mod channel_handle;
mod error;
mod fifo;
mod handle;
#[doc(hidden)]
pub mod protocol;
mod trigger;

pub use channel_handle::{BasePortChannelHandle, PortChannelHandle};
pub use error::{Error, Result};
pub use fifo::Fifo;
pub use handle::FifoHandle;
pub use trigger::{MAX_MEMORIES, MAX_SEMAPHORES, MemoryId, ProxyTrigger, SemaphoreId, TriggerKind};
