//! Addresses, sockets and handshakes for the crates of this repository that talk to other processes.
//!
//! - [`interface`]: the addresses of this node, and which of them to offer to peers;
//! - [`socket`]: TCP sockets that do not block and that notice when the other node is gone;
//! - [`dial`]: finding the address at which a peer answers, among several;
//! - [`handshake`]: how both ends of a connection prove that they have the same [`key`], in [frames](frame);
//! - [`wire`]: reading bytes from outside, with bounds;
//! - [`event_loop`]: one thread that waits for sockets and for commands from other threads;
//! - [`links`]: TCP connections to peers that show when a peer leaves or dies;
//! - [`env`](mod@env): the environment variables about the network.
//!
//! This crate knows nothing of GPUs, ranks or transports. Only [`links::Links`] and [`event_loop::ServiceThread`] start
//! threads and keep state. It serves the other crates of the repository; its API changes with theirs.
#![forbid(unsafe_code)]

pub mod dial;
pub mod env;
pub mod event_loop;
pub mod frame;
pub mod handshake;
pub mod interface;
pub mod key;
pub mod links;
pub mod socket;
pub mod wire;

/// Names of the crate below that users of this one need too.
pub use mscclpp_os::{Report, SystemCall, SystemError, debug_as_report, random};
