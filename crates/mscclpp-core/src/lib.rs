//! Endpoints, connections, registered memory, semaphores and memory channels, independent of any transport.
//!
//! A [`Context`] is put together from transport providers ([`provider::TransportProvider`]). It opens [`Endpoint`]s,
//! which travel to peers as bytes, and joins two of them into a [`Connection`]. Over a connection, two
//! [`SemaphoreStub`]s make a [`Semaphore`], which kernels use through a [`BaseMemoryChannel`] or a [`MemoryChannel`]. Hosts
//! signal over a [`HostToDeviceSemaphore`] or a [`HostToHostSemaphore`].
//!
//! This crate contains no transport, opens no socket, and starts a thread only to go on with queues that were dropped
//! before everything given to them had arrived.
//!
//! # A dead peer is an error, not a hang
//! A transport tells each connection's [`LinkMonitor`] when the peer goes. The connection then fails with
//! [`Error::PeerLost`] or [`Error::PeerClosed`], and device waits on its semaphores return false. Connections have a
//! label ([`Connection::set_label`]) by which those errors name the peer.

mod abort;
mod argument;
mod channel;
mod config;
mod connection;
mod context;
mod endpoint;
mod endpoint_info;
mod error;
mod handle;
mod host_semaphore;
mod identity;
mod memory;
mod monitor;
mod packet;
#[doc(hidden)]
pub mod protocol;
pub mod provider;
mod queue;
mod region;
mod retired;
mod route;
mod semaphore;
mod signaller;
mod slab;
mod stub;
mod transport;
mod waits;
mod wire;

pub use channel::{BaseMemoryChannel, MemoryChannel};
pub use config::{Device, DeviceType, EndpointConfig, IbConfig, IbMode};
pub use connection::{Connection, WeakConnection};
pub use context::{Context, ContextBuilder};
pub use endpoint::Endpoint;
pub use endpoint_info::EndpointInfo;
pub use error::{Error, Result, TransportError};
pub use handle::{
    BaseMemoryChannelHandle, DeviceToDeviceSemaphoreHandle, HostToDeviceSemaphoreHandle, MemoryChannelHandle,
};
pub use host_semaphore::{HostToDeviceSemaphore, HostToHostSemaphore};
pub use identity::{ProcessId, host_id};
pub use memory::RegisteredMemory;
pub use monitor::LinkMonitor;
/// Types of `mscclpp_gpu` that appear in the signatures of this crate.
pub use mscclpp_gpu::{
    Abort, DeviceBuffer, DevicePtr, Error as GpuError, Gpu, KernelArgument, KernelParam, OutOfBounds,
    Platform,
};
pub use mscclpp_os::{Report, SystemError, SystemFailure, env::BadVariable};
pub use packet::{LL8Packet, LL16Packet, LL128Packet, Packet};
pub use queue::{SendQueue, SignallerId};
pub use region::{MemoryRegion, RegionInfo};
pub use route::Route;
pub use semaphore::{DeviceToDeviceSemaphore, Semaphore};
pub use signaller::Signaller;
pub use stub::SemaphoreStub;
pub use transport::{Transport, TransportFlags, UnknownTransport};
#[doc(hidden)]
pub use wire::is_an_envelope;
