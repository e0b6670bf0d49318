//! Port channels: a host thread, the *proxy*, that moves data for GPU threads, and the FIFO between them.
//!
//! A kernel asks for a copy or a signal by pushing a [`ProxyTrigger`] of 16 bytes into a [`Fifo`]; the thread of a
//! [`ProxyService`] carries it out over whatever transport the connection has. Where kernels reach the peer's memory by
//! themselves, small puts and signals do not go that way: the calling thread does them, if nothing is pending before.
//! [`Proxy`] is the thread alone, for services of your own.
//!
//! ```
//! use mscclpp_core::{RegisteredMemory, Semaphore};
//! use mscclpp_gpu::Gpu;
//! use mscclpp_proxy::{PortChannel, ProxyService};
//!
//! /// `theirs` is what the peer registered, `ours` what we did, both for the transport of the semaphore's connection.
//! fn channel(
//!     gpu: &Gpu,
//!     semaphore: &Semaphore,
//!     theirs: &RegisteredMemory,
//!     ours: &RegisteredMemory,
//! ) -> mscclpp_proxy::Result<(ProxyService, PortChannel)> {
//!     let service = ProxyService::new(gpu)?;
//!     let id = service.add_semaphore(semaphore)?;
//!     let (dst, src) = (service.add_memory(theirs)?, service.add_memory(ours)?);
//!     let channel = service.port_channel(id, dst, src)?; // its device_handle() goes to kernels
//!     service.start_proxy(true)?;
//!     Ok((service, channel))
//! }
//! ```
//!
//! # What may be relied on
//! 1. Whoever takes a signal sees the data of every put that came before it: of the same thread, or of another with which
//!    the signalling thread had synchronised. It does not matter which of them went through the proxy. Transports keep
//!    the order of a queue; `docs/design/port-channel.md` argues the rest.
//! 2. A flush that returned true means that the sources of all puts before it may be written again, and that the data is
//!    at the peer.
//! 3. Connections do not wait for each other, but for the room in the FIFO that they share: one whose transport is full
//!    goes on when there is room, and is no failure (`docs/design/queues.md`).
//! 4. Nothing waits for ever: not when the peer dies, when a trigger cannot be carried out, or when the service is
//!    aborted or dropped. See [`ProxyService`].

mod abort;
mod argument;
mod base_channel_handle;
mod channel;
mod channel_handle;
mod connection;
mod dump;
mod engine;
mod error;
mod fifo;
mod fifo_handle;
mod handler;
mod id;
mod idle;
mod probe;
#[doc(hidden)]
pub mod protocol;
mod proxy;
mod service;
mod serving;
mod state;
mod stats;
mod table;
mod trigger;
mod waiting;

pub use base_channel_handle::BasePortChannelHandle;
pub use channel::{BasePortChannel, PortChannel};
pub use channel_handle::PortChannelHandle;
pub use error::{Error, Result};
pub use fifo::{Fifo, FifoShared};
pub use fifo_handle::FifoHandle;
pub use handler::{Progress, ProxyHandler, ProxyHandlerResult};
pub use id::{FifoPosition, MemoryId, SemaphoreId};
pub use idle::IdlePolicy;
pub use proxy::{Proxy, ProxyBuilder};
pub use service::{BaseProxyService, ProxyService, ProxyServiceBuilder};
pub use stats::{ConnectionStats, PendingFlush, ServiceStats, TrafficStats};
pub use trigger::{MAX_MEMORIES, MAX_SEMAPHORES, ProxyTrigger, TriggerKind};
