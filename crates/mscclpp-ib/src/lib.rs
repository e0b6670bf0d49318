//! The InfiniBand transport: connections over RDMA adapters (InfiniBand or RoCE) between CPUs and GPUs of one or more
//! nodes.
//!
//! ```no_run
//! use mscclpp_core::{Context, Device, EndpointConfig, Transport};
//! use mscclpp_ib::InfiniBand;
//!
//! let context = Context::builder().provider(InfiniBand::new()).build();
//! let here = context.create_endpoint(EndpointConfig::new(Transport::IB0, Device::CPU))?;
//! # Ok::<(), mscclpp_core::Error>(())
//! ```
//!
//! `IB0` to `IB7` are the devices that `MSCCLPP_HCA_DEVICES` names, in its order. If it is not set, they are the
//! devices with an active port, sorted by PCI address. The verbs library (libibverbs) is loaded when a device is first
//! asked for.
//!
//! # How data travels
//! Each queue of a connection has its own reliable-connected queue pair, which carries data one way. A write is an RDMA
//! write. A batch of operations is one chain of work requests, posted by one call. A completion is asked for at a
//! signal, at a flush, and after each quarter of the queue. The peer's process takes no part.
//!
//! # How order is kept
//! A signal is an RDMA atomic that adds to the peer's token, on the same queue pair as the data. Adapters carry out the
//! requests of a queue pair in order. On the way from the adapter to memory, data may overtake other data (relaxed
//! ordering). So every region has two keys: one for data, and one without relaxed ordering for words. A write with the
//! second key overtakes nothing that was sent before it.
//!
//! So if two writes go to the same bytes with neither a signal nor a flush between them, either may remain. Without
//! relaxed ordering ([`InfiniBandBuilder::relaxed_ordering`]) the later one remains.
//!
//! If one of the two adapters has no atomics, or if the mode of one of the two endpoints is `host-no-atomic`, a signal is a
//! number that comes with the data, as an RDMA write with immediate data. The peer's adapter reports it after the data
//! has arrived, and a thread of the peer's process stores it in the token with release order. For GPUs, the place of the
//! tokens depends on this and on what the driver promises; if it promises too little, a semaphore is refused.
//! `docs/design/infiniband.md` says more.
//!
//! # How peers are kept apart from strangers
//! An endpoint, as it is sent to peers, holds a random key. Queue pairs are set up over TCP connections, whose two ends
//! prove that they have this key. Adapters check the keys and bounds of what they write; nothing is encrypted.
//!
//! # How a dead peer is noticed
//! Beside its queue pairs, a connection has a *link*: a TCP connection that is idle, and open as long as the peer's
//! endpoint ([`mscclpp_net::links`]). When the link ends, or the peer's node falls silent, the connection fails. It
//! also fails when a port is down for more than 3 seconds, when a device fails, and at the first request that fails.
//!
//! # What has not been run
//! All of this is tested with soft RoCE and with a simulated adapter. It has not been run with memory of real GPUs
//! behind a real adapter.

mod adapter;
#[doc(hidden)]
pub mod bare;
mod blob;
mod builder;
mod complaint;
mod describe;
mod error;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod gid;
mod hub;
mod link;
mod nearest;
mod ordering;
mod provider;
mod receiver;
mod region;
mod select;
mod sender;
mod settings;
mod side;
mod status;
mod words;

pub use builder::InfiniBandBuilder;
pub use describe::{DeviceDetails, DeviceReport, GidReport, Inventory, PortReport, Unavailable, UsedPort};
pub use error::Error;
pub use provider::InfiniBand;
