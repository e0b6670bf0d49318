//! Port channels: a host thread, the *proxy*, that moves data for GPU threads, and the FIFO between them.
//!
//! A kernel asks for a copy or a signal by pushing a [`ProxyTrigger`] of 16 bytes into a [`Fifo`]. The thread of a
//! [`ProxyService`] carries it out over the connection's transport. If kernels can reach the peer's memory themselves,
//! the calling thread does small puts and signals itself, provided nothing before them is pending. [`Proxy`] is the
//! thread alone, for services of your own. The book's page "Port channels" (`docs/src/tutorials/04-port-channel.md`)
//! introduces all of it.
//!
//! ```
//! use mscclpp_core::{RegisteredMemory, Semaphore};
//! use mscclpp_gpu::Gpu;
//! use mscclpp_proxy::{PortChannel, ProxyService};
//!
//! /// `theirs` was registered by the peer, `ours` by us, both for the transport of the semaphore's connection.
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
//! # What you can rely on
//! 1. A wait that takes a signal sees the data of every put before that signal: puts of the signalling thread, and of
//!    threads with which it had synchronised. It does not matter which of them went through the proxy.
//!    `docs/design/port-channel.md` argues why.
//! 2. When a flush has returned true, the data of all puts before it is at the peer, and their sources may be
//!    overwritten.
//! 3. Connections do not wait for each other, except for room in the FIFO, which they share. A full transport is no
//!    failure: its connection goes on when there is room (`docs/design/queues.md`).
//! 4. No wait lasts for ever when the peer dies, when a trigger cannot be carried out, or when the service is aborted
//!    or dropped. See [`ProxyService`].

mod abort;
mod argument;
mod channel;
mod connection;
mod dump;
mod engine;
mod error;
mod fifo;
mod handle;
mod handler;
mod id;
mod idle;
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

pub use channel::{BasePortChannel, PortChannel};
pub use error::{Error, Result};
pub use fifo::{Fifo, FifoShared};
pub use handle::{BasePortChannelHandle, FifoHandle, PortChannelHandle};
pub use handler::{Progress, ProxyHandler, ProxyHandlerResult};
pub use id::{FifoPosition, MemoryId, SemaphoreId};
pub use idle::IdlePolicy;
pub use proxy::{Proxy, ProxyBuilder};
pub use service::{BaseProxyService, ProxyService, ProxyServiceBuilder};
pub use stats::{ConnectionStats, PendingFlush, ServiceStats, TrafficStats};
pub use trigger::{MAX_MEMORIES, MAX_SEMAPHORES, ProxyTrigger, TriggerKind};
