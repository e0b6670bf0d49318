//! The InfiniBand transport: connections over RDMA adapters, InfiniBand or RoCE, between CPUs and GPUs of one host or many.
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
//! `IB0` to `IB7` are the devices that `MSCCLPP_HCA_DEVICES` names, in its order, else those with an active port, sorted by
//! PCI address. The verbs library (libibverbs) is loaded when a device is first asked for.
//!
//! # How data travels
//! Each queue of a connection has a reliable-connected queue pair of its own, one way. A write is an RDMA write. A batch of
//! operations is one chain of work requests, posted by one call; a completion is told of at a signal, a flush, and a
//! quarter of the queue. The peer's process has no part in it.
//!
//! # How order is kept
//! A signal adds to the peer's token by an RDMA atomic, on the queue pair of the data. Adapters carry out the requests of a
//! queue pair in order. On the way from the adapter to memory, data may pass data (relaxed ordering), so every region has
//! two keys: one for data, and one without relaxed ordering for words. What is written with the latter passes nothing that
//! was sent before it.
//!
//! So of two writes to the same bytes either may stay, if neither a signal nor a flush is between them. Without relaxed
//! ordering ([`InfiniBandBuilder::relaxed_ordering`]) the later one stays.
//!
//! Where an adapter has no atomics, or if `MSCCLPP_IBV_MODE` is `host-no-atomic`, a signal is a number that comes with the
//! data as an RDMA write with immediate data. The peer's adapter tells of it behind the data, and a thread of the peer's
//! process stores it in the token, with release. For GPUs, what the driver promises decides where tokens are; where it
//! promises too little, the transport refuses. `docs/design/infiniband.md` says more.
//!
//! # How peers are kept apart from strangers
//! What travels as the endpoint holds a random key. Both ends of the TCP connections over which queue pairs are made prove
//! that they have it. Adapters check keys and bounds of what they write; nothing is encrypted.
//!
//! # How a dead peer is seen
//! Beside its queue pairs, a connection has a *link*, a TCP connection that is silent and open as long as the peer's
//! endpoint ([`mscclpp_net::links`]). Its end, or the silence of the peer's host, fails the connection. So do a port that
//! goes down for more than 3 s, a device that fails, and the first request that fails.
//!
//! # What has not been run
//! All of this is tested with soft RoCE and with a simulated adapter. Memory of real GPUs behind a real adapter has not been
//! tried.

mod adapter;
mod blob;
mod builder;
mod describe;
mod error;
mod gid;
mod hub;
mod link;
mod nearest;
mod ordering;
mod provider;
mod receiver;
mod region;
mod sender;
mod settings;
mod status;

pub use builder::InfiniBandBuilder;
pub use describe::{DeviceDetails, DeviceReport, GidReport, Inventory, PortReport, Unavailable, UsedPort};
pub use error::Error;
pub use provider::InfiniBand;
